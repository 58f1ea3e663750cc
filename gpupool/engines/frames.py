"""Cuts an engine's stream into frames, however the network split it: lines of JSON, or the data of SSE events.

The relay has a splitter of its own, which keeps every byte because it hands events on; these keep what is said.
"""

import re
from typing import Final, Protocol

DEFAULT_FRAME_BYTES: Final = 8 * 1024 * 1024

_json_line_end = re.compile(rb"[\n\0]")  # inside JSON both are always escaped
_sse_line_end = re.compile(rb"\r\n|\n|\r")


class FrameTooLarge(ValueError):
    """A frame went on for longer than the bound."""


class Frames(Protocol):
    """A splitter; made anew for each stream."""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes. Raises FrameTooLarge."""

    def rest(self) -> list[bytes]:
        """The stream has ended: the frame whose end did not come, if there is one."""


class _Lines:
    __slots__ = ("_ends", "_limit", "_scanned", "rest")

    def __init__(self, ends: re.Pattern[bytes], limit: int) -> None:
        self.rest = b""
        self._ends = ends
        self._limit = limit
        self._scanned = 0  # no line ends in `rest` before here: keeps long lines linear

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self.rest + data if self.rest else data
        lines: list[bytes] = []
        start = 0
        for end in self._ends.finditer(buffer, self._scanned):
            if end[0] == b"\r" and end.end() == len(buffer):
                break  # its LF may be on the way
            lines.append(buffer[start : end.start()])
            start = end.end()
        self.rest = buffer[start:]
        self._scanned = len(self.rest) - self.rest.endswith(b"\r")
        if len(self.rest) > self._limit:
            raise FrameTooLarge(f"a line of more than {self._limit} bytes")
        return lines


class JsonLines:
    """One JSON value a line (LF, CRLF), as Ollama and vLLM stream them; vLLM once ended each with a NUL instead."""

    __slots__ = ("_lines",)

    def __init__(self, limit: int = DEFAULT_FRAME_BYTES) -> None:
        self._lines = _Lines(_json_line_end, limit)

    def feed(self, data: bytes) -> list[bytes]:
        return [line for line in self._lines.feed(data) if line.strip()]

    def rest(self) -> list[bytes]:
        rest, self._lines.rest = self._lines.rest, b""
        return [rest] if rest.strip() else []


class SseData:
    """The data of each event; comments, names and empty events are passed over. Lines end in LF, CRLF or CR.

    Source: the HTML standard, "Interpreting an event stream".
    """

    __slots__ = ("_data", "_limit", "_lines", "_size")

    def __init__(self, limit: int = DEFAULT_FRAME_BYTES) -> None:
        self._lines = _Lines(_sse_line_end, limit)
        self._data: list[bytes] = []  # of the event whose end has not come
        self._size = 0
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        frames: list[bytes] = []
        for line in self._lines.feed(data):
            self._take(line, frames)
        return frames

    def rest(self) -> list[bytes]:
        frames: list[bytes] = []
        rest, self._lines.rest = self._lines.rest.removesuffix(b"\r"), b""
        self._take(rest, frames)
        self._take(b"", frames)
        return frames

    def _take(self, line: bytes, frames: list[bytes]) -> None:
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
                if self._size > self._limit:
                    raise FrameTooLarge(f"an event of more than {self._limit} bytes")
        elif self._data:
            frames.append(b"\n".join(self._data))
            self._data.clear()
            self._size = 0
