"""uvicorn, run in this process, with the guards that it does not have itself.

A listener of our own (SO_REUSEPORT, TCP_USER_TIMEOUT), a deadline and a bound for request heads, a
cap on connections that is told as 503, errors in OpenAI's shape also for broken HTTP, and a stop in
steps: say so, stop taking, let finish, end what is left with an error.
"""

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Final

import structlog
import uvicorn
from uvicorn.server import ServerState

from gateway.relay.clients import ClientGuard
from gateway.relay.door import Door
from gateway.relay.newcomers import hold_back_newcomers, take_all
from gateway.relay.protocol import GuardedProtocol, ProtocolLimits, with_limits
from gateway.relay.websocket import MESSAGE_BYTES

log = structlog.get_logger(__name__)

_BACKLOG: Final = 2048
_USER_TIMEOUT_MS: Final = 30_000
_LINUX_TCP_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)
_POLL_SECONDS: Final = 0.05
_HANDSHAKE_SECONDS: Final = 0.1  # for connections whose handshake has begun: a round trip
_LINGER_SECONDS: Final = 1.0  # for requests on their way on connections that have none, when no more are taken
_ENDING_SECONDS: Final = 2.0  # for error events to be written and settled, at the very end


class AddressUnavailable(Exception):
    """The relay cannot listen there; the message is a sentence for whoever started it."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the relay's server: seconds and counts."""

    head_deadline_seconds: float = 10.0
    keep_alive_seconds: float = 75.0
    connection_cap: int = 4096
    drain_notice_seconds: float = 5.0
    drain_deadline_seconds: float = 45.0
    message_bytes: int = MESSAGE_BYTES  # of one websocket message


@dataclass(slots=True)
class Listener:
    """A bound socket, and the lock by which relays of one installation know each other."""

    socket: socket.socket
    lock: IO[bytes]
    first: bool  # no other relay of this installation listens there

    def close(self) -> None:
        self.socket.close()
        self.lock.close()


