"""The relay's ASGI application: the OpenAI endpoints, and what probes and scrapers ask for.

Every request is watched: a client that leaves, a body that does not come, a client that does not
read and the end of this process each interrupt the one task that carries the request, whatever it
waits for.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, assert_never

import structlog

from core.clock import Clock
from core.errors import (
    BodyTimeout,
    Draining,
    GatehouseError,
    NoReadyInstance,
)
from core.ids import uuid7
from gateway.relay.call import Call, Cycle, Interruption, watch
from gateway.relay.carrier import Carrier
from gateway.relay.coalesce import Coalescer
from gateway.relay.conversations import Conversations
from gateway.relay.deadlines import Deadlines
from gateway.relay.dialects.base import error_answer
from gateway.relay.exchange import Exchange, Soon
from gateway.relay.guards import ABORT, ON_LEAVING, WRITE, ClientGone, Receive, Scope, Send, read_body
from gateway.relay.memory import Claim, MemoryBudget
from gateway.relay.others import Catalogue, Others, Scrape
from gateway.relay.own_usage import OwnUsage
from gateway.relay.plan import Api, Decision, Held, Ready, Rejected, SlimRequest
from gateway.relay.realtime.app import RealtimeApp
from gateway.relay.realtime.connection import RealtimeLimits
from gateway.relay.routes import INFERENCE, posted_api
from gateway.relay.stored import StoredResponses
from gateway.relay.tuning.answers import Tuning
from gateway.relay.upstream import UpstreamClient

_TICK_SECONDS: Final = 0.25

log = structlog.get_logger(__name__)


class Pipeline(Catalogue, Protocol):
    """What decides about requests."""

    async def prepare(self, request: SlimRequest) -> Decision:
        """Authenticate, parse, authorise, reserve and route; see DESIGN section 3."""

    def prepare_now(self, request: SlimRequest) -> Ready | None:
        """The same where nothing has to be waited for and nothing is refused; else None, and nothing has been done."""


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Bounds on clients: bytes and seconds."""

    body_cap_bytes: int = 32 * 1024 * 1024
    body_deadline_seconds: float = 60.0
    send_deadline_seconds: float = 60.0


