"""Turns the end of a request into a row in the spool, and counts it."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog
from msgspec import structs

from core.clock import Clock
from core.errors import LedgerUnavailable
from core.telemetry import metrics
from core.telemetry.seldom import Seldom
from gateway.relay.limiting.base import Charge
from gateway.relay.plan import Api, Headers, Outcome, ParsedBody, Settlement, SlimRequest, Usage, UsageSource
from gateway.relay.request_log import SILENT, RequestLog
from gateway.relay.reserve import Hold, release
from gateway.relay.rows import PriceRow
from gateway.relay.spool import Discarded, Spool, SpoolFull, discard
from tenants.policies.pricing import cost_micros
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
_FREE: Final = frozenset({Api.TOKENIZE, Api.COUNT_TOKENS})  # nothing is computed
_FAULTS: Final = frozenset({Outcome.TRUNCATED, Outcome.LOST})  # never the caller's; FAILED is ours from 500 on
_missing: Final = Seldom()

Prices = Callable[[str, UUID | None, float], PriceRow | None]
"""The prices of a model and version for a request that came at a moment (seconds since the epoch)."""


def no_prices(model: str, version_id: UUID | None, at: float) -> PriceRow | None:
    """Nothing costs anything."""
    return None


class Settler:
    """Opens and settles the tickets of one process.

    `door`: relay or drf; `on_row` is called after each row. The disk is synced at most each 50 ms, on a
    thread of its own: what the kernel has survives this process, what is synced survives the machine.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        door: str,
        clock: Clock,
        on_row: Callable[[], None],
        price: Prices = no_prices,
        request_log: RequestLog = SILENT,
    ) -> None:
        self.request_log = request_log
        self.spool = spool
        self._price = price
        self._door = door
        self._clock = clock
        self._on_row = on_row
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")
        self._sync_timer: asyncio.TimerHandle | None = None
        self._syncing: Future[None] | None = None
        self._closed = False
        self._left_nothing = False
        self._dropped: deque[tuple[OpenRow, Hold | None]] = deque()

    def open(
        self,
        request: SlimRequest,
        principal: Principal,
        parsed: ParsedBody,
        hold: Hold | None = None,
        model: str | None = None,
    ) -> "SpoolTicket":
        """Note the request before it is forwarded; the ticket settles what it holds, too.

        `model` is the model's own name, where the body may have an alias; None: the body has it.

        Raises LedgerUnavailable when a request under limits cannot be noted; what it holds is then given back. One
        without is served all the same: see `SpoolTicket`.
        """
        try:
            return self._open(request, principal, parsed, hold, model or parsed.model)
        except BaseException:
            if hold is not None:
                release(hold.reservation)
            raise

    def _open(
        self, request: SlimRequest, principal: Principal, parsed: ParsedBody, hold: Hold | None, model: str
    ) -> "SpoolTicket":
        elapsed = self._clock.monotonic() - request.received_at
        started_at = self._clock.now().timestamp() - elapsed
        if hold is not None:
            started_at = hold.reservation.within(started_at)
        bound = hold.bound if hold is not None and hold.counts_tokens else None
        row = OpenRow(
            id=request.request_id,
            tenant_id=principal.tenant_id,
            key_id=principal.key_id,
            model=model,  # a name of the catalogue: permission has seen it
            door=self._door,
            api=request.api,
            streamed=parsed.stream,
            started_at=started_at,
            subject_id=principal.subject_id,
            reserved_input=bound.input_tokens if bound else None,
            reserved_output=bound.output_tokens if bound else None,
            reserved_micros=bound.micros if bound and hold is not None and hold.counts_money else None,
        )
        try:
            self.spool.append_open(row)
        except SpoolFull as error:
            if (held_back := _missing.due(self._clock.monotonic())) is not None:
                logger.error("spool_full", error=str(error), held_back=held_back)
            if hold is not None:
                raise LedgerUnavailable(retry_after_seconds=5) from error
        return SpoolTicket(self, row, principal, request.headers, hold)

    def settle(self, opened: OpenRow, hold: Hold | None, settlement: Settlement) -> None:
        """Write the row, and settle what is held with what it says."""
        usage, endpoint = settlement.usage, settlement.endpoint
        version_id = endpoint.version_id if endpoint else None
        if hold is None or hold.prices is None:
            price = self._price(opened.model, version_id, opened.started_at)
        else:
            price = hold.price(version_id)
        if hold is not None and hold.counts_tokens:
            usage = _within(usage, hold.bound)
        cost = 0 if price is None else _cost(opened.api, price, usage, settlement)
        unseen_output, unseen_micros = _unseen(opened.api, price, usage, settlement, hold)
        lost = settlement.outcome is Outcome.LOST  # it may have used all of its bound
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
            version_id=version_id,
            instance_id=endpoint.instance_id if endpoint else None,
            engine_request_id=_told(settlement.engine_request_id, ENGINE_REQUEST_ID_LENGTH),
            error_code=_told(settlement.error_code, ERROR_CODE_LENGTH),
            subject_id=opened.subject_id,
            cost_micros=cost,
            price_id=price.id if price is not None else None,
            reserved_input=opened.reserved_input if lost else None,
            reserved_output=opened.reserved_output if lost else unseen_output,
            reserved_micros=opened.reserved_micros if lost else unseen_micros,
            queue_ms=_milliseconds(settlement.queue_seconds),
            tokenise_ms=_milliseconds(hold.counting_seconds) if hold is not None else None,
            connect_ms=_milliseconds(settlement.connect_seconds),
            first_decode_ms=_milliseconds(settlement.first_decode_seconds),
        )
        written = False
        try:
            self.spool.append_row(row)
            written = True
        except OSError as error:
            # The open stays in the spool: the request becomes a `lost` row when this process ends.
            logger.critical("usage_row_not_written", request_id=str(row.id), error=str(error))
        except SpoolFull:  # nor was there room for its open
            metrics.ledger_rows_missing.inc()
        else:
            self._sync_soon()
            self._on_row()
        if hold is not None:
            self._settle_hold(hold, row, written=written)
        if settlement.outcome in _FAULTS or (settlement.outcome is Outcome.FAILED and settlement.status >= 500):
            metrics.record_fault(opened.model, "forwarded")
        metrics.record_settled(
            self._door,
            opened.api,
            opened.model,
            settlement.outcome,
            seconds=settlement.duration_seconds,
            first_token_seconds=settlement.ttft_seconds,
            queue_seconds=settlement.queue_seconds,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
        )

    def _settle_hold(self, hold: Hold, row: UsageRow, *, written: bool) -> None:
        """A row that was not written becomes a `lost` one with the bound: so much is then held to be used, too."""
        if not written:
            hold.reservation.settle(None, 0)
            return
        used = Charge(
            (row.input_tokens or 0) + (row.reserved_input or 0),
            (row.output_tokens or 0) + (row.reserved_output or 0),
            row.cost_micros + (row.reserved_micros or 0),
        )
        hold.reservation.settle(used, row.sequence)
        bound = hold.bound
        if hold.counts_tokens and (
            used.input_tokens > bound.input_tokens
            or used.output_tokens > bound.output_tokens
            or (hold.counts_money and used.micros > bound.micros)
        ):
            metrics.limit_overruns.labels(self._door, row.api).inc()
            logger.error(
                "request_beyond_its_bound",
                request_id=str(row.id),
                model=row.model,
                usage_source=row.usage_source,
                used=used._asdict(),
                reserved=bound._asdict(),
            )

    def drop(self, opened: OpenRow, hold: Hold | None) -> None:
        """A ticket is gone without having been settled; may be called on any thread."""
        self._dropped.append((opened, hold))

    def sweep(self) -> None:
        """Settle what nobody will settle any more, as lost; about once a second."""
        while self._dropped:
            opened, hold = self._dropped.popleft()
            logger.error("ticket_dropped", request_id=str(opened.id))
            seconds = max(0.0, self._clock.now().timestamp() - opened.started_at)
            try:
                self.settle(opened, hold, Settlement(Outcome.LOST, 0, Usage(), seconds))
            except Exception:  # a defect of ours: what comes after it is swept all the same
                logger.exception("ticket_not_settled", request_id=str(opened.id))
                if hold is not None:
                    hold.reservation.settle(None, 0)

    def take_over(self, row: UsageRow) -> None:
        """A row of a dead process becomes one of this one's. Raises SpoolFull or OSError."""
        spool = self.spool
        spool.append_row(structs.replace(row, process_id=spool.process_id, sequence=spool.last_sequence + 1))
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
    """A request that is noted in the spool, and what it holds; the first settlement counts.

    One without limits may not have been noted, where the spool had no room: if there is none for its row either by the
    time that it ends, the row is missing from the ledger, and counted as that.
    """

    __slots__ = ("_headers", "_hold", "_opened", "_principal", "_settled", "_settler")

    def __init__(
        self, settler: Settler, opened: OpenRow, principal: Principal, headers: Headers, hold: Hold | None = None
    ) -> None:
        self._settler = settler
        self._opened = opened
        self._principal = principal
        self._headers = headers
        self._hold = hold
        self._settled = False

    def __del__(self) -> None:
        # What a request holds must not be lost with it; whoever forgets to settle one is corrected here.
        if not getattr(self, "_settled", True):  # one that was never made holds nothing
            self._settler.drop(self._opened, self._hold)

    def settle(self, settlement: Settlement) -> None:
        if not self._settled:
            self._settled = True
            try:
                self._settler.settle(self._opened, self._hold, settlement)
            except BaseException:  # a defect of ours must not hold what others could use, or give back what was used
                if self._hold is not None:
                    self._hold.reservation.settle(None, 0)
                raise
            self._settler.request_log.settled(self._opened, settlement, self._principal, self._headers)


