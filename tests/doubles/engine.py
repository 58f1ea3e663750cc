"""An engine that misbehaves to order: raw HTTP/1.1 over asyncio, every byte decided by a test."""

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Received:
    """A request as the engine saw it. Header names are in lower case."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The engine's end of one connection, for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.keep_alive = True

    async def send(self, *pieces: bytes) -> None:
        """Write the pieces, each seen by the other side before the next is written (same event loop)."""
        for piece in pieces:
            if self._writer.is_closing():
                raise ConnectionResetError
            self._writer.write(piece)
            await self._writer.drain()
            for _ in range(4):
                await asyncio.sleep(0)

    async def head(self, status: int = 200, *headers: tuple[str, str]) -> None:
        """Status line and headers."""
        await self.send(head(status, *headers))

    async def chunk(self, *pieces: bytes) -> None:
        """Chunks of a chunked body."""
        for piece in pieces:
            await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def end_chunks(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def stall(self) -> None:
        """Say nothing until the other side closes."""
        self.keep_alive = False
        with contextlib.suppress(OSError):
            while await self._reader.read(1 << 16):
                pass
        self._writer.close()

    def die(self) -> None:
        """Reset the connection, as a killed process does."""
        self.keep_alive = False
        self._writer.transport.abort()

    def close(self) -> None:
        """End the connection in order."""
        self.keep_alive = False
        self._writer.close()

    def check(self) -> None:
        """Raises ConnectionResetError when the other side has closed, as an engine looks between two tokens."""
        if self._reader.at_eof() or self._writer.is_closing():
            raise ConnectionResetError

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken."""
        return self._writer.transport.get_write_buffer_size()


Script = Callable[[Received, Wire], Awaitable[None]]


class EngineDouble:
    """Listens on a free port of 127.0.0.1; each request is answered by the next script, the last one for ever."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts: list[Script] = list(scripts)
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        """Listens for https where set before the start."""
        self.received: list[Received] = []
        self.accepted = 0
        self.open = 0
        """Connections that are open now, as far as this side knows."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        self.open += 1
        try:
            await self._talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the other side has gone, or the test is over
        finally:
            self.open -= 1
            self._tasks.discard(task)
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await _read_request(reader)
            self.received.append(request)
            script = self.scripts[min(len(self.received), len(self.scripts)) - 1]
            wire = Wire(reader, writer)
            await script(request, wire)
            if not wire.keep_alive:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
                return


async def _read_request(reader: asyncio.StreamReader) -> Received:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:] if line)]
    length = next((int(value) for name, value in headers if name == "content-length"), 0)
    return Received(method, path, headers, await reader.readexactly(length))


def head(status: int = 200, *headers: tuple[str, str]) -> bytes:
    """A response's head, as bytes."""
    return "".join([f"HTTP/1.1 {status} X\r\n", *(f"{name}: {value}\r\n" for name, value in headers), "\r\n"]).encode()


def answers(
    body: bytes | dict[str, Any],
    *,
    status: int = 200,
    headers: Sequence[tuple[str, str]] = (),
    content_type: str = "application/json",
    gzipped: bool = False,
) -> Script:
    """A script: one whole answer with the right length."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = [*headers]
    if gzipped:
        content = gzip.compress(content)
        extra.append(("Content-Encoding", "gzip"))

    async def script(_request: Received, wire: Wire) -> None:
        length = str(len(content))
        await wire.send(head(status, ("Content-Type", content_type), ("Content-Length", length), *extra) + content)

    return script


def streams(*pieces: bytes, then: Callable[[Wire], Awaitable[None]] | None = None, gzipped: bool = False) -> Script:
    """A script: an event stream in chunks cut as the pieces are; ends it, or does `then` instead."""
    sent: Iterable[bytes] = _gzip_pieces(pieces) if gzipped else pieces

    async def script(_request: Received, wire: Wire) -> None:
        extra = (("Content-Encoding", "gzip"),) if gzipped else ()
        await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"), *extra)
        await wire.chunk(*sent)
        if then is None:
            await wire.end_chunks()
        else:
            await then(wire)

    return script


def _gzip_pieces(pieces: Iterable[bytes]) -> list[bytes]:
    whole = gzip.compress(b"".join(pieces))
    return [whole[start : start + 7] for start in range(0, len(whole), 7)]


async def stall(_request: Received, wire: Wire) -> None:
    """A script: takes the request and never answers."""
    await wire.stall()


async def die(_request: Received, wire: Wire) -> None:
    """A script: takes the request and resets the connection."""
    wire.die()


def completion(text: str = "Hello", *, model: str = "served", usage: tuple[int, int] | None = (7, 3)) -> dict[str, Any]:
    """A whole chat completion; `usage` is input and output tokens."""
    body: dict[str, Any] = {
        "id": "chatcmpl-engine",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
    }
    if usage is not None:
        body["usage"] = _usage(usage)
    return body


def chunk(
    text: str | None = None,
    *,
    model: str = "served",
    role: bool = False,
    finish: str | None = None,
    usage: tuple[int, int] | None = None,
) -> bytes:
    """One event of a streamed chat; with `usage`, the extra chunk that include_usage brings."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if role else {}
    if text is not None:
        delta["content"] = text
    body: dict[str, Any] = {
        "id": "chatcmpl-engine",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": model,
        "choices": [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    if usage:
        body["usage"] = _usage(usage)
    return event(json.dumps(body, ensure_ascii=False).encode())


def tool_chunk(*calls: dict[str, Any], model: str = "served") -> bytes:
    """One event of a streamed chat that has these pieces of tool calls."""
    choice = {"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": None}
    return event(json.dumps({"id": "x", "model": model, "choices": [choice]}).encode())


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def chat_stream(*texts: str, usage: tuple[int, int] | None = (7, 3), model: str = "served") -> list[bytes]:
    """The events of a streamed chat as an engine sends them when usage is asked for."""
    events = [chunk(role=True, model=model), *(chunk(text, model=model) for text in texts)]
    events.append(chunk(finish="stop", model=model))
    if usage is not None:
        events.append(chunk(usage=usage, model=model))
    return [*events, DONE]


def _usage(counts: tuple[int, int]) -> dict[str, int]:
    return {"prompt_tokens": counts[0], "completion_tokens": counts[1], "total_tokens": sum(counts)}
