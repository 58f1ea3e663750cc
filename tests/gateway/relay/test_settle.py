"""What a request's end becomes: one row, counted once, on the disk soon."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from core.clock import ManualClock
from core.errors import LedgerUnavailable
from core.ids import uuid7
from core.telemetry import metrics
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.plan import Api, Endpoint, Outcome, ParsedBody, Settlement, SlimRequest, Usage, UsageSource
from gateway.relay.reserve import Hold
from gateway.relay.rows import PriceRow
from gateway.relay.settle import Settler, SpoolTicket
from gateway.relay.spool import Spool
from tenants.policies.pricing import PriceTag
from tenants.principal import Principal
from tenants.usage import OpenRow, UsageRow, decode_row
from tests.doubles.limiter import NotingLimiter

PRINCIPAL = Principal(uuid4(), "acme", uuid4(), frozenset({"infer"}), (), None)
PARSED = ParsedBody("tiny", True, False, 1, None, {})
BOUND = Charge(30, 40, 1_000)
PRICE = PriceRow(uuid4(), "tiny", None, 0.0, PriceTag(2_000_000, 500_000, 10_000_000, 7))
ENDPOINT = Endpoint(uuid4(), uuid4(), "vllm", "127.0.0.1", 1, "", "served")


class Desk:
    def __init__(self, folder: Path, *, cap_bytes: int = 1 << 20, price: PriceRow | None = None) -> None:
        self.clock = ManualClock()
        self.clock.advance(100)
        self.spool = Spool.create(folder, uuid7(), cap_bytes=cap_bytes)
        self.told = 0
        self.settler = Settler(self.spool, door="relay", clock=self.clock, on_row=self._row, price=lambda *_: price)

    def _row(self) -> None:
        self.told += 1

    def request(self) -> SlimRequest:
        return SlimRequest(uuid7(), Api.CHAT, "/", [], b"", self.clock.monotonic() - 2.0)

    def rows(self) -> list[UsageRow]:
        return [decode_row(payload) for _, payload in self.spool.rows_after(0, limit=100)]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(tmp_path / "spool")
    yield desk
    await desk.settler.close()


def a_settlement(outcome: Outcome = Outcome.SUCCESS, **more: object) -> Settlement:
    settlement = Settlement(outcome, 200, Usage(3, 0, 4, UsageSource.ENGINE), 1.25, ttft_seconds=0.5, endpoint=ENDPOINT)
    for name, value in more.items():
        setattr(settlement, name, value)
    return settlement


async def test_the_row_says_what_happened(desk: Desk) -> None:
    request = desk.request()
    desk.settler.open(request, PRINCIPAL, PARSED).settle(a_settlement(engine_request_id="cmpl-1", attempts=2))
    (row,) = desk.rows()
    assert (row.id, row.sequence, row.process_id) == (request.request_id, 1, desk.spool.process_id)
    assert (row.tenant_id, row.key_id, row.model) == (PRINCIPAL.tenant_id, PRINCIPAL.key_id, "tiny")
    assert (row.instance_id, row.version_id) == (ENDPOINT.instance_id, ENDPOINT.version_id)
    assert (row.input_tokens, row.cached_tokens, row.output_tokens, row.usage_source) == (3, 0, 4, "engine")
    assert (row.duration_ms, row.ttft_ms, row.attempts, row.engine_request_id) == (1250.0, 500.0, 2, "cmpl-1")
    assert row.started_at == desk.clock.now().timestamp() - 2.0  # when it arrived, not when it was admitted


async def test_nothing_said_stays_nothing_and_zero_stays_zero(desk: Desk) -> None:
    for usage in (Usage(), Usage(0, 0, 0, UsageSource.ENGINE)):
        desk.settler.open(desk.request(), PRINCIPAL, PARSED).settle(a_settlement(usage=usage))
    assert [(r.output_tokens, r.usage_source) for r in desk.rows()] == [(None, "none"), (0, "engine")]


async def test_the_first_settlement_counts(desk: Desk) -> None:
    ticket = desk.settler.open(desk.request(), PRINCIPAL, PARSED)
    ticket.settle(a_settlement(Outcome.CANCELLED))
    ticket.settle(a_settlement())
    assert [row.outcome for row in desk.rows()] == ["cancelled"]
    assert desk.told == 1


async def test_what_an_engine_says_is_made_storable(desk: Desk) -> None:
    ticket = desk.settler.open(desk.request(), PRINCIPAL, PARSED)
    ticket.settle(a_settlement(engine_request_id="a\x00b\ud800" + "c" * 300, error_code="x" * 100))
    (row,) = desk.rows()
    assert row.engine_request_id == ("ab?" + "c" * 300)[:200]
    assert row.error_code == "x" * 64


def a_hold(limiter: NotingLimiter, bound: Charge = BOUND) -> Hold:
    reservation = limiter.reserve_now([], bound)
    assert reservation is not None
    return Hold(reservation, bound, counts_tokens=True, counts_money=True)


async def test_what_is_held_is_settled_with_what_the_row_says(tmp_path: Path) -> None:
    desk, limiter = Desk(tmp_path / "spool", price=PRICE), NotingLimiter()
    for usage in (
        Usage(10, 4, 5, UsageSource.ENGINE),
        Usage(8, None, 2, UsageSource.ESTIMATED),
        Usage(0, 0, 0, UsageSource.ENGINE),
        Usage(0, 0, 0, UsageSource.APPORTIONED),
        Usage(),
    ):
        desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter)).settle(a_settlement(usage=usage))
    rows = desk.rows()
    assert [row.cost_micros for row in rows] == [6 * 2 + 4 // 2 + 50 + 7, 16 + 20 + 7, 7, 7, 7]
    assert {row.price_id for row in rows} == {PRICE.id}
    assert [made.settled for made in limiter.made] == [
        [(Charge(row.input_tokens or 0, row.output_tokens or 0, row.cost_micros), row.sequence)] for row in rows
    ]
    await desk.settler.close()


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED, Outcome.TRUNCATED])
async def test_what_nobody_says_was_computed_costs_nothing_unless_it_was_answered(
    tmp_path: Path, outcome: Outcome
) -> None:
    desk, limiter = Desk(tmp_path / "spool", price=PRICE), NotingLimiter()
    desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter)).settle(a_settlement(outcome, usage=Usage()))
    (row,) = desk.rows()
    assert (row.cost_micros, row.input_tokens) == (0, None)
    assert limiter.made[0].settled == [(Charge(0, 0, 0), 1)]
    await desk.settler.close()


@pytest.mark.shows("G8")
async def test_what_nobody_saw_of_an_answer_counts_under_limits_and_is_not_billed(tmp_path: Path) -> None:
    desk, limiter = Desk(tmp_path / "spool", price=PRICE), NotingLimiter()
    hold = a_hold(limiter, Charge(30, 40, 150))
    for held in (hold, hold._replace(counts_money=False), hold._replace(counts_tokens=False, counts_money=False), None):
        for unseen in (3, 4000):
            usage = Usage(35, source=UsageSource.ESTIMATED)
            settlement = a_settlement(Outcome.CANCELLED, usage=usage, unseen_output=unseen)
            desk.settler.open(desk.request(), PRINCIPAL, PARSED, held).settle(settlement)
    rows = desk.rows()
    assert {(row.output_tokens, row.usage_source) for row in rows} == {(None, "estimated")}
    assert [(row.input_tokens, row.cost_micros, row.reserved_output, row.reserved_micros) for row in rows] == [
        (30, 67, 3, 30),
        (30, 67, 40, 150 - 67),  # never more than was reserved
        (30, 67, 3, None),
        (30, 67, 40, None),
        *[(35, 77, None, None)] * 4,
    ]
    assert {row.reserved_input for row in rows} == {None}
    assert limiter.made[0].settled == [(Charge(30, 3, 97), 1)]
    await desk.settler.close()


async def test_work_without_tokens_that_a_client_left_costs_what_a_request_costs(tmp_path: Path) -> None:
    desk, limiter = Desk(tmp_path / "spool", price=PRICE), NotingLimiter()
    settlement = a_settlement(Outcome.CANCELLED, usage=Usage(), unseen_output=0)
    desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter)).settle(settlement)
    (row,) = desk.rows()
    assert (row.cost_micros, row.usage_source, row.reserved_output, row.reserved_micros) == (7, "none", 0, 0)
    await desk.settler.close()


async def test_a_ticket_that_could_not_be_made_drops_nothing(desk: Desk, recwarn: pytest.WarningsRecorder) -> None:
    unmade = SpoolTicket.__new__(SpoolTicket)
    del unmade
    gc.collect()
    assert not [one for one in recwarn if one.category is pytest.PytestUnraisableExceptionWarning]
    desk.settler.sweep()
    assert desk.rows() == []


async def test_a_row_that_cannot_be_written_is_held_to_have_used_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, limiter = Desk(tmp_path / "spool"), NotingLimiter()
    ticket = desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter))

    def fail(row: UsageRow) -> None:
        raise OSError("disk")

    monkeypatch.setattr(desk.spool, "append_row", fail)
    ticket.settle(a_settlement())
    assert limiter.made[0].settled == [(None, 0)]
    await desk.settler.close()


async def test_a_defect_while_settling_gives_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, limiter = Desk(tmp_path / "spool"), NotingLimiter()
    ticket = desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter))

    def fail(row: UsageRow) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(desk.spool, "append_row", fail)
    with pytest.raises(RuntimeError):
        ticket.settle(a_settlement())
    assert limiter.made[0].settled == [(None, 0)]
    await desk.settler.close()


@pytest.mark.shows("G29")
async def test_a_request_is_told_to_have_started_in_the_period_it_is_reserved_in(tmp_path: Path) -> None:
    """Its body came for a while, or our clock is behind Valkey's: the ledger and the counter speak of the same day."""
    desk, limiter = Desk(tmp_path / "spool"), NotingLimiter()
    midnight = desk.clock.now().timestamp() - 1.0
    hold = a_hold(limiter)
    limiter.made[0].period_from = midnight
    desk.settler.open(desk.request(), PRINCIPAL, PARSED, hold).settle(a_settlement())
    desk.settler.open(desk.request(), PRINCIPAL, PARSED).settle(a_settlement())
    assert [row.started_at for row in desk.rows()] == [midnight, midnight - 1.0]
    await desk.settler.close()


