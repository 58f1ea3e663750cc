"""Brings rows from the spool into Valkey's stream, again until the ledger has them.

The drain publishes, for each process, up to which sequence the ledger has its rows without a gap. What
stands before the mark leaves the spool. When the mark stays and the stream no longer has the next row
(Valkey lost its data), everything after the mark is sent again; the ledger keeps one row of each id.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

import structlog

from core.clock import Clock
from core.telemetry import metrics
from gateway.relay.rows import SourceUnavailable
from gateway.relay.settle import Settler
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable
from tenants.usage import STREAM, mark_key

logger = structlog.get_logger(__name__)

WINDOW_ROWS: Final = 5_000
"""Rows of one process that may be in the stream at once; the rest waits in the spool."""

STALL_SECONDS: Final = 2.0
_BATCH_ROWS: Final = 40  # to write and read so many takes a fraction of a millisecond, which requests wait for
_GATHER_SECONDS: Final = 0.05  # rows that come meanwhile travel together, which costs a fraction
_MARK_SECONDS: Final = 0.1
_RETRY_SECONDS: Final = 0.5
_CALL_DEADLINE_SECONDS: Final = 1.0


class Outbox:
    """Sends the rows of one settler's spool. `read_mark` asks the ledger itself; `on_mark` is told what it has."""

    def __init__(
        self,
        settler: Settler,
        client: ValkeyClient,
        *,
        prefix: str,
        clock: Clock,
        read_mark: Callable[[UUID], Awaitable[int]],
        on_mark: Callable[[int], None] = lambda mark: None,
    ) -> None:
        self._settler = settler
        self._spool = settler.spool
        self._client = client
        self._stream = prefix + STREAM
        self._mark_key = mark_key(prefix, settler.spool.process_id)
        self._clock = clock
        self._read_mark = read_mark
        self._on_mark = on_mark
        self._wanted = asyncio.Event()
        self._sent = 0
        self._entries: deque[tuple[int, bytes]] = deque()  # (sequence, the stream's id of it)
        self._progress_at = clock.monotonic()

    def wake(self) -> None:
        """There is a new row."""
        self._wanted.set()

    async def run(self) -> None:
        """Send until cancelled."""
        complained = False
        while True:
            try:
                await self._wait()
                await self._send()
                await self._follow_mark()
                complained = False
            except (ValkeyUnavailable, ValkeyRefused, SourceUnavailable) as error:
                if not complained:
                    logger.warning("usage_not_sent", error=str(error), waiting=self._spool.unacknowledged)
                complained = True
                await asyncio.sleep(_RETRY_SECONDS)
            metrics.ledger_unacknowledged.set(self._spool.unacknowledged)
            metrics.spool_bytes.set(self._spool.bytes_held)

    async def flush(self, seconds: float) -> None:
        """Wait until the ledger has everything, at most so long."""
        deadline = self._clock.monotonic() + seconds
        while self._spool.unacknowledged and self._clock.monotonic() < deadline:
            self.wake()
            await asyncio.sleep(_GATHER_SECONDS)

    async def _wait(self) -> None:
        if self._sent < self._spool.last_sequence and self._sent - self._spool.acknowledged < WINDOW_ROWS:
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), _MARK_SECONDS if self._spool.unacknowledged else None)
            if self._sent - self._spool.acknowledged >= WINDOW_ROWS:
                await asyncio.sleep(_MARK_SECONDS)  # only a mark helps
            else:
                await asyncio.sleep(_GATHER_SECONDS)
        self._wanted.clear()

    async def _send(self) -> None:
        room = WINDOW_ROWS - (self._sent - self._spool.acknowledged)
        rows = self._spool.rows_after(self._sent, limit=min(_BATCH_ROWS, room)) if room > 0 else []
        if not rows:
            return
        if not self._entries:
            self._progress_at = self._clock.monotonic()
        head = ("XADD", self._stream, "*", "p", self._spool.process_id.bytes, "t", self._spool.acknowledged)
        replies = await self._client.pipeline(
            [(*head, "s", sequence, "d", payload) for sequence, payload in rows],
            deadline_seconds=_CALL_DEADLINE_SECONDS,
        )
        for (sequence, _), reply in zip(rows, replies, strict=True):
            if isinstance(reply, ValkeyRefused):
                raise reply
            assert isinstance(reply, bytes)
            self._entries.append((sequence, reply))
            self._sent = sequence

    async def _follow_mark(self) -> None:
        if not self._spool.unacknowledged:
            return
        reply = await self._client.call("GET", self._mark_key, deadline_seconds=_CALL_DEADLINE_SECONDS)
        self._advance(int(reply) if isinstance(reply, bytes) else 0)
        if not self._entries or self._clock.monotonic() - self._progress_at < STALL_SECONDS:
            return
        _, entry = self._entries[0]
        still_there = await self._client.call(
            "XRANGE", self._stream, entry, entry, deadline_seconds=_CALL_DEADLINE_SECONDS
        )
        self._progress_at = self._clock.monotonic()
        if still_there:
            return  # the drain has not come to it yet
        self._advance(await self._read_mark(self._spool.process_id))
        if self._entries and self._entries[0][1] == entry:
            logger.warning("usage_sent_again", after=self._spool.acknowledged, rows=self._spool.unacknowledged)
            self._sent = self._spool.acknowledged
            self._entries.clear()

    def _advance(self, mark: int) -> None:
        if mark <= self._spool.acknowledged:
            return
        self._progress_at = self._clock.monotonic()
        self._settler.discard(self._spool.acknowledge(mark))
        self._on_mark(self._spool.acknowledged)
        self._sent = max(self._sent, self._spool.acknowledged)
        while self._entries and self._entries[0][0] <= mark:
            self._entries.popleft()
