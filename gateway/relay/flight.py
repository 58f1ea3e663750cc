"""One exchange with an engine whose answer several requests are told: fan-out with a bound for each of them.

A task of the flight pulls the answer, as fast as its fastest member takes it. It goes on for as long as anyone wants
it. What was computed once is in the ledger once: on the row of the first member that is still there at the end.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Final

import structlog

from core.clock import Clock
from core.errors import GatehouseError, Unavailable
from gateway.relay.attempt import Soon, Write
from gateway.relay.context import logged_as
from gateway.relay.deadlines import Deadlines
from gateway.relay.dialects.base import error_answer, own_headers, render_error_event
from gateway.relay.engine_errors import error_of_transport
from gateway.relay.exchange import CLIENT_LEFT, KEEP_ALIVE, STREAM_HEADERS, Exchange, ResponseHead
from gateway.relay.plan import Outcome, Ready, Settlement, Usage, UsageSource
from gateway.relay.upstream_errors import DeadlinePassed, Phase

log = structlog.get_logger(__name__)

BOUND_BYTES: Final = 256 * 1024
"""What is kept of a stream for those who come late, and how far a member may fall behind the fastest."""

_AHEAD_BYTES: Final = 64 * 1024  # that the fastest member has not taken: the engine waits then
_REQUEST_ID: Final = b"x-request-id"


class ReadTooSlowly(Unavailable):
    code: ClassVar[str] = "read_too_slowly"
    default_message: ClassVar[str] = (
        "This answer is shared with identical requests, and was read too slowly to keep up with them."
    )


class Flight:
    """`exchange` makes what carries the first member's request; `on_closed` is called once nobody may join any more."""

    def __init__(self, first: Ready, exchange: Callable[[Ready], Exchange], on_closed: Callable[[], object]) -> None:
        # Headers, comments and deadlines are each member's own.
        shared = replace(first, ticket=self, response_headers=[], keep_alive=False, timeout_seconds=None)
        self.exchange = exchange(shared)
        self.head: ResponseHead | None = None
        self.over = False
        """All of the answer has been handed to the members."""
        self.settlement: Settlement | None = None
        self.payer: Member | None = None
        """On whose row the engine's usage is, once it is known."""
        self._first = first
        self._members: dict[Member, None] = {}  # in the order in which they came
        self._past: list[bytes] | None = []  # for those who come late
        self._past_bytes = 0
        self._on_closed = on_closed
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, member: "Member") -> None:
        """Tell a member the answer from its start; the first one starts it."""
        assert self._past is not None
        self._members[member] = None
        member.limit_bytes += self._past_bytes
        for chunk in self._past:
            member.put(chunk)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, member: "Member", error: GatehouseError | None = None) -> None:
        """A member wants no more of it: with the last one the exchange ends, with `error` where no client wished it."""
        if member not in self._members:
            return
        if self.settlement is None and len(self._members) == 1:
            assert self._task is not None
            self._task.cancel()
            self.exchange.close(error)
        del self._members[member]
        self.make_room()

    def is_first(self, ready: Ready) -> bool:
        """Whether it was this request that the engine was asked."""
        return ready is self._first

    def make_room(self) -> None:
        """A member has taken something, or has left."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def settle(self, settlement: Settlement) -> None:
        """As the ticket of the exchange."""
        if self.settlement is None:
            self.settlement = settlement
            self.payer = next(iter(self._members), None)
            self._close()

    async def _run(self) -> None:
        exchange = self.exchange
        try:
            self.head = await exchange.open()
            while True:
                chunk = await exchange.next_chunk()
                if exchange.finished:
                    break
                if chunk:
                    self._tell(chunk)
                    await self._keep_pace()
            self.over = True
            self._tell(chunk)
        except Exception:
            # The last line of defence, as in the door: members must be told, and settled.
            with logged_as(self._first.request, self._first.principal):
                log.exception("request_failed", request_id=str(self._first.request.request_id))
            defect = GatehouseError()
            exchange.close(defect)
            for member in list(self._members):
                member.fail(defect)

    def _tell(self, chunk: bytes) -> None:
        if self._past is not None:
            self._past.append(chunk)
            self._past_bytes += len(chunk)
            if self._past_bytes > BOUND_BYTES:
                self._close()
        for member in self._members:
            member.put(chunk)
        behind = min((member.queued_bytes for member in self._members), default=0)
        for member in [m for m in self._members if m.queued_bytes - behind > m.limit_bytes]:
            del self._members[member]
            member.drop(ReadTooSlowly())

    async def _keep_pace(self) -> None:
        while min((member.queued_bytes for member in self._members), default=0) > _AHEAD_BYTES:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _close(self) -> None:
        if self._past is not None:
            self._past = None
            self._on_closed()


class Member:
    """One request's share in a flight: a carrier. `join` finds the flight, once the answer is asked for on the loop."""

    def __init__(self, ready: Ready, join: Callable[["Member"], Flight], clock: Clock, deadlines: Deadlines) -> None:
        self.finished = False
        self.ready = ready
        self.queued_bytes = 0
        """Of the answer, not taken yet."""
        self.limit_bytes = BOUND_BYTES
        self._join = join
        self._now = clock.monotonic
        self._flight: Flight | None = None
        self._queue: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._quiet = deadlines.keep_alive_seconds if ready.keep_alive and ready.work.parsed.stream else None
        own = ready.timeout_seconds
        self._ends_at = None if own is None else ready.request.received_at + own
        self._head: ResponseHead | None = None
        self._pending = b""
        self._content_told = False
        self._ttft_seconds: float | None = None
        self._error: GatehouseError | None = None  # of this member alone
        self._settled = False

    # For the door

    def start_now(self, news: Callable[[], None]) -> bool:
        """False: a share is waited for in a task."""
        return False

    def whole_now(self) -> tuple[ResponseHead, bytes] | Soon:
        return Soon.TASK

    async def open(self) -> ResponseHead:
        if self._flight is None and self._error is None:
            self._flight = self._join(self)
        self._pending = await self._next()
        if self._head is None:
            self._head = ResponseHead(200, [*STREAM_HEADERS, *own_headers(self.ready)])
        return self._head

    async def next_chunk(self, write: Write | None = None) -> bytes:
        if self._pending:
            chunk, self._pending = self._pending, b""
        else:
            chunk = b"" if self._settled else await self._next()
        self.finished = self._settled
        return chunk

    def abort(self, error: GatehouseError, task: asyncio.Task[Any] | None) -> None:
        if not self._settled:
            self.fail(error)

    async def aclose(self, error: GatehouseError | None = None) -> None:
        self.close(error)

    def close(self, error: GatehouseError | None = None) -> None:
        if error is not None:
            self._settle_failed(error)
        elif not self._settled:
            self._settle(Outcome.CANCELLED, self._head.status if self._head else CLIENT_LEFT)

    # For the flight

    def put(self, chunk: bytes) -> None:
        """The next bytes of the answer, b"" with its end alone."""
        self._queue.append(chunk)
        self.queued_bytes += len(chunk)
        self._wake()

    def drop(self, error: GatehouseError) -> None:
        """No more bytes come; what has come is told first, then `error`."""
        self._error = self._error or error
        self._wake()

    def fail(self, error: GatehouseError) -> None:
        """End it with `error`, at once."""
        self._queue.clear()
        self.drop(error)

    # The answer

    async def _next(self) -> bytes:
        """The next bytes for this client; settled when they are the last."""
        while not self._queue:
            if self._error is not None:
                return self._tell_failed(self._error)
            if not await self._wait():
                return KEEP_ALIVE
        return self._take()

    async def _wait(self) -> bool:
        """False when nothing has come for as long as clients are left without a word."""
        left = None if self._ends_at is None else max(0.0, self._ends_at - self._now())
        quiet = self._quiet
        alive_first = quiet is not None and (left is None or quiet < left)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(quiet if alive_first else left):
                await self._waiter
        except TimeoutError:
            if self._queue or self._error is not None:
                return True  # it came just now
            if alive_first:
                return False
            self._error = error_of_transport(DeadlinePassed(Phase.BODY))
        finally:
            self._waiter = None
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> bytes:
        flight = self._flight
        assert flight is not None
        assert flight.head is not None
        chunk = b"".join(self._queue)
        self._queue.clear()
        self.queued_bytes = 0
        status, headers = flight.head
        told, self._content_told = self._content_told, flight.exchange.content_told
        if self._content_told and not told and self.ready.work.parsed.stream:
            self._ttft_seconds = self._now() - self.ready.request.received_at
        if self._head is None:
            kept = [header for header in headers if header[0] != _REQUEST_ID]
            self._head = ResponseHead(status, [*kept, *own_headers(self.ready)])
        elif status != 200:
            chunk = b"data: " + chunk + b"\n\n"  # it was told 200 already, to say that we live
            status = 200
        if flight.over and self._error is None:
            end = flight.settlement
            assert end is not None
            self._settle(end.outcome, status, end.error_code)
        flight.make_room()
        return chunk

    def _tell_failed(self, error: GatehouseError) -> bytes:
        request = self.ready.request
        told = self._head is not None
        self._settle_failed(error)
        if told:
            return render_error_event(request.api, error, request.request_id)
        headers, body = error_answer(request.api, error, request.request_id, own_headers(self.ready))
        self._head = ResponseHead(error.status, headers)
        return body

    # The ledger

    def _settle_failed(self, error: GatehouseError) -> None:
        outcome = Outcome.TRUNCATED if self._content_told else Outcome.FAILED
        self._settle(outcome, self._head.status if self._head else error.status, error.code, error)

    def _settle(
        self, outcome: Outcome, status: int, error_code: str | None = None, error: GatehouseError | None = None
    ) -> None:
        if self._settled:
            return
        self._settled = True
        self._queue.clear()
        flight = self._flight
        if flight is not None:
            flight.leave(self, error)
        end = flight.settlement if flight is not None else None
        pays = flight is not None and flight.payer is self
        asked = end if flight is not None and flight.is_first(self.ready) else None  # times begin at its arrival
        self.ready.ticket.settle(
            Settlement(
                outcome=outcome,
                status=status,
                usage=end.usage if end is not None and pays else self._share(end),
                duration_seconds=self._now() - self.ready.request.received_at,
                ttft_seconds=self._ttft_seconds,
                endpoint=flight.exchange.endpoint if flight is not None else None,
                engine_request_id=end.engine_request_id if end is not None else None,
                error_code=error_code,
                attempts=end.attempts if end is not None and pays else 0,
                unseen_output=end.unseen_output if end is not None and pays else None,
                queue_seconds=asked.queue_seconds if asked is not None else None,
                connect_seconds=asked.connect_seconds if asked is not None else None,
                first_decode_seconds=asked.first_decode_seconds if asked is not None else None,
            )
        )

    def _share(self, end: Settlement | None) -> Usage:
        """Of what was computed once for all: nothing, which is known. None where there was nothing to share."""
        known = self._content_told if end is None else end.usage.source is not UsageSource.NONE
        return Usage(0, 0, 0, UsageSource.APPORTIONED) if known else Usage()
