"""The HTTP/1.1 client that carries requests to engines.

Our own because carrying bytes is what the relay is for: keep-alive pools per address, deadlines in
every phase, back-pressure (a consumer that does not read stops the engine's socket), bounds on what
an engine may send, one safe retry on a stale connection, and a close that is seen at once.
"""

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from core.tls import engine_context, tls_failure
from gateway.relay.connection import Connection, ConnectionLimits
from gateway.relay.memory import MemoryBudget
from gateway.relay.response import UpstreamResponse
from gateway.relay.upstream_errors import ConnectFailed, ConnectionLost, DeadlinePassed, Phase, UpstreamError


class Origin(NamedTuple):
    """Where connections go; one pool each."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Bounds of one client."""

    connections_per_origin: int = 4096  # as many as a relay has clients, were they all to ask one engine
    idle_seconds: float = 60.0
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


@dataclass(slots=True)
class UpstreamCounters:
    """Since the start; for metrics."""

    opened: int = 0
    reused: int = 0
    stale: int = 0  # reused ones that turned out closed, and were replaced


class UpstreamClient:
    """Pools of connections; belongs to the event loop it is first used on."""

    def __init__(
        self,
        limits: UpstreamLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        memory: MemoryBudget | None = None,
    ) -> None:
        self.counters = UpstreamCounters()
        self.memory = memory or MemoryBudget()
        """What whole answers are held within."""
        self._tls = tls
        self._limits = limits or UpstreamLimits()
        self._pools: dict[Origin, _Pool] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def tls(self) -> ssl.SSLContext:
        """How endpoints behind https are spoken to; by what the system trusts unless told otherwise."""
        if self._tls is None:
            self._tls = engine_context(None)
        return self._tls

    @tls.setter
    def tls(self, tls: ssl.SSLContext) -> None:
        self._tls = tls

    async def send(self, origin: Origin, head: bytes, body: bytes, *, connect_seconds: float) -> "PendingResponse":
        """Send one request; returns once it is written.

        `head` is everything up to and including the blank line. Raises UpstreamError.
        """
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = _Pool(origin, self._limits, self.counters)
            self._sweep_later()
        connection = pool.take()
        if connection is not None:
            self.counters.reused += 1
            return PendingResponse(pool, connection, head, body, connect_seconds, reused=True)
        connection = await pool.acquire(connect_seconds, fresh=False)
        return PendingResponse(pool, connection, head, body, connect_seconds, reused=False)

    def send_now(self, origin: Origin, head: bytes, body: bytes, *, connect_seconds: float) -> "PendingResponse | None":
        """`send` over a connection that is open and idle; None where there is none."""
        pool = self._pools.get(origin)
        connection = pool.take() if pool is not None else None
        if pool is None or connection is None:
            return None
        self.counters.reused += 1
        return PendingResponse(pool, connection, head, body, connect_seconds, reused=True)

    async def request(
        self, origin: Origin, head: bytes, body: bytes, *, connect_seconds: float, head_seconds: float
    ) -> UpstreamResponse:
        """Send one request; returns when the response's head is there. Raises UpstreamError."""
        pending = await self.send(origin, head, body, connect_seconds=connect_seconds)
        try:
            response = await pending.wait(head_seconds)
        except BaseException:
            pending.close()
            raise
        assert response is not None
        return response

    def connections(self, origin: Origin) -> int:
        """Open connections to `origin`, idle ones included."""
        pool = self._pools.get(origin)
        return pool.open if pool else 0

    def idle_connections(self, origin: Origin) -> int:
        """Those that wait for a request."""
        pool = self._pools.get(origin)
        return pool.idle if pool else 0

    async def aclose(self) -> None:
        """Close every connection, also those in use."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for pool in self._pools.values():
            pool.abort_all()
        await asyncio.sleep(0)  # lets the transports say so

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._limits.idle_seconds / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        before = asyncio.get_running_loop().time() - self._limits.idle_seconds
        for origin, pool in list(self._pools.items()):
            pool.close_idle(before)
            if pool.unused:
                del self._pools[origin]
        if self._pools:
            self._sweep_later()


class PendingResponse:
    """A request that is sent; whoever holds one must `close` it unless `wait` has given the response.

    When a connection from the pool turns out to have been closed before a byte came back, the engine has not
    answered: the request is sent once more, on a fresh connection.
    """

    __slots__ = ("_body", "_connect_seconds", "_connection", "_error", "_head", "_pool", "_response", "_reused")

    def __init__(
        self, pool: "_Pool", connection: Connection, head: bytes, body: bytes, connect_seconds: float, *, reused: bool
    ) -> None:
        self._pool = pool
        self._connection = connection
        self._head = head
        self._body = body
        self._connect_seconds = connect_seconds
        self._reused = reused
        self._error: UpstreamError | None = None
        self._response = connection.start(head, body)

    async def wait(self, seconds: float, *, soft: bool = False) -> UpstreamResponse | None:
        """The response once its head is there.

        Raises UpstreamError; with `soft`, None instead of DeadlinePassed, and it may be asked again.
        """
        loop = self._connection.loop
        until = loop.time() + seconds
        try:
            return self._response if await self._response.wait_head(seconds, soft=soft) else None
        except ConnectionLost:
            if not self._reused or self._connection.touched:
                raise
        self._reused = False
        self._pool.counters.stale += 1
        self._connection = await self._pool.acquire(self._connect_seconds, fresh=True)
        if self._error is not None:  # meanwhile
            self._connection.abort()
            raise self._error
        self._response = self._connection.start(self._head, self._body)
        left = max(0.0, until - loop.time())
        return self._response if await self._response.wait_head(left, soft=soft) else None

    @property
    def response(self) -> UpstreamResponse:
        """What has come of the response; its head may still be missing."""
        return self._response

    def fail(self, error: UpstreamError) -> None:
        """End it with `error`; a pending `wait` raises it."""
        self._reused = False
        self._error = error
        self._response.fail(error)

    def close(self) -> None:
        """Give it up: the connection is closed."""
        self._response.close()


class _Pool:
    """Connections to one origin; the most recently used idle one is taken first."""

    def __init__(self, origin: Origin, limits: UpstreamLimits, counters: UpstreamCounters) -> None:
        self.open = 0  # connected or connecting
        self._origin = origin
        self.counters = counters
        self._limits = limits
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def unused(self) -> bool:
        return self.open == 0 and not self._waiters

    @property
    def idle(self) -> int:
        return len(self._idle)

    def take(self) -> Connection | None:
        """An idle connection, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def acquire(self, seconds: float, *, fresh: bool) -> Connection:
        """A connection within `seconds`; `fresh`: not one that has been used.

        Raises ConnectFailed or DeadlinePassed.
        """
        try:
            async with asyncio.timeout(seconds):
                while self.open >= self._limits.connections_per_origin:
                    if fresh and self._idle:
                        self._idle.pop().abort()
                    waiter = asyncio.get_running_loop().create_future()
                    self._waiters.append(waiter)
                    try:
                        await waiter
                    except BaseException:
                        if waiter in self._waiters:
                            self._waiters.remove(waiter)
                        elif not waiter.cancelled():
                            self._wake_one()  # what this one was woken for is still there
                        raise
                    if not fresh and (connection := self.take()) is not None:
                        return connection
                return await self._connect()
        except TimeoutError as error:
            raise DeadlinePassed(Phase.CONNECT) from error

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        origin = self._origin
        self.open += 1
        made: Connection | None = None
        try:
            _, made = await loop.create_connection(
                lambda: Connection(loop, self._limits.connection, on_free=self._freed, on_closed=self._closed),
                origin.host,
                origin.port,
                ssl=origin.tls,
            )
        except OSError as error:
            raise ConnectFailed(tls_failure(error) or str(error)) from error
        finally:
            if made is None:
                self.open -= 1
                self._wake_one()
        if not made.usable:  # accepted and closed at once
            self.open -= 1
            self._wake_one()
            raise ConnectFailed("closed as soon as it was open")
        self.counters.opened += 1
        self._all.add(made)
        return made

    def close_idle(self, before: float) -> None:
        """Close those idle since before loop time `before`."""
        for connection in self._idle:
            if connection.idle_since <= before:
                connection.abort()

    def abort_all(self) -> None:
        for connection in list(self._all):
            connection.abort()

    def _freed(self, connection: Connection) -> None:
        self._idle.append(connection)
        self._wake_one()

    def _closed(self, connection: Connection) -> None:
        if connection not in self._all:
            return  # lost before `_connect` returned, which has counted it
        self._all.discard(connection)
        self.open -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
