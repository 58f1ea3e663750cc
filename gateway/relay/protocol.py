"""uvicorn's HTTP protocol with bounds on what a client may do outside of a request."""

import asyncio
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from core.errors import GatehouseError, InvalidRequest, Unavailable, error_headers, render_openai
from gateway.relay.door import ABORT_EXTENSION
from gateway.relay.guards import Message, Receive

_HARD_CAP_MARGIN: Final = 256
_DISCARD_SECONDS: Final = 10.0
_upgrade_header = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """Bounds of one connection: seconds, bytes, and how many connections there may be."""

    head_deadline_seconds: float = 10.0
    head_bytes: int = 64 * 1024
    connection_cap: int = 4096
    discard_bytes: int = 64 * 1024 * 1024  # of a body whose request was refused already


class HeadTooLarge(InvalidRequest):
    status: ClassVar[int] = 431
    code: ClassVar[str] = "headers_too_large"
    default_message: ClassVar[str] = "The request's headers are larger than this gateway accepts."


class HeadTimeout(InvalidRequest):
    status: ClassVar[int] = 408
    code: ClassVar[str] = "request_timeout"
    default_message: ClassVar[str] = "The request's headers did not arrive in time."


class BrokenHttp(InvalidRequest):
    code: ClassVar[str] = "invalid_http"
    default_message: ClassVar[str] = "This is not an HTTP request."


class TooManyConnections(Unavailable):
    code: ClassVar[str] = "too_many_connections"
    default_message: ClassVar[str] = "This gateway process has as many connections as it takes."


class GuardedProtocol(HttpToolsProtocol):
    """One client connection. `check` is called about once a second for each: no timer of its own."""

    limits: ClassVar[ProtocolLimits] = ProtocolLimits()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's is one in all but name
        self._in_message = False
        self._head_since: float | None = self.loop.time()  # waiting for the rest of a head since then
        self._head_bytes = 0
        self._discarded = 0
        self._discarding_since: float | None = None
        over = len(self.connections) - self.limits.connection_cap
        if over > _HARD_CAP_MARGIN:
            self.transport.abort()  # so many that even an answer is too much
        elif over > 0:
            self.app = _too_many_connections

    def check(self, now: float) -> None:
        """Close what has taken too long; `now` is loop time."""
        if self.transport.is_closing():
            return
        if self._head_since is not None and now - self._head_since > self.limits.head_deadline_seconds:
            if self._head_bytes:
                self._end_with(HeadTimeout())
            else:
                self.transport.close()  # it never said anything
        elif self._discarding_since is not None and now - self._discarding_since > _DISCARD_SECONDS:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._in_message and (b"pgrade:" in data or b"PGRADE:" in data):
            data = _without_upgrade(data)
        super().data_received(data)
        if self._head_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes and not self.transport.is_closing():
                self._end_with(HeadTooLarge())
        elif not self._in_message and not _answering(self.cycle):
            self._head_since = self.loop.time()  # blank lines: the keep-alive timer is off, so the head's is on

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = True
        self._head_bytes = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_headers_complete(self) -> None:
        self._head_since = None
        self.scope[ABORT_EXTENSION] = self.transport.abort  # type: ignore[typeddict-unknown-key]  # ASGI leaves room for servers' own
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            # Refused before it was whole. The rest is read and thrown away for a while: closing on
            # unread bytes would reset the connection, and the client would never see the refusal.
            if self._discarding_since is None:
                self._discarding_since = self.loop.time()
            self._discarded += len(body)
            if self._discarded > self.limits.discard_bytes:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._discarding_since = None
        self._discarded = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if _answering(self.cycle):
            self.transport.abort()  # an answer is under way; a second one inside it would corrupt it
        else:
            self._end_with(BrokenHttp())

    def _end_with(self, error: GatehouseError) -> None:
        body = render_openai(error)
        headers = [*error_headers(error), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", body]
        self.transport.write(b"".join(lines))
        self.transport.close()


def _answering(cycle: RequestResponseCycle | None) -> bool:
    """Whether a response is under way; there is no cycle before the first request."""
    return cycle is not None and not cycle.response_complete


def _without_upgrade(data: bytes) -> bytes:
    """`data` with an Upgrade header at its beginning made harmless.

    Some clients (Java's, curl --http2) offer h2c on a plain POST. The parser then takes the body for
    the other protocol's bytes; whoever does not upgrade has to read on as if nothing had been offered.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        head_end = len(data)
    return _upgrade_header.sub(b"\r\nx-offer:", data[:head_end]) + data[head_end:]


async def _too_many_connections(scope: Any, receive: Receive, send: Any) -> None:
    error = TooManyConnections(retry_after_seconds=1.0)
    body = render_openai(error)
    headers = [*error_headers(error), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    start: Message = {"type": "http.response.start", "status": error.status, "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
