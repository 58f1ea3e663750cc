"""Keeps what keys that ask for it say and are told. It never delays an answer, and never fails one.

Only requests of such keys pass through here. What they are told is gathered as it goes by, and written by a task of
its own once all has been told; what there is no room for, or what cannot be written, is dropped and counted.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

import msgspec
import structlog

from core.errors import GatehouseError, Unavailable
from core.telemetry import metrics
from gateway.relay.assembly import Assembly
from gateway.relay.attempt import Soon, Write
from gateway.relay.carrier import Carrier
from gateway.relay.exchange import ResponseHead
from gateway.relay.plan import Api, Outcome, Ready, Settlement, Ticket

log = structlog.get_logger(__name__)

MOST_REQUEST_BYTES: Final = 1024 * 1024
MOST_ANSWER_BYTES: Final = 1024 * 1024
QUEUE_CAP: Final = 256
QUEUE_BYTES: Final = 16 * 1024 * 1024
_KEPT: Final = frozenset({Api.CHAT, Api.COMPLETIONS, Api.MESSAGES})
_DAY_SECONDS: Final = 86_400
_CLOSE_SECONDS: Final = 3.0

DaysOf = Callable[[UUID], int]
"""How many days a tenant keeps conversations; 0 for not at all."""


class ConversationStoreUnavailable(Unavailable):
    """Told to nobody: the conversation is dropped."""

    code: ClassVar[str] = "conversation_store_unavailable"


class NewConversation(msgspec.Struct, frozen=True):
    """What is kept of one request. Times are seconds since the epoch; `body` is the client's own."""

    id: UUID
    tenant_id: UUID
    key_id: UUID
    model: str
    api: Api
    streamed: bool
    outcome: Outcome
    body: bytes
    answer: Assembly
    created_at: float
    expires_at: float


class ConversationStore(Protocol):
    """gateway.services.conversation_store is one over PostgreSQL."""

    async def put(self, conversation: NewConversation) -> None:
        """Keep it. Raises ConversationStoreUnavailable, and ValueError for what cannot be kept."""

    async def aclose(self) -> None:
        """End all calls."""