async def test_the_open_says_what_is_reserved_where_tokens_or_money_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, limiter = Desk(tmp_path / "spool"), NotingLimiter()
    opened: list[OpenRow] = []
    append = desk.spool.append_open

    def note(row: OpenRow) -> None:
        opened.append(row)
        append(row)

    monkeypatch.setattr(desk.spool, "append_open", note)
    hold = a_hold(limiter)
    for held in (hold, hold._replace(counts_money=False), hold._replace(counts_tokens=False, counts_money=False), None):
        desk.settler.open(desk.request(), PRINCIPAL, PARSED, held).settle(a_settlement())
    assert [(row.reserved_input, row.reserved_output, row.reserved_micros) for row in opened] == [
        (30, 40, 1000),
        (30, 40, None),
        (None, None, None),
        (None, None, None),
    ]
    await desk.settler.close()


async def test_a_ticket_that_is_forgotten_is_held_to_have_used_its_bound(desk: Desk) -> None:
    """It may have been forwarded: what it used nobody knows, as of the requests of a process that died."""
    limiter = NotingLimiter()
    desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter))
    gc.collect()
    desk.settler.sweep()
    (row,) = desk.rows()
    assert (row.outcome, row.status, row.cost_micros) == ("lost", 0, 0)
    assert (row.reserved_input, row.reserved_output, row.reserved_micros) == (30, 40, 1000)
    assert limiter.made[0].settled == [(BOUND, 1)]


