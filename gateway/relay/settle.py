"""Turns the end of a request into a row in the spool, and counts it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import structlog
from msgspec.structs import replace

from core.clock import Clock
from core.errors import LedgerUnavailable
from core.telemetry import metrics
from gateway.relay.plan import ParsedBody, Settlement, SlimRequest
from gateway.relay.spool import Discarded, Spool, SpoolFull, discard
from tenants.principal import Principal
from tenants.usage import (
    ENGINE_REQUEST_ID_LENGTH,
    ERROR_CODE_LENGTH,
    OpenRow,
    UsageRow,
    storable_text,
)

logger = structlog.get_logger(__name__)

SYNC_SECONDS: Final = 0.05


class Settler:
    """Opens and settles the tickets of one process.

    `door`: relay or drf; `on_row` is called after each row. The disk is synced at most each 50 ms, on a
    thread of its own: what the kernel has survives this process, what is synced survives the machine.
    """

    def __init__(self, spool: Spool, *, door: str, clock: Clock, on_row: Callable[[], None]) -> None:
        self.spool = spool
        self._door = door
        self._clock = clock
        self._on_row = on_row
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._sync_timer: asyncio.TimerHandle | None = None
        self._syncing: Future[None] | None = None
        self._closed = False
        self._left_nothing = False

    def open(self, request: SlimRequest, principal: Principal, parsed: ParsedBody) -> "SpoolTicket":
        """Note the request before it is forwarded. Raises LedgerUnavailable when it cannot be noted."""
        elapsed = self._clock.monotonic() - request.received_at
        row = OpenRow(
            id=request.request_id,
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            model=parsed.model,  # a name of the catalogue: permission has seen it
            door=self._door,
            api=request.api,
            streamed=parsed.stream,
            started_at=self._clock.now().timestamp() - elapsed,
        )
        try:
            self.spool.append_open(row)
        except SpoolFull as error:
            logger.error("spool_full", error=str(error))
            raise LedgerUnavailable(retry_after_seconds=5) from error
        return SpoolTicket(self, row)

    def settle(self, opened: OpenRow, settlement: Settlement) -> None:
        usage, endpoint = settlement.usage, settlement.endpoint
        row = UsageRow(
            id=opened.id,
            process_id=self.spool.process_id,
            sequence=self.spool.last_sequence + 1,
            tenant_id=opened.tenant_id,
            key_id=opened.key_id,
            model=opened.model,
            door=opened.door,
            api=opened.api,
            streamed=opened.streamed,
            started_at=opened.started_at,
            outcome=settlement.outcome,
            status=settlement.status,
            usage_source=usage.source,
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            duration_ms=_milliseconds(settlement.duration_seconds),
            ttft_ms=_milliseconds(settlement.ttft_seconds),
            attempts=settlement.attempts,
            version_id=endpoint.version_id if endpoint else None,
            instance_id=endpoint.instance_id if endpoint else None,
            engine_request_id=_told(settlement.engine_request_id, ENGINE_REQUEST_ID_LENGTH),
            error_code=_told(settlement.error_code, ERROR_CODE_LENGTH),
        )
        try:
            self.spool.append_row(row)
        except OSError as error:
            # The open stays in the spool: the request becomes a `lost` row when this process ends.
            logger.critical("usage_row_not_written", request_id=str(row.id), error=str(error))
        else:
            self._sync_soon()
            self._on_row()
        metrics.record_settled(
            self._door,
            opened.api,
            opened.model,
            settlement.outcome,
            seconds=settlement.duration_seconds,
            first_token_seconds=settlement.ttft_seconds,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
        )

    def take_over(self, row: UsageRow) -> None:
        """A row of a dead process becomes one of this one's. Raises SpoolFull or OSError."""
        spool = self.spool
        spool.append_row(replace(row, process_id=spool.process_id, sequence=spool.last_sequence + 1))
        self._on_row()

    async def sync(self) -> None:
        """Everything written so far is on the disk when this returns."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sync)

    def discard(self, files: list[Discarded]) -> None:
        """Close and delete segments, after any sync of them that runs."""
        for file in files:
            self._thread.submit(discard, file)

    async def close(self) -> bool:
        """Sync and close the spool; True when nothing was owed any more. A second call changes nothing."""
        if self._closed:
            return self._left_nothing
        self._closed = True
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        await self.sync()
        self._thread.shutdown(wait=True)
        self._left_nothing = self.spool.close()
        return self._left_nothing

    def _sync_soon(self) -> None:
        if self._sync_timer is None:
            self._sync_timer = asyncio.get_running_loop().call_later(SYNC_SECONDS, self._start_sync)

    def _start_sync(self) -> None:
        self._sync_timer = None
        if self._syncing is not None and not self._syncing.done():
            self._sync_soon()  # a slow disk: one at a time
            return
        self._syncing = self._thread.submit(self._sync)

    def _sync(self) -> None:
        try:
            self.spool.sync()
        except OSError as error:
            logger.error("spool_not_synced", error=str(error))


class SpoolTicket:
    """An `open` record; the first settlement counts."""

    __slots__ = ("_opened", "_settled", "_settler")

    def __init__(self, settler: Settler, opened: OpenRow) -> None:
        self._settler = settler
        self._opened = opened
        self._settled = False

    def settle(self, settlement: Settlement) -> None:
        if not self._settled:
            self._settled = True
            self._settler.settle(self._opened, settlement)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _told(text: str | None, length: int) -> str:
    return storable_text(text, length) if text else ""
