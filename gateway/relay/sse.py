"""Server-sent events as bytes: cut where an event ends, however the network split them."""

import re
from typing import Final

DEFAULT_EVENT_BYTES: Final = 8 * 1024 * 1024

_two_line_ends = re.compile(rb"(\r\n|\n|\r(?!\n))(\r\n|\n|\r)")
_line_end = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(ValueError):
    """An event went on for longer than the bound."""


class EventSplitter:
    """Cuts a stream of bytes into events, each with the blank line that ends it.

    Lines may end in LF, CRLF or CR. Joined, the events and `rest` are exactly the bytes that were fed.
    """

    __slots__ = ("_limit", "_scanned", "rest")

    def __init__(self, limit: int = DEFAULT_EVENT_BYTES) -> None:
        self.rest = b""
        """The beginning of an event whose end has not come."""
        self._limit = limit
        self._scanned = 0  # no blank line begins in `rest` before here: keeps long events linear

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes. Raises EventTooLarge when the unfinished one exceeds the limit."""
        if not self.rest and data.find(b"\n\n") == len(data) - 2 > 0 and b"\r" not in data:
            return [data]  # as nearly always: one event at a time
        buffer = self.rest + data if self.rest else data
        events = self._split_any(buffer) if b"\r" in buffer else self._split_lf(buffer)
        if len(self.rest) > self._limit:
            raise EventTooLarge(f"an event of more than {self._limit} bytes")
        return events

    def _split_lf(self, buffer: bytes) -> list[bytes]:
        events: list[bytes] = []
        start = 0
        end = buffer.find(b"\n\n", self._scanned)
        while end >= 0:
            end += 2
            events.append(buffer[start:end])
            start = end
            end = buffer.find(b"\n\n", start)
        self.rest = buffer[start:]
        self._scanned = max(0, len(self.rest) - 1)
        return events

    def _split_any(self, buffer: bytes) -> list[bytes]:
        events: list[bytes] = []
        start = 0
        search_from = self._scanned
        while (ends := _two_line_ends.search(buffer, search_from)) is not None:
            if ends.end() == len(buffer) and ends[2] == b"\r" and ends[1] != b"\r":
                break  # where lines do not end in a bare CR, its LF is still on the way
            events.append(buffer[start : ends.end()])
            start = search_from = ends.end()
        self.rest = buffer[start:]
        self._scanned = max(0, len(self.rest) - 3)
        return events


def event_fields(event: bytes) -> tuple[bytes, bytes | None]:
    """The `event` name (empty: none) and the joined `data` of one event (None: it has none, a comment).

    Source: the HTML standard, "Interpreting an event stream".
    """
    name = b""
    data: list[bytes] = []
    for line in _line_end.split(event.removeprefix(b"\xef\xbb\xbf")):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return name, b"\n".join(data) if data else None


def with_data(event: bytes, data: bytes) -> bytes:
    """`event` with other data; its remaining lines stay. For the rare event that spans several lines."""
    others = [line for line in _line_end.split(event) if line and line.partition(b":")[0] != b"data"]
    lines = [*others, *(b"data: " + line for line in data.split(b"\n"))]
    return b"\n".join(lines) + b"\n\n"
