"""The relay's end of a client connection: uvicorn's HTTP protocol, bounded and made lean.

Bounds: a deadline, a size and a count for request heads, caps on connections (of all clients, and of
each), errors in OpenAI's shape also for broken HTTP. Lean: a response's head and first bytes are one
write, idle connections are looked after by one sweep instead of a timer each, and a client that
leaves is told to the application by a call instead of a waiting task.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from core.errors import GatehouseError, error_headers, render_openai
from gateway.relay.client_head import OFFER, split_target, without_upgrade
from gateway.relay.clients import ClientGuard, TooManyOfClient, client_name
from gateway.relay.cycle import LeanCycle, answering
from gateway.relay.guards import ABORT, ON_LEAVING, WRITE
from gateway.relay.refusals import (
    BrokenHandshake,
    BrokenHttp,
    HeadTimeout,
    HeadTooLarge,
    TooManyConnections,
    counted,
    refuse_with,
)
from gateway.relay.routes import REALTIME
from gateway.relay.websocket import GuardedWebSocket, handshake_fault, offers_websocket

_HARD_CAP_MARGIN: Final = 256
_MOST_WAITING: Final = 8  # requests of one connection that wait for the one before them, before it is read no further
_DISCARD_SECONDS: Final = 10.0
_LITTLE_BYTES: Final = 64 * 1024
_WIRE_PER_BODY: Final = 9  # bytes on the wire for one of the body, were it sent in chunks of one
_VERSIONS: Final = ("1.1", "1.0")
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


@dataclass(frozen=True, slots=True)
class ProtocolLimits:
    """Bounds of one connection: seconds, bytes, and how many connections there may be."""

    head_deadline_seconds: float = 10.0
    keep_alive_seconds: float = 75.0
    head_bytes: int = 64 * 1024
    head_count: int = 200  # headers; browsers and clients send about 20
    connection_cap: int = 4096
    discard_bytes: int = 64 * 1024 * 1024  # of a body whose request was refused already
    send_deadline_seconds: float = 60.0  # in which a client takes at least a little of what it was told last


class _TooManyHeaders(Exception):
    """Raised through the parser, which hands it on as the cause of its own error."""


class _OtherVersion(Exception):
    """HTTP/0.9 has no status to be refused with, and no later version begins with such a line."""


class _EarlyFrames(Exception):
    """Bytes after the head of a websocket's handshake, which is not answered yet."""