def _within(usage: Usage, bound: Charge) -> Usage:
    """An estimate of the input is never more than what is known to be the most."""
    if usage.source is not UsageSource.ESTIMATED or (usage.input_tokens or 0) <= bound.input_tokens:
        return usage
    return replace(usage, input_tokens=bound.input_tokens)


def _unseen(
    api: str, price: PriceRow | None, usage: Usage, settlement: Settlement, hold: Hold | None
) -> tuple[int | None, int | None]:
    """What limits count, besides what is billed, of an answer that nobody has seen: output tokens and millionths.

    Never more than was reserved; None where no limit counts it.
    """
    if settlement.unseen_output is None or hold is None or not hold.counts_tokens:
        return None, None
    bound = hold.bound
    output = max(0, min(settlement.unseen_output, bound.output_tokens - (usage.output_tokens or 0)))
    if not hold.counts_money:
        return output, None
    if price is None:
        return output, 0
    cost = _cost(api, price, usage, settlement)
    dearer = _cost(api, price, replace(usage, output_tokens=(usage.output_tokens or 0) + output), settlement)
    return output, max(0, min(dearer, bound.micros) - cost)


def _cost(api: str, price: PriceRow, usage: Usage, settlement: Settlement) -> int:
    """What the request costs, in millionths: nothing where it failed and nobody said that anything was computed."""
    unknown = usage.source is UsageSource.NONE and settlement.unseen_output is None
    if api in _FREE or (unknown and settlement.outcome is not Outcome.SUCCESS):
        return 0
    return cost_micros(
        price.tag,
        input_tokens=usage.input_tokens or 0,
        cached_tokens=usage.cached_tokens or 0,
        output_tokens=usage.output_tokens or 0,
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _told(text: str | None, length: int) -> str:
    return storable_text(text, length) if text else ""
