"""One accepted realtime connection: frames in and out, one response at a time, and every way that it can end."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec
import structlog

from core.clock import Clock
from core.errors import GatehouseError
from core.ids import uuid7
from gateway.relay.exchange import Exchange
from gateway.relay.guards import ABORT
from gateway.relay.memory import MemoryBudget, RelayMemoryExhausted
from gateway.relay.plan import Api, Decision, Ready, SlimRequest, TrafficClass
from gateway.relay.realtime.response import Event, Response
from gateway.relay.realtime.session import BrokenEvent, Cancel, Respond, Session, SessionLimits
from gateway.relay.realtime.turn import Turn
from gateway.relay.routes import REALTIME

log = structlog.get_logger(__name__)

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class RealtimeLimits:
    """Bounds on one connection: seconds and bytes."""

    idle_seconds: float = 900.0  # without a word of the client's
    message_bytes: int = 1024 * 1024
    send_deadline_seconds: float = 60.0
    session: SessionLimits = field(default_factory=SessionLimits)


class Ending(Enum):
    """Why a connection is ended by this side: the close code and what is said with it."""

    DRAINING = (1001, "draining")
    IDLE = (1000, "idle")
    REFUSED = (1008, "no longer allowed")
    TOO_LARGE = (1009, "message too large")
    DEFECT = (1011, "internal error")
    SLOW = (1008, "does not read")
    FULL = (1013, "try again later")


class Decides(Protocol):
    """What decides about turns."""

    async def prepare(self, request: SlimRequest) -> Decision:
        """Authenticate, parse, authorise, reserve and route."""


class Connection:
    """See the module. `run` ends with the connection; everything else may be called while it runs."""

    def __init__(
        self,
        session: Session,
        headers: Sequence[tuple[bytes, bytes]],
        scope: Any,
        receive: Any,
        send: Any,
        *,
        pipeline: Decides,
        exchange: Callable[[Ready], Exchange],
        clock: Clock,
        limits: RealtimeLimits,
        memory: MemoryBudget,
    ) -> None:
        self._session = session
        self._headers = headers
        self._abort_transport: Callable[[], None] | None = scope.get(ABORT)
        self._receive = receive
        self._send = send
        self._pipeline = pipeline
        self._exchange = exchange
        self._clock = clock
        self._limits = limits
        self._memory = memory
        self._held_bytes = 0  # of `memory`
        self._turn: Turn | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ending: Ending | None = None
        self._draining = False
        self._gone = False  # nothing more can be told
        self._closing = False

    @property
    def responding(self) -> bool:
        """A response is under way."""
        return self._turn is not None

    def drain(self) -> None:
        """This process is about to stop: end now if idle, else with the response that is under way."""
        self._draining = True
        if self._turn is None:
            self._end(Ending.DRAINING)

    def abort(self, error: GatehouseError) -> None:
        """End the response under way with `error`, and the connection with it."""
        self._draining = True
        if self._turn is None:
            self._end(Ending.DRAINING)
        else:
            self._turn.abort(error)

    async def run(self) -> None:
        """Carry the connection until one of the sides ends it."""
        self._task = task = asyncio.current_task()
        assert task is not None
        try:
            await self.tell([self._session.created()])
            while self._ending is None:
                message = await self._next_message()
                if message["type"] == "websocket.disconnect":
                    self._gone = True
                    return
                await self._take(message)
        except asyncio.CancelledError:
            if self._ending is None:
                raise
            task.uncancel()
        except Exception:
            # The last line of defence: a defect of ours must still end the conversation with a close code.
            log.exception("realtime_failed")
            self._ending = Ending.DEFECT
        finally:
            await self._close()

    async def tell(self, events: Sequence[Event]) -> None:
        """Send events. A client that does not read them in time is given up; one that has gone is told nothing."""
        for event in events:
            if self._gone:
                return
            message = {"type": "websocket.send", "text": _encoder.encode(event).decode()}
            try:
                async with asyncio.timeout(self._limits.send_deadline_seconds):
                    await self._send(message)
            except TimeoutError:
                self._gone = True
                self._end(Ending.SLOW)
            except (OSError, RuntimeError):
                # As servers say that the client has left, or that they have closed; whoever receives is told too.
                self._gone = True

    # What the client says

    async def _next_message(self) -> Any:
        """Raises CancelledError for a client that has said nothing for too long, with the ending noted."""
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_seconds):
                    return await self._receive()
            except TimeoutError:
                if self._turn is None:
                    self._ending = Ending.IDLE
                    return {"type": "websocket.receive", "text": None}

    async def _take(self, message: Any) -> None:
        if self._ending is not None:
            return
        text = message.get("text")
        data = text if text is not None else message.get("bytes") or b""
        cap = self._limits.message_bytes
        if len(data) > cap or (isinstance(data, str) and not data.isascii() and len(data.encode()) > cap):
            self._ending = Ending.TOO_LARGE
            return
        if text is None:
            await self.tell([self._session.error(BrokenEvent(), None)])
            return
        step = self._session.take(text)
        try:
            self._account(self._session.held_bytes)
        except RelayMemoryExhausted as error:
            await self.tell([self._session.error(error, None)])
            self._ending = Ending.FULL
            return
        await self.tell(step.events)
        match step.command:
            case Respond(response=response):
                self._begin(response)
            case Cancel():
                if self._turn is not None:
                    await self._turn.cancel()
            case None:
                pass

    def _account(self, held_bytes: int) -> None:
        """Hold so much of the process's memory from now on. Raises RelayMemoryExhausted."""
        if held_bytes > self._held_bytes:
            self._memory.take(held_bytes - self._held_bytes)
        else:
            self._memory.give(self._held_bytes - held_bytes)
        self._held_bytes = held_bytes

    def _begin(self, response: Response) -> None:
        request = SlimRequest(
            uuid7(),
            Api.REALTIME,
            REALTIME,
            self._headers,
            response.body,
            self._clock.monotonic(),
            TrafficClass.REALTIME,
        )
        turn = self._turn = Turn(
            request, response, self._session, pipeline=self._pipeline, exchange=self._exchange, tell=self.tell
        )
        turn.start(self._turn_over)

    def _turn_over(self, turn: Turn) -> None:
        self._turn = None
        self._session.response_over()
        if turn.barred:
            self._end(Ending.REFUSED)
        elif turn.defect:
            self._end(Ending.DEFECT)
        elif self._draining:
            self._end(Ending.DRAINING)

    # Ends

    def _end(self, ending: Ending) -> None:
        """Have `run` end the connection, whatever it waits for."""
        if self._ending is not None or self._closing:
            return
        self._ending = ending
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _close(self) -> None:
        """Settle what is under way, then close: also when interrupted once more."""
        self._closing = True
        self._account(0)
        turn = self._turn
        if turn is not None:
            self._gone = self._gone or self._ending in (None, Ending.SLOW)
            await turn.leave()
        ending = self._ending
        if ending is Ending.SLOW and self._abort_transport is not None:
            self._abort_transport()
            return
        if ending is None or self._gone:
            return
        self._gone = True
        code, reason = ending.value
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.send_deadline_seconds):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