class GuardedProtocol(HttpToolsProtocol):
    """One client connection. `check` is to be called about once a second: there are no timers of its own."""

    limits: ClassVar[ProtocolLimits] = ProtocolLimits()
    clients: ClassVar[ClientGuard | None] = None
    websocket_class: ClassVar[type[GuardedWebSocket]] = GuardedWebSocket
    draining: ClassVar[bool] = False
    """The server is about to stop: every answer from here on says that it is the connection's last."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's is one in all but name
        self._running: LeanCycle | None = None  # the request that is answered; later ones wait in `pipeline`
        self._unstarted: tuple[LeanCycle, Any] | None = None  # a request whose head has come, in this very read
        self._in_message = False
        self._head_since: float | None = self.loop.time()  # waiting for the rest of a head since then
        self._head_bytes = 0
        self._idle_since: float | None = None  # between requests since then
        self._discarded = 0
        self._discarding_since: float | None = None
        self._wire_bytes = self._body_bytes = 0  # of the body: as it came, and without its framing
        self._websocket_app: Any = None  # a websocket is asked for, and this is to have it
        self._stuck_since: float | None = None  # so much of the last answer was not taken by then
        self._stuck_bytes = 0
        self._counted: str | None = None  # the client that this connection counts for
        self._proxy: str | None = None  # a trusted proxy: its requests count, each for its own client
        over = len(self.connections) - self.limits.connection_cap
        refusal: GatehouseError = TooManyConnections(retry_after_seconds=1.0)
        if self.clients is not None and self.client is not None:
            host = self.client[0]
            if self.clients.is_proxy(host):
                self._proxy = host
            else:
                self._counted = client_name(host)
                over_own = self.clients.enter(self._counted)
                if over_own > max(over, 0):
                    over, refusal = over_own, TooManyOfClient(retry_after_seconds=1.0)
        if over > _HARD_CAP_MARGIN:
            self.transport.abort()  # so many that even an answer is too much
        elif over > 0:
            self.app = refuse_with(refusal, close=True)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.forget_client()
        running = self._running
        if running is None or running.response_complete:
            return
        # uvicorn tells the request that was read last, which need not be the one that is answered.
        running.disconnected = True
        running.message_event.set()
        if running.leaving is not None:
            running.leaving()

    def forget_client(self) -> None:
        """The connection counts for its client no longer; whoever takes a socket over from here calls it at the end."""
        counted, self._counted = self._counted, None
        if counted is not None and self.clients is not None:
            self.clients.leave(counted)

    @property
    def waits(self) -> bool:
        """No request is under way on it, but one may be on its way."""
        return not self.transport.is_closing() and not answering(self.cycle)

    def make_last(self) -> None:
        """The answer that is under way is the last of this connection."""
        if answering(self.cycle):
            self.cycle.keep_alive = False

    def check(self, now: float) -> None:
        """Close what has taken too long; `now` is loop time."""
        limits = self.limits
        self._check_taking(now)
        if self.transport.is_closing():
            return
        if self._head_since is not None and now - self._head_since > limits.head_deadline_seconds:
            if answering(self.cycle):
                return  # the beginning of a pipelined request: its time has not come
            if self._head_bytes:
                self._end_with(HeadTimeout())
            else:
                self.transport.close()  # it never said anything
        elif self._idle_since is not None and now - self._idle_since > limits.keep_alive_seconds:
            self.transport.close()
        elif self._discarding_since is not None and now - self._discarding_since > _DISCARD_SECONDS:
            self.transport.abort()

    def _check_taking(self, now: float) -> None:
        """Drop a client that does not take its last answer. While one is under way, the application looks after it."""
        if not self.flow.write_paused or answering(self.cycle):
            self._stuck_since = None
            return
        unsent = self.transport.get_write_buffer_size()
        if self._stuck_since is None or unsent <= self._stuck_bytes - _LITTLE_BYTES:
            self._stuck_since, self._stuck_bytes = now, unsent
        elif now - self._stuck_since > self.limits.send_deadline_seconds:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        if self._websocket_app is not None:
            return  # the connection is being closed
        if not self._in_message and (b"pgrade:" in data or b"PGRADE:" in data):
            data = without_upgrade(data)
        in_body = self._in_message and self._head_since is None
        self._wire_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end_with(HeadTooLarge() if isinstance(error.__context__, _TooManyHeaders) else BrokenHttp())
            self._unstarted = None  # what came before the fault in the same read is not believed either
            return
        except httptools.HttpParserUpgrade as upgrade:
            # Refused by going on as if it had not been offered.
            if self._asked_for_websocket() and upgrade.args[0] < len(data):
                self._end_with(BrokenHttp())  # bytes after the head, which is not answered yet
                return
        if self._asked_for_websocket():
            self._become_websocket()
            return
        unstarted, self._unstarted = self._unstarted, None
        if unstarted is not None:
            self._start(*unstarted)
        if self._head_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._end_with(HeadTooLarge())
        elif in_body and self._wire_bytes > self.limits.head_bytes + _WIRE_PER_BODY * self._body_bytes:
            self.transport.abort()  # trailers, or extensions of chunks, without end
        elif not self._in_message and not answering(self.cycle) and self._idle_since is None:
            self._head_since = self.loop.time()  # blank lines: a head is on its way

    def on_message_begin(self) -> None:
        if self._asked_for_websocket():
            raise _EarlyFrames
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_message = True
        self._head_bytes = self._wire_bytes = self._body_bytes = 0
        if self._head_since is None:
            self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_since is None:
            return  # a trailer: whoever is before us has not looked at it, so it must not count as a header
        if len(self.headers) >= self.limits.head_count:
            raise _TooManyHeaders
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As uvicorn's, less what the relay has no use for (websockets, root path, its concurrency limit)."""
        self._head_since = None
        parser = self.parser
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise _OtherVersion
        url = self.url
        path, raw_path, query = split_target(url)
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": parser.get_method().decode("ascii"),
            "root_path": "",
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
            ABORT: self.transport.abort,
        }
        self.scope = scope  # type: ignore[assignment]  # ASGI leaves room for a server's own keys
        app = self.app if self._proxy is None else self._app_for_proxied(scope)
        before: RequestResponseCycle | None = self.cycle
        if (
            self.takes_websocket(path)
            and scope["method"] == "GET"
            and not answering(before)
            and self._wants_websocket()
        ):
            self._websocket_app = app
            return
        self.cycle = cycle = LeanCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and not self.draining and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope[ON_LEAVING] = cycle.on_leaving
        scope[WRITE] = cycle.write
        if answering(before):
            # Pipelined: its turn comes when the one before it is answered. As long as it is read on, a client that
            # leaves is noticed.
            if len(self.pipeline) >= _MOST_WAITING:
                self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))
        else:
            self._running = cycle
            self._unstarted = (cycle, app)

    def _start(self, cycle: LeanCycle, app: Any) -> None:
        """Begin to answer: without a task where the application can (Door.quick), else in one."""
        quick = None if cycle.more_body else getattr(app, "quick", None)
        if quick is not None and quick(cycle, partial(self._start_asgi_task, cycle)):
            self.flow.resume_reading()  # which a large body has paused
        else:
            self._start_asgi_task(cycle, app)

    def _asked_for_websocket(self) -> bool:
        return self._websocket_app is not None

    def takes_websocket(self, path: str) -> bool:
        """Whether a websocket may be opened at this address."""
        return path == REALTIME

    def _wants_websocket(self) -> bool:
        """Refused connections are told so in HTTP."""
        return self.app is self.config.loaded_app and offers_websocket(self.headers, offer=OFFER)

    def _become_websocket(self) -> None:
        """Hand the connection over, with the request as it was."""
        fault = handshake_fault(self.headers)
        if fault is not None:
            self._end_with(BrokenHandshake(f"This is not the beginning of a websocket. {fault}"))
            return
        self.connections.discard(self)
        websocket = self.websocket_class(self.config, self.server_state, self.app_state, self.loop)
        websocket.app = self._websocket_app
        websocket.on_lost = self.forget_client
        websocket.connection_made(self.transport)
        lines = [b"GET ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            lines += [b"upgrade" if name == OFFER else name, b": ", value, b"\r\n"]
        websocket.data_received(b"".join([*lines, b"\r\n"]))
        self.transport.set_protocol(websocket)
        if not websocket.handshake_initiated:
            self.transport.close()

    def _app_for_proxied(self, scope: dict[str, Any]) -> Any:
        """The application, with the request counted for the client that the proxy names."""
        clients, proxy = self.clients, self._proxy
        assert clients is not None
        assert proxy is not None
        host = clients.client_behind(proxy, self.headers)
        if host != proxy:
            scope["client"] = (host, 0)  # what is only for this machine must not be for whoever comes through it
        return counted(self.app, clients, client_name(host))

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            # Refused before it was whole. The rest is read and thrown away for a while: closing on
            # unread bytes would reset the connection, and the client would never see the refusal.
            self._discarded += len(body)
            if self._discarded > self.limits.discard_bytes:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._discarding_since = None
        self._discarded = 0
        if not self._asked_for_websocket():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._running = cast(LeanCycle, cycle)
            self._start(self._running, app)
        else:
            now = self._idle_since = self.loop.time()
            if self._in_message:
                if self._head_since is None:
                    self._discarding_since = now
                else:
                    self._head_since = now  # the next request has begun; from here on it is waited for

    def send_400_response(self, msg: str) -> None:
        self._end_with(BrokenHttp())

    def _unheard(self, cycle: RequestResponseCycle) -> bool:
        """Whether a request cannot have an answer yet: it is not whole, or what it came with is broken."""
        if self._unstarted is not None:
            return True
        return cycle is self._running and cycle.more_body and not cycle.response_started

    def _end_with(self, error: GatehouseError) -> None:
        if self.transport.is_closing():
            return
        if answering(self.cycle) and not self._unheard(self.cycle):
            self.transport.abort()  # an answer is under way; a second one inside it would corrupt it
            return
        body = render_openai(error)
        headers = [*error_headers(error), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        lines = [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", body]
        self.transport.write(b"".join(lines))
        self.transport.close()


def with_limits(limits: ProtocolLimits, clients: ClientGuard | None = None) -> type[GuardedProtocol]:
    """The protocol class of one server; uvicorn makes its instances itself."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits, "clients": clients})