def listen(host: str, port: int, lock_dir: Path) -> Listener:
    """Bind `host`:`port` so that further relays of this installation may share it.

    SO_REUSEPORT alone would let a second installation (or anything else of the same user) take half
    of the connections without a word. So the first relay, which is the one that gets the lock for
    itself, makes sure that nobody listens there; those that come later find the lock shared.
    Raises AddressUnavailable.
    """
    try:
        lock_dir.mkdir(parents=True, exist_ok=True)
        lock = (lock_dir / f"relay-{port}.lock").open("ab")
    except OSError as error:
        raise AddressUnavailable(f"the relay cannot write under {lock_dir}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits while the first one is binding
            return Listener(_bind(host, port, shared=True), lock, first=False)
        _bind(host, port, shared=False).close()
        bound = Listener(_bind(host, port, shared=True), lock, first=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
    except BaseException:
        lock.close()
        raise
    return bound


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressUnavailable(f"the relay cannot listen on {host!r}: that address is not known here") from error
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if _LINUX_TCP_USER_TIMEOUT is not None:
            # Accepted sockets inherit it: a client that vanished is noticed while bytes are under way.
            bound.setsockopt(socket.IPPROTO_TCP, _LINUX_TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        bound.bind(address)
        bound.listen(_BACKLOG)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise AddressUnavailable(
            f"the relay cannot listen on {host} port {port} ({error.strerror}): "
            "stop what uses it, or choose another with --port or GATEHOUSE_RELAY_PORT"
        ) from error
    return bound


def check_connections(state: ServerState, now: float) -> None:
    """Close what has taken too long on any connection; to be called about once a second, `now` is loop time."""
    for connection in list(state.connections):
        if isinstance(connection, GuardedProtocol):
            connection.check(now)


class RelayServer(uvicorn.Server):
    """Serves `door` on `listener` until told to stop, then drains.

    First SIGTERM or SIGINT: /readyz says no for `drain_notice_seconds` while requests are still
    taken, then no more are taken and those under way have `drain_deadline_seconds`; what is left then
    ends with an error. A second signal cuts each wait short.
    """

    def __init__(
        self, door: Door, listener: Listener, limits: ServerLimits, clients: ClientGuard | None = None
    ) -> None:
        self._door = door
        self._listener = listener
        self._limits = limits
        self._signals = 0
        self._notice_ends: float | None = None
        self._next_check = 0.0
        self._protocol = with_limits(
            ProtocolLimits(
                head_deadline_seconds=limits.head_deadline_seconds,
                keep_alive_seconds=limits.keep_alive_seconds,
                connection_cap=limits.connection_cap,
            ),
            clients,
        )
        config = uvicorn.Config(
            door,
            http=self._protocol,
            loop="uvloop",
            ws="none",  # the protocol above takes them over itself, where there is something to be had
            ws_max_size=limits.message_bytes,
            ws_per_message_deflate=False,  # small events: it would cost memory for each connection, and gain little
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
        )
        super().__init__(config)
        # Its notices are not ours to tell, and a line for each broken request is a way to fill a disk.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def run_until_stopped(self) -> None:
        """Serve; returns after draining."""
        await self.serve(sockets=[self._listener.socket])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # What is there now lives as long as the process: the collector need never look at it again.
        gc.collect()
        gc.freeze()
        log.info("relay_listening", address=self._listener.socket.getsockname()[:2], pid=os.getpid())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1

    async def on_tick(self, counter: int) -> bool:
        await super().on_tick(counter)
        now = asyncio.get_running_loop().time()
        if now >= self._next_check:
            self._next_check = now + min(1.0, self._limits.head_deadline_seconds / 4)
            check_connections(self.server_state, now)
        if self._signals == 0:
            return False
        if self._notice_ends is None:
            self._door.draining = True
            self._notice_ends = now + self._limits.drain_notice_seconds
            self._make_last()
            log.info("relay_draining", in_flight=self._door.in_flight)
        return self._signals > 1 or now >= self._notice_ends

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        hurried = self._signals
        self._make_last()  # where there was no notice
        await self._stop_listening(loop)
        await self._linger(loop.time() + _LINGER_SECONDS)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._door.close_idle()
        if not await self._idle_by(loop.time() + self._limits.drain_deadline_seconds, hurried=hurried):
            log.warning("relay_ends_requests", in_flight=self._door.in_flight)
            if not await self._end_all(loop.time() + _ENDING_SECONDS):
                for task in list(self.server_state.tasks):
                    task.cancel()
                await self._idle_by(loop.time() + _ENDING_SECONDS)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self._listener.close()
        log.info("relay_stopped")

    def _make_last(self) -> None:
        """Have clients go elsewhere for their next request, told so by the answer to this one."""
        self._protocol.draining = True
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedProtocol):
                connection.make_last()

    async def _stop_listening(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take no more connections, and lose none that the kernel has accepted for us.

        Closing a listener resets those in its queue. So a second descriptor keeps it open until the queue is empty.
        """
        listener = self._listener.socket.dup()
        listener.setblocking(False)
        for server in self.servers:
            server.close()
        if hold_back_newcomers(listener):
            deadline = loop.time() + _HANDSHAKE_SECONDS
            while loop.time() < deadline and self._signals <= 1:
                await self._take(loop, take_all(listener))
                await asyncio.sleep(_HANDSHAKE_SECONDS / 4)
        late = take_all(listener)
        # Where newcomers are not held back, what comes between the last look and the close is reset after all: begin
        # both with a whole slice of the processor, so that no other program runs in between.
        os.sched_yield()
        late += take_all(listener)
        listener.close()
        await self._take(loop, late)

    async def _take(self, loop: asyncio.AbstractEventLoop, accepted: list[socket.socket]) -> None:
        for one in accepted:
            with contextlib.suppress(OSError):  # it has gone again
                await loop.connect_accepted_socket(self._new_connection, one)

    def _new_connection(self) -> GuardedProtocol:
        return self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )

    async def _linger(self, deadline: float) -> None:
        """Wait for requests that were sent before their clients could know, until loop time `deadline`."""
        loop = asyncio.get_running_loop()
        while any(isinstance(one, GuardedProtocol) and one.waits for one in self.server_state.connections):
            if loop.time() >= deadline or self._signals > 1:
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _end_all(self, deadline: float) -> bool:
        """End what is under way, and what waited behind it on its connection; False at loop time `deadline`."""
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            self._door.abort_all()
            if await self._idle_by(loop.time() + _POLL_SECONDS):
                return True
        return False

    @property
    def _unsent(self) -> bool:
        """Whether bytes of an answer wait to be taken by a client."""
        return any(connection.transport.get_write_buffer_size() for connection in self.server_state.connections)

    async def _idle_by(self, deadline: float, *, hurried: int | None = None) -> bool:
        """Wait until no request is under way; False at loop time `deadline`, or on a further signal.

        With `hurried`, the signals so far, until clients have taken their answers, too.
        """
        loop = asyncio.get_running_loop()
        while (
            self.server_state.tasks
            or self._door.in_flight  # a request may be under way without a task
            or (hurried is not None and self._unsent)
        ):
            if loop.time() >= deadline or (hurried is not None and self._signals > hurried):
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True
