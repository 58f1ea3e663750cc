"""Small HTTP requests to engines: one connection each, a deadline over the whole, a bounded answer."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from typing import Final

import httptools

from core.tls import tls_failure
from gpupool.engines.base import WireRequest

_LARGEST_ANSWER_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's whole answer."""

    status: int
    body: bytes


class ProbeFailed(Exception):
    """No whole answer came in time; the message says why, for the middle of a sentence."""


class _Collector:
    """What httptools calls back into."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False
        self.ends_by_close = False  # its head came whole and gives no length: the end of the connection is its end
        self._framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.ends_by_close = not self._framed

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def ask(
    port: int,
    request: WireRequest,
    *,
    deadline_seconds: float,
    host: str = "127.0.0.1",
    authorization: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Send `request` and read the answer; over https with `tls`. Raises ProbeFailed."""
    try:
        async with asyncio.timeout(deadline_seconds):
            return await _ask(host, port, request, authorization, tls)
    except TimeoutError:
        raise ProbeFailed(f"no answer to {request.path} within {deadline_seconds:g} s") from None
    except OSError as error:
        raise ProbeFailed(f"{request.path}: {tls_failure(error) or error.strerror or error}") from error
    except httptools.HttpParserError as error:
        raise ProbeFailed(f"{request.path}: the answer is not HTTP") from error


async def _ask(
    host: str, port: int, request: WireRequest, authorization: str | None, tls: ssl.SSLContext | None
) -> Answer:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        name = f"[{host}]" if ":" in host else host
        head = f"{request.method} {request.path} HTTP/1.1\r\nhost: {name}:{port}\r\nconnection: close\r\n"
        if authorization is not None:
            head += f"authorization: {authorization}\r\n"
        if request.body:
            head += f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n"
        writer.write(head.encode("ascii") + b"\r\n" + request.body)
        collector = _Collector()
        parser = httptools.HttpResponseParser(collector)
        while not collector.complete:
            data = await reader.read(65_536)
            if not data:
                break
            parser.feed_data(data)
            if len(collector.body) > _LARGEST_ANSWER_BYTES:
                raise ProbeFailed(f"the answer to {request.path} is too large")
        status: int = parser.get_status_code()
        if not collector.complete and not collector.ends_by_close:
            raise ProbeFailed(f"{request.path}: the connection was closed in mid-answer")
        return Answer(status, bytes(collector.body))
    finally:
        if tls is None:
            writer.close()
        else:
            writer.transport.abort()  # a close would wait for the other side to say good-bye in TLS's way
        with contextlib.suppress(OSError):
            await writer.wait_closed()
