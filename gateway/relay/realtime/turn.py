"""One response under way: prepared, carried and told in a task of its own, and settled however it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, assert_never

import msgspec
import structlog

from core.errors import GatehouseError, NoReadyInstance, UpstreamFailure
from gateway.relay.exchange import Exchange
from gateway.relay.plan import Decision, Held, Ready, Rejected, Settlement, SlimRequest, Ticket, Usage
from gateway.relay.realtime.response import AnswerTooLarge, Event, Response
from gateway.relay.realtime.session import Session

log = structlog.get_logger(__name__)

T = TypeVar("T")

_BARRING: Final = frozenset({401, 403, 404})
"""Refusals after which no further turn of the connection can be admitted: of the key, its tenant or its grant."""


class Decides(Protocol):
    """What decides about turns."""

    async def prepare(self, request: SlimRequest) -> Decision:
        """Authenticate, parse, authorise, reserve and route."""


class _NotedTicket:
    """A ticket that remembers what it was settled with: what clients are told is what the ledger says."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self.settlement: Settlement | None = None

    def settle(self, settlement: Settlement) -> None:
        if self.settlement is None:
            self.settlement = settlement
        self._ticket.settle(settlement)


class Turn:
    """See the module. `tell` sends events, in time or not at all."""

    def __init__(
        self,
        request: SlimRequest,
        response: Response,
        session: Session,
        *,
        pipeline: Decides,
        exchange: Callable[[Ready], Exchange],
        tell: Callable[[Sequence[Event]], Awaitable[None]],
    ) -> None:
        self.barred = False
        """It was refused in a way that further turns will be, too."""
        self.defect = False
        """It ended with a defect of ours."""
        self._request = request
        self._response = response
        self._session = session
        self._pipeline = pipeline
        self._make_exchange = exchange
        self._tell = tell
        self._exchange: Exchange | None = None
        self._ticket: _NotedTicket | None = None
        self._task: asyncio.Task[None] | None = None
        self._waiting = False  # for a decision or the engine, and not for the client
        self._cancelled = False
        self._aborted: GatehouseError | None = None

    def start(self, over: Callable[["Turn"], None]) -> None:
        """Begin; `over` is called at the end."""
        self._task = asyncio.create_task(self._run(over))

    async def cancel(self) -> None:
        """Take it back: the engine's connection is closed when this returns, or as soon as the task has its turn."""
        if self._cancelled or self._aborted is not None or self._task is None:
            return
        if self._waiting:
            self._cancelled = True
            self._task.cancel()
        elif self._exchange is not None and not self._exchange.finished:
            self._cancelled = True
            await self._exchange.aclose()  # the task is sending to the client, and finds it closed

    def abort(self, error: GatehouseError) -> None:
        """End it with `error`, which the client is told."""
        if self._cancelled or self._aborted is not None or self._task is None:
            return
        self._aborted = error
        if self._waiting and self._exchange is not None:
            self._exchange.abort(error, self._task)
        elif self._waiting:
            self._task.cancel()

    async def leave(self) -> None:
        """The client has gone: end it, wherever it is. Returns when it is settled, also if interrupted meanwhile."""
        task = self._task
        if task is None or task.done():
            return
        self._cancelled = True
        task.cancel()
        await asyncio.wait({task})

    # The task

    async def _run(self, over: Callable[["Turn"], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            try:
                await self._carry()
            except asyncio.CancelledError:
                if not self._cancelled and self._aborted is None:
                    raise
                while task.uncancel():
                    pass
                await self._close()
                await self._tell_end()
            except Exception:
                # The last line of defence: a defect of ours must still be settled, and told.
                log.exception("realtime_turn_failed", request_id=str(self._request.request_id))
                self.defect = True
                await self._fail(GatehouseError())
        finally:
            try:
                await self._close()
            finally:
                over(self)

    async def _carry(self) -> None:
        decision = await self._wait(self._pipeline.prepare(self._request))
        match decision:
            case Ready():
                pass
            case Rejected(error=error):
                self.barred = error.status in _BARRING
                await self._tell([self._session.error(error, self._response.cause)])
                return
            case Held(eta_seconds=eta):
                error = NoReadyInstance(retry_after_seconds=eta or 1.0)
                await self._tell([self._session.error(error, self._response.cause)])
                return
            case _:
                assert_never(decision)
        ticket = self._ticket = _NotedTicket(decision.ticket)
        decision.ticket = ticket
        exchange = self._exchange = self._make_exchange(decision)
        await self._tell([self._response.created()])
        if self._interrupted():
            await self._close()
            await self._tell_end()
            return
        head = await self._wait(exchange.open())
        streamed = head.status == 200 and dict(head.headers).get(b"content-type", b"").startswith(b"text/event-stream")
        while True:
            data = await self._wait(exchange.next_chunk())
            try:
                events = self._response.feed(data) if streamed else self._response.feed_chunk(data)
            except AnswerTooLarge as error:
                await self._fail(error)
                return
            except (msgspec.DecodeError, ValueError):
                await self._fail(UpstreamFailure())  # not OpenAI's words, though they are JSON
                return
            if exchange.finished:
                await self._tell([*events, *self._last_events()])
                return
            await self._tell(events)
            if self._interrupted():
                await self._close()
                await self._tell_end()
                return

    async def _wait(self, awaitable: Awaitable[T]) -> T:
        """Await what `cancel` may interrupt."""
        self._waiting = True
        try:
            return await awaitable
        finally:
            self._waiting = False

    def _interrupted(self) -> bool:
        return self._cancelled or self._aborted is not None

    # Ends

    async def _close(self) -> None:
        """Settle, if that has not been done."""
        if self._exchange is not None:
            await self._exchange.aclose(self._aborted)

    async def _fail(self, error: GatehouseError) -> None:
        if self._exchange is None:
            await self._tell([self._session.error(error, self._response.cause)])
            return
        await self._exchange.aclose(error)
        self._response.error = _told(error)
        await self._tell(self._last_events())

    async def _tell_end(self) -> None:
        """What a client is told of a response that was cancelled, or ended by us."""
        if self._exchange is None:
            # Nothing had been told of it. A client that waits for its end gets one all the same.
            if self._aborted is not None:
                await self._tell([self._session.error(self._aborted, self._response.cause)])
            else:
                await self._tell([self._response.created(), *self._response.cancel(None)])
        elif self._aborted is not None:
            self._response.error = _told(self._aborted)
            await self._tell(self._last_events())
        else:
            await self._tell(self._response.cancel(self._usage))

    def _last_events(self) -> list[Event]:
        error = self._response.error
        if error is None:
            return self._response.complete(self._usage)
        return [
            self._session.error_as_told(error, self._response.cause),
            *self._response.fail(error, self._usage),
        ]

    @property
    def _usage(self) -> Usage | None:
        settlement = self._ticket.settlement if self._ticket is not None else None
        return None if settlement is None else settlement.usage


def _told(error: GatehouseError) -> dict[str, Any]:
    return {"type": error.type, "code": error.code, "message": error.message, "param": error.param}