App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """ASGI application of the relay.

    `readiness` says why requests should not be sent here, None when they may.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        client: UpstreamClient,
        clock: Clock,
        *,
        deadlines: Deadlines | None = None,
        limits: DoorLimits | None = None,
        realtime_limits: RealtimeLimits | None = None,
        readiness: Callable[[], str | None] = lambda: None,
        scrape: Scrape = lambda: (b"text/plain; charset=utf-8", b""),
        metrics_token: str | None = None,
        memory: MemoryBudget | None = None,
        stored: StoredResponses | None = None,
        usage: OwnUsage | None = None,
        tuning: Tuning | None = None,
        coalescer: Coalescer | None = None,
        conversations: Conversations | None = None,
    ) -> None:
        self.draining = False
        """Set when this process is about to stop: /readyz says no, requests are still taken."""
        self._pipeline = pipeline
        self._client = client
        self._clock = clock
        self._deadlines = deadlines or Deadlines()
        self._limits = limits or DoorLimits()
        self._readiness = readiness
        self._memory = memory or MemoryBudget()
        self._coalescer = coalescer
        self._conversations = conversations
        self._body_ticks = _ticks(self._limits.body_deadline_seconds)
        self._send_ticks = _ticks(self._limits.send_deadline_seconds)
        self._tick_count = 0  # waits are measured in these: cheaper than a clock, and exact enough for them
        self._calls: set[Call] = set()
        self._realtime = RealtimeApp(pipeline, self._exchange, clock, realtime_limits, lambda: self._memory)
        self._others = Others(
            pipeline,
            clock,
            unready=self._unready,
            scrape=scrape,
            metrics_token=metrics_token,
            memory=lambda: self._memory,
            stored=stored,
            usage=usage,
            tuning=tuning,
            body_cap_bytes=self._limits.body_cap_bytes,
            body_deadline_seconds=self._limits.body_deadline_seconds,
        )
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def in_flight(self) -> int:
        """Inference requests under way."""
        return len(self._calls) + self._realtime.in_flight

    def close_idle(self) -> None:
        """End websockets on which nothing is under way; the others end with what they are telling."""
        self._realtime.close_idle()

    def _unready(self) -> str | None:
        return "draining" if self.draining else self._readiness()

    def _exchange(self, ready: Ready) -> Exchange:
        return Exchange(ready, self._client, self._clock, self._deadlines)

    def _carrier(self, ready: Ready) -> Carrier:
        carry = self._exchange if self._coalescer is None else self._coalescer.carry
        if self._conversations is None or not ready.principal.store_conversations:
            return carry(ready)
        return self._conversations.keep(ready, carry)

    def abort_all(self, error: GatehouseError | None = None) -> None:
        """End every request under way: an error event or body, settled; nothing is dropped silently."""
        for call in list(self._calls):
            if call.exchange is not None:
                call.exchange.abort(error or Draining(retry_after_seconds=1.0), call.task)
            else:
                call.interrupt(Interruption.SHUTDOWN)
        self._realtime.abort_all(error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._realtime(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        api = posted_api(scope["path"])
        if api is not None and scope["method"] == "POST":
            await self._infer(api, scope, receive, send)
        else:
            await self._others(scope, receive, send)

    # Inference

    def quick(self, cycle: Cycle, start: Callable[[App], None]) -> bool:
        """Answer a request that has come whole, without a task for as long as nothing has to be waited for in one.

        Most requests never need one: a known key, an open connection to the engine, a whole answer in one piece. A
        task and its turns of the loop would cost a quarter of all that is done for them. Where one is needed after
        all, `start` gives the request one, which goes on from where it stands. False: it is to be called as ASGI.
        """
        scope = cycle.scope
        api = INFERENCE.get(scope["path"])
        size = len(cycle.body)
        if api is None or scope["method"] != "POST" or cycle.congested or size > self._limits.body_cap_bytes:
            return False
        memory = self._memory
        if memory.held_bytes + size > memory.cap_bytes:
            return False
        headers = scope["headers"]
        for name, _ in headers:
            if name == b"content-encoding":
                return False
        request = SlimRequest(uuid7(), api, scope["path"], headers, bytes(cycle.body), self._clock.monotonic())
        try:
            ready = self._pipeline.prepare_now(request)
        except Exception:  # noqa: BLE001  # a defect of ours: it is met again in a task, and told from there
            return False
        if ready is None:
            return False
        cycle.body = bytearray()  # the request has its own
        call = Call(None, request.request_id, api)
        exchange: Carrier
        if self._coalescer is None and not ready.principal.store_conversations:  # as `_carrier`, without a call of it
            exchange = Exchange(ready, self._client, self._clock, self._deadlines)
        else:
            exchange = self._carrier(ready)
        call.exchange = exchange
        call.give_up = self._end_quick
        self._calls.add(call)
        memory.take(size)
        call.held_bytes = size
        cycle.on_leaving(call.client_left)
        try:
            if call.ended or exchange.start_now(partial(self._news, call, cycle, start)):
                return True
        except Exception:  # as in _guarded, which tells the client
            log.exception("request_failed", request_id=str(call.request_id))
            call.defect = GatehouseError()
        self._go_on(call, start)
        return True

    def _go_on(self, call: Call, start: Callable[[App], None]) -> None:
        """Give a request without a task one."""
        call.give_up = None  # from here on it is the task's to end it
        start(partial(self._resume, call))

    def _news(self, call: Call, cycle: Cycle, start: Callable[[App], None]) -> None:
        """Something has come of the answer to a request without a task."""
        exchange = call.exchange
        if call.give_up is None or exchange is None:
            return  # it has ended, or has a task
        try:
            answer = exchange.whole_now()
        except Exception:  # as in _guarded, which tells the client
            log.exception("request_failed", request_id=str(call.request_id))
            call.defect = GatehouseError()
            answer = Soon.TASK
        if answer is Soon.WAIT:
            return
        if isinstance(answer, Soon):
            self._go_on(call, start)
            return
        self._end_quick(call)
        head, body = answer
        cycle.respond(head.status, head.headers, body)

    def _end_quick(self, call: Call) -> None:
        """The end of a request that has no task: it is answered, or its client has left."""
        call.give_up = None
        call.ended = True
        self._calls.discard(call)
        self._memory.give(call.held_bytes)
        if call.exchange is not None and not call.exchange.finished:
            call.exchange.close()

    async def _resume(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Go on, in a task, with a request that was begun without one."""
        claim = Claim(self._memory)
        claim.adopt(call.held_bytes)
        await self._guarded(call, claim, scope, send, self._tell(call, scope, send))

    async def _infer(self, api: Api, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(None, uuid7(), api)
        self._calls.add(call)
        claim = Claim(self._memory)
        await self._guarded(call, claim, scope, send, self._take(call, claim, scope, receive, send))

    async def _guarded(
        self, call: Call, claim: Claim, scope: Scope, send: Send, doing: Coroutine[Any, Any, None]
    ) -> None:
        """Do what there is to do for a call, and tell and settle whatever comes of it."""
        task = call.task = asyncio.current_task()
        assert task is not None
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        try:
            if call.interruption is not None:  # between its start and its first turn
                doing.close()
                await self._interrupted(call, scope, send)
                return
            await doing
        except GatehouseError as error:
            await self._refuse(call, error, send)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if call.interruption is None:
                raise
            task.uncancel()
            await self._interrupted(call, scope, send)
        except Exception:
            # The last line of defence: a defect of ours must still be answered in shape, and settled.
            log.exception("request_failed", request_id=str(call.request_id))
            call.defect = GatehouseError()
            if call.exchange is not None:
                call.exchange.close(call.defect)
            await self._refuse(call, call.defect, send)
        finally:
            call.ended = True
            self._calls.discard(call)
            claim.release()
            if call.exchange is not None and not call.exchange.finished:
                call.exchange.close()
            if call.watcher is not None and not call.watcher.done() and not call.started:
                call.watcher.cancel()

    async def _take(self, call: Call, claim: Claim, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request, and carry it."""
        received_at = self._clock.monotonic()
        call.late_at = self._tick_count + self._body_ticks
        body = await read_body(receive, scope["headers"], cap_bytes=self._limits.body_cap_bytes, claim=claim)
        call.late_at = None
        on_leaving = scope.get(ON_LEAVING)
        if on_leaving is not None:
            on_leaving(call.client_left)
        else:
            call.watcher = asyncio.create_task(watch(receive, call))
        request = SlimRequest(
            call.request_id, call.api, scope["path"], scope["headers"], body, received_at, claim=claim
        )
        await self._carry(call, request, scope, send)

    async def _carry(self, call: Call, request: SlimRequest, scope: Scope, send: Send) -> None:
        decision = await self._pipeline.prepare(request)
        match decision:
            case Ready():
                pass
            case Rejected(error=error):
                await self._refuse(call, error, send)
                return
            case Held(eta_seconds=eta):
                await self._refuse(call, NoReadyInstance(retry_after_seconds=eta or 1.0), send)
                return
            case _:
                assert_never(decision)
        call.exchange = self._carrier(decision)
        await self._tell(call, scope, send)

    async def _tell(self, call: Call, scope: Scope, send: Send) -> None:
        """Pass the answer on as it comes."""
        exchange = call.exchange
        assert exchange is not None
        if call.defect is not None:
            exchange.close(call.defect)
            raise call.defect
        head = await exchange.open()
        call.started = True
        # Watched by `_tick`: a client that does not read may not hold an engine for ever.
        call.late = Interruption.SEND_LATE
        call.late_at = self._tick_count + self._send_ticks
        await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
        write = scope.get(WRITE)
        while True:
            call.late_at = None
            chunk = await exchange.next_chunk(write)
            call.late_at = self._tick_count + self._send_ticks
            if exchange.finished:
                call.ended = True
                await send({"type": "http.response.body", "body": chunk})
                return
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def _refuse(self, call: Call, error: GatehouseError, send: Send) -> None:
        if call.started:
            return
        headers, body = error_answer(call.api, error, call.request_id)
        call.started = call.ended = True
        call.late = Interruption.SEND_LATE
        call.late_at = self._tick_count + self._send_ticks
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _interrupted(self, call: Call, scope: Scope, send: Send) -> None:
        match call.interruption:
            case Interruption.BODY_LATE:
                await self._refuse(call, BodyTimeout(headers=((b"connection", b"close"),)), send)
            case Interruption.SHUTDOWN:
                await self._refuse(call, Draining(retry_after_seconds=1.0), send)
            case Interruption.SEND_LATE:
                abort = scope.get(ABORT)
                if abort is not None:
                    abort()
            case Interruption.CLIENT_LEFT | None:
                pass

    def _tick(self) -> None:
        """Look for waits that are too long; one timer for all requests."""
        self._ticker = None
        self._tick_count += 1
        for call in self._calls:
            if call.late_at is not None and self._tick_count >= call.late_at:
                call.late_at = None
                call.interrupt(call.late)
        if self._calls:
            self._ticker = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)


def _ticks(seconds: float) -> int:
    return math.ceil(seconds / _TICK_SECONDS) + 1  # the first one may come at once