class Conversations:
    """Of one process; used on its loop, but for `keep`. `now`: seconds since the epoch."""

    def __init__(self, store: ConversationStore, days_of: DaysOf, *, now: Callable[[], float], door: str) -> None:
        self._store = store
        self._days_of = days_of
        self._now = now
        self._door = door
        self._queue: deque[tuple[NewConversation, int]] = deque()
        self._held_bytes = 0
        self._news = asyncio.Event()  # bound to a loop by whoever first waits
        self._idle = asyncio.Event()
        self._idle.set()

    def keep(self, ready: Ready, carry: Callable[[Ready], Carrier]) -> Carrier:
        """What `carry` makes of a request, and keeps what passes by where that is wished for. On any thread."""
        request, principal = ready.request, ready.principal
        if not principal.store_conversations or principal.key_id is None or request.api not in _KEPT:
            return carry(ready)
        days = self._days_of(principal.tenant_id)
        if days <= 0:
            return carry(ready)
        kept = _Kept(self, ready, principal.key_id, expires_after=days * _DAY_SECONDS, now=self._now)
        ready.ticket = _NotedTicket(ready.ticket, kept)
        return _KeepingCarrier(carry(ready), kept)

    def put(self, conversation: NewConversation, size: int) -> None:
        """Have it written; `size` is about what it holds in memory."""
        if len(self._queue) >= QUEUE_CAP or self._held_bytes + size > QUEUE_BYTES:
            self._drop("full")
            return
        self._held_bytes += size
        self._queue.append((conversation, size))
        self._idle.clear()
        self._news.set()

    async def run(self) -> None:
        """Write one after the other, until it is cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._queue:
                conversation, size = self._queue.popleft()
                try:
                    await self._write(conversation)
                finally:
                    self._held_bytes -= size
            self._idle.set()

    async def flush(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Give the task that long to write what waits; the rest is dropped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        while self._queue:
            self._held_bytes -= self._queue.popleft()[1]
            self._drop("stopped")

    async def _write(self, conversation: NewConversation) -> None:
        try:
            await self._store.put(conversation)
        except ConversationStoreUnavailable:
            self._drop("unavailable")
        except ValueError as error:
            log.warning("conversation_not_stored", request_id=str(conversation.id), error=str(error))
            self._drop("unreadable")
        except Exception:  # a defect of ours: without this task nothing would be stored any more
            log.exception("conversation_not_stored", request_id=str(conversation.id))
            self._drop("unreadable")
        else:
            metrics.conversations.labels(self._door, "kept").inc()

    def _drop(self, reason: str) -> None:
        metrics.conversations.labels(self._door, reason).inc()


class _Kept:
    """One conversation under way. What it holds: the client's body, which the request holds anyway, and the answer."""

    def __init__(
        self, owner: Conversations, ready: Ready, key_id: UUID, *, expires_after: float, now: Callable[[], float]
    ) -> None:
        self._owner = owner
        self._ready = ready
        self._key_id = key_id
        self._created_at = now()
        self._expires_at = self._created_at + expires_after
        streamed = ready.work.parsed.stream
        self._answer = Assembly(ready.request.api, streamed=streamed, most_bytes=MOST_ANSWER_BYTES)
        self._outcome: Outcome | None = None
        self._said = False
        self._over = False

    def told(self, data: bytes) -> None:
        if data:
            self._said = True
            self._answer.add(data)

    def settled(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def finish(self) -> None:
        """All has been told; the first call counts. What failed said nothing that were an answer."""
        if self._over or self._outcome is None:
            return
        self._over = True
        if self._outcome is Outcome.FAILED or not self._said:
            return
        ready = self._ready
        new = NewConversation(
            id=ready.request.request_id,
            tenant_id=ready.principal.tenant_id,
            key_id=self._key_id,
            model=ready.work.parsed.model,
            api=ready.request.api,
            streamed=ready.work.parsed.stream,
            outcome=self._outcome,
            body=ready.request.body,
            answer=self._answer,
            created_at=self._created_at,
            expires_at=self._expires_at,
        )
        self._owner.put(new, len(new.body) + MOST_ANSWER_BYTES // 16 + self._answer.held_bytes)


class _NotedTicket:
    """The request's ticket, whose settlement is noted."""

    def __init__(self, ticket: Ticket, kept: _Kept) -> None:
        self._ticket = ticket
        self._kept = kept

    def settle(self, settlement: Settlement) -> None:
        self._kept.settled(settlement.outcome)
        self._ticket.settle(settlement)


class _KeepingCarrier:
    """See gateway.relay.carrier.Carrier; the bytes are those that the other one brings."""

    def __init__(self, carrier: Carrier, kept: _Kept) -> None:
        self.finished = False
        self._carrier = carrier
        self._kept = kept

    def start_now(self, news: Callable[[], None]) -> bool:
        return self._carrier.start_now(news)

    def whole_now(self) -> tuple[ResponseHead, bytes] | Soon:
        answer = self._carrier.whole_now()
        if not isinstance(answer, Soon):
            self._told(answer[1])
        return answer

    async def open(self) -> ResponseHead:
        return await self._carrier.open()

    async def next_chunk(self, write: Write | None = None) -> bytes:
        if write is None:
            chunk = await self._carrier.next_chunk()
        else:
            chunk = await self._carrier.next_chunk(lambda data: self._write(write, data))
        self._told(chunk)
        return chunk

    def abort(self, error: GatehouseError, task: asyncio.Task[Any] | None) -> None:
        self._carrier.abort(error, task)

    async def aclose(self, error: GatehouseError | None = None) -> None:
        try:
            await self._carrier.aclose(error)
        finally:
            self._told(b"")
            self._kept.finish()

    def close(self, error: GatehouseError | None = None) -> None:
        try:
            self._carrier.close(error)
        finally:
            self._told(b"")
            self._kept.finish()

    def _write(self, write: Write, data: bytes) -> bool:
        self._kept.told(data)
        return write(data)

    def _told(self, data: bytes) -> None:
        self.finished = self._carrier.finished
        self._kept.told(data)
        if self.finished:
            self._kept.finish()
