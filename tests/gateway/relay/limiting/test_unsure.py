"""What is not sure yet: ends that nobody can tell, days that begin meanwhile, reports in several messages."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from core.errors import QuotaExceeded, RateLimited
from gateway.relay.limiting import place
from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.scripts import REPORT, Script
from tests.gateway.relay.limiting.valkey import YEAR, Counters, Process, Times, a_limit

ONE = Charge()


@pytest.fixture
def times(counters: Counters) -> Times:
    return Times(counters)


@pytest.fixture
async def process(counters: Counters, times: Times) -> AsyncIterator[Process]:
    process = Process(counters, clock=times.local, timed=True)
    await process.limiter.join()
    yield process
    await process.client.close()


@pytest.mark.shows("G5")
async def test_what_has_no_row_yet_stays_reserved_until_its_process_ends(
    process: Process, counters: Counters, times: Times
) -> None:
    """Counted as used it would be found to be too much: the ledger has nothing of it before it is `lost`."""
    budget, minute = a_limit("tokens", "day", amount=1_000), a_limit("tokens", amount=1_000)
    gate = a_limit("concurrency", "standing", amount=1)
    held = await process.reserve([budget, minute, gate], Charge(600, 0))
    held.settle(None, 0)
    held.settle(Charge(1, 0), 7)
    await process.limiter.tell(rotate=True)
    assert counters.counter("c", budget) == counters.counter("c", budget) | {"held": 600}
    assert "used" not in counters.counter("c", budget)
    assert counters.counter("w", minute)["used"] == 600
    assert counters.counter("s", gate) == {}
    counters.lapse(process.id)
    await process.live(times, 2)
    assert await process.limiter.join()
    await process.reserve([gate], ONE)
    assert counters.counter("c", budget)["held"] == 600
    with pytest.raises(QuotaExceeded):
        await process.reserve([budget], Charge(500, 0))


@pytest.mark.shows("G29")
async def test_a_request_belongs_to_the_period_that_it_was_admitted_in(process: Process, times: Times) -> None:
    """Whatever this machine's clock says, and however long its body took to come: else it counts for no day at all."""
    tokyo, berlin = (a_limit("requests", "day", amount=9, zone=zone) for zone in ("Asia/Tokyo", "Europe/Berlin"))
    start, end = (datetime(YEAR, 7, 1, hour, tzinfo=UTC).timestamp() for hour in (15, 22))
    times.advance(start + 60 - times.now)
    await process.limiter.join()
    held = await process.reserve([tokyo, berlin, a_limit()], ONE)
    assert held.within(start + 30) == start + 30
    assert held.within(start - 1) == start
    assert end - 0.01 < held.within(end + 1) < end
    assert (await process.reserve([a_limit()], ONE)).within(5.0) == 5.0


@pytest.mark.parametrize("window", ["day", "minute", "bucket"])
async def test_a_bound_beyond_all_numbers_is_too_large(process: Process, window: str) -> None:
    limits = [a_limit("tokens", window, amount=2**62, refill=1.0), a_limit("money", "month", amount=2**62)]
    with pytest.raises((RateLimited, QuotaExceeded)) as caught:
        await process.reserve(limits, Charge(2**40, 2**63, 2**90))
    assert caught.value.retry_after_seconds is None
    await process.reserve(limits, Charge(2**40, 2**40, 2**40))


@pytest.mark.parametrize(
    ("days", "messages"),
    [(3, [(3, False), (1, False), (3, False)]), (4, [(3, False), (1, False), (3, True), (1, False)])],
)
async def test_counters_of_periods_are_told_with_the_sequence_that_they_are_counted_up_to(
    process: Process, counters: Counters, monkeypatch: pytest.MonkeyPatch, days: int, messages: list[tuple[int, bool]]
) -> None:
    """Where it comes to several messages, and the last is lost, the others are not counted twice."""
    monkeypatch.setattr(place, "REPORT_COUNTERS", 3)
    budgets = [a_limit("tokens", "day", amount=1_000) for _ in range(days)]
    limits = [budgets[0], *(a_limit("tokens", amount=1_000) for _ in range(4)), *budgets[1:]]
    process.settle(await process.reserve(limits, Charge(10, 0)), Charge(4, 0))
    sent: list[tuple[int, bool]] = []
    store = process.store
    assert store is not None
    call = store.call

    async def note(script: Script, *values: object, **more: Any) -> Any:
        if script is REPORT:
            sent.append((len(values[4]), bool(values[5])))  # type: ignore[arg-type]
        return await call(script, *values, **more)

    store.call = note  # type: ignore[method-assign]
    await process.limiter.tell(rotate=True)
    assert sent == messages
    assert counters.client.hget(counters.area + "through", process.id.hex) == "1"
    assert [counters.counter("c", budget)["used"] for budget in budgets] == [4] * days
    assert not counters.client.hexists(f"{counters.area}p:{process.id.hex}", "partial")