async def test_a_defect_while_sweeping_keeps_no_other_from_being_settled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter, append = NotingLimiter(), desk.spool.append_row
    for _ in range(2):
        desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter))
    gc.collect()

    def fail_once(row: UsageRow) -> None:
        monkeypatch.setattr(desk.spool, "append_row", append)
        raise RuntimeError("defect")

    monkeypatch.setattr(desk.spool, "append_row", fail_once)
    desk.settler.sweep()
    assert [made.settled for made in limiter.made] == [[(None, 0)], [(BOUND, 1)]]


async def test_more_than_was_reserved_is_told(tmp_path: Path) -> None:
    desk, limiter = Desk(tmp_path / "spool"), NotingLimiter()
    overruns = metrics.limit_overruns.labels("relay", "chat")
    before = overruns._value.get()
    for output in (40, 41):
        ticket = desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter))
        ticket.settle(a_settlement(usage=Usage(30, 0, output, UsageSource.ENGINE)))
    assert overruns._value.get() - before == 1
    await desk.settler.close()


def _open_all(desk: Desk, limiter: NotingLimiter, tickets: list[SpoolTicket]) -> None:
    while True:
        tickets.append(desk.settler.open(desk.request(), PRINCIPAL, PARSED, a_hold(limiter)))


async def test_without_room_a_request_under_limits_is_told_503_and_holds_nothing(tmp_path: Path) -> None:
    desk, limiter = Desk(tmp_path / "spool", cap_bytes=1 << 16), NotingLimiter()
    tickets: list[SpoolTicket] = []
    with pytest.raises(LedgerUnavailable) as refused:
        _open_all(desk, limiter, tickets)
    assert (refused.value.status, refused.value.retry_after_seconds) == (503, 5)
    assert limiter.made[-1].settled == [(NOTHING, 0)]
    for ticket in tickets:
        ticket.settle(a_settlement())
    assert desk.spool.last_sequence == len(tickets)
    assert not limiter.open
    assert not await desk.settler.close()


async def test_without_room_a_request_without_limits_goes_on_and_its_row_is_counted_as_missing(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "spool", cap_bytes=1 << 16)
    missing = metrics.ledger_rows_missing._value.get()
    tickets = [desk.settler.open(desk.request(), PRINCIPAL, PARSED) for _ in range(500)]
    noted = desk.spool.open_count
    assert noted < 500
    for ticket in tickets:
        ticket.settle(a_settlement())
    assert desk.spool.last_sequence + metrics.ledger_rows_missing._value.get() - missing == 500
    assert desk.spool.last_sequence >= noted
    await desk.settler.close()


async def test_rows_come_to_the_disk_soon_and_one_sync_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, release, synced = 0, 0, threading.Event(), 0

    def slow_sync() -> None:
        nonlocal running, most, synced
        running += 1
        most = max(most, running)
        release.wait(5)
        running -= 1
        synced += 1

    monkeypatch.setattr(desk.spool, "sync", slow_sync)
    queued = desk.settler._thread._work_queue
    for _ in range(5):
        desk.settler.open(desk.request(), PRINCIPAL, PARSED).settle(a_settlement())
        await asyncio.sleep(0.06)  # longer than the batch's time
    assert queued.qsize() == 0
    release.set()
    async with asyncio.timeout(5):
        while synced < 2:  # noqa: ASYNC110  # the thread tells nobody
            await asyncio.sleep(0.01)
    assert most == 1
