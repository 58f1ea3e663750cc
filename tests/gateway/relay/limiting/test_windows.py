"""What each window counts, by Valkey's clock: one process, one or several limits."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from core.errors import GatehouseError, QuotaExceeded, RateLimited
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.rows import LimitRow
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


def tokens(incoming: int, outgoing: int = 0) -> Charge:
    return Charge(input_tokens=incoming, output_tokens=outgoing)


async def refused(process: Process, limits: list[LimitRow], bound: Charge = ONE) -> GatehouseError:
    with pytest.raises((RateLimited, QuotaExceeded)) as caught:
        await process.reserve(limits, bound)
    return caught.value


async def test_a_minute_slides(process: Process, times: Times) -> None:
    limits = [a_limit(amount=3)]
    for _ in range(3):
        process.settle(await process.reserve(limits, ONE), ONE)
        await process.live(times, 10)
    error = await refused(process, limits)
    assert error.retry_after_seconds == 31  # 30 s ago, and a second late
    assert "tenant acme: limit 3, used 3, reserved 0, requested 1, reset in 31 s." in error.message
    await process.live(times, 30)
    await refused(process, limits)
    await process.live(times, 1)
    await process.reserve(limits, ONE)
    await refused(process, limits)


async def test_a_long_request_counts_from_its_admission(process: Process, times: Times) -> None:
    limits = [a_limit(amount=1)]
    held = await process.reserve(limits, ONE)
    await process.live(times, 61)
    another = await process.reserve(limits, ONE)  # the first still runs, and has left the window
    process.settle(held, ONE)
    await refused(process, limits)
    process.settle(another, ONE)


async def test_what_was_not_used_goes_back_to_its_own_second(
    process: Process, times: Times, counters: Counters
) -> None:
    limit = a_limit("tokens", amount=100)
    held = await process.reserve([limit], tokens(50, 50))
    await refused(process, [limit], tokens(1))
    second = int(times.now)
    await process.live(times, 5)
    process.settle(held, tokens(30, 10))
    await process.limiter.tell(rotate=False)
    assert counters.counter("w", limit)[str(second)] == 40
    assert counters.counter("w", limit)["used"] == 40
    await process.reserve([limit], tokens(60))
    await refused(process, [limit], tokens(1))


async def test_what_is_given_back_after_the_window_is_of_no_account(
    process: Process, times: Times, counters: Counters
) -> None:
    limit = a_limit("tokens", amount=100)
    held = await process.reserve([limit], tokens(100))
    await process.live(times, 62)
    later = await process.reserve([limit], tokens(100))
    process.settle(held, NOTHING)
    await process.limiter.tell(rotate=True)
    await refused(process, [limit], tokens(1))
    process.settle(later, tokens(100))
    assert counters.counter("w", limit)["used"] == 100


@pytest.mark.shows("R53")
async def test_a_bucket_of_a_hundred_refills_by_ten_a_second(process: Process, times: Times) -> None:
    limits = [a_limit(window="bucket", amount=100, refill=10.0)]
    for _ in range(100):
        process.settle(await process.reserve(limits, ONE), ONE)
    error = await refused(process, limits)
    assert error.retry_after_seconds == 1
    assert "limit 100, used 100" in error.message
    await process.live(times, 0.1)
    await process.reserve(limits, ONE)
    await refused(process, limits)
    await process.live(times, 1)
    for _ in range(10):
        await process.reserve(limits, ONE)
    await refused(process, limits)
    await process.live(times, 100)
    for _ in range(100):
        await process.reserve(limits, ONE)
    await refused(process, limits)


async def test_a_bucket_takes_back_to_its_brim(process: Process, times: Times, counters: Counters) -> None:
    limit = a_limit("tokens", "bucket", amount=100, refill=1.0)
    held = await process.reserve([limit], tokens(100))
    await process.live(times, 5)
    process.settle(held, tokens(2))
    await process.limiter.tell(rotate=False)
    assert counters.counter("b", limit)["level"] == 100
    process.settle(await process.reserve([limit], tokens(100)), tokens(100))
    error = await refused(process, [limit], tokens(50))
    assert error.retry_after_seconds == 50


async def test_at_once_counts_what_runs(process: Process, counters: Counters) -> None:
    limit = a_limit("concurrency", "standing", amount=2)
    first, second = await process.reserve([limit], ONE), await process.reserve([limit], ONE)
    error = await refused(process, [limit])
    assert "limit 2, used 0, reserved 2" in error.message
    process.settle(first, ONE)
    third = await process.reserve([limit], ONE)
    await refused(process, [limit])
    for held in (second, third):
        process.settle(held, None)
    await process.limiter.tell(rotate=False)
    assert counters.counter("s", limit) == {}


@pytest.mark.parametrize("window", ["day", "month"])
async def test_a_budget_is_used_up(process: Process, counters: Counters, window: str) -> None:
    limit = a_limit("money", window, amount=1_000_000)
    held = await process.reserve([limit], Charge(micros=700_000))
    error = await refused(process, [limit], Charge(micros=400_000))
    assert isinstance(error, QuotaExceeded)
    assert "limit 1, used 0, reserved 0.7, requested 0.4, reset in " in error.message
    assert error.retry_after_seconds == 1  # what runs may end
    process.settle(held, Charge(micros=100_000))
    await process.limiter.tell(rotate=False)
    counted = counters.counter("c", limit)
    assert (counted["used"], counted.get("held", 0)) == (100_000, 0)
    process.settle(await process.reserve([limit], Charge(micros=900_000)), None)
    error = await refused(process, [limit], Charge(micros=1))
    until = datetime(YEAR, 7, 2, tzinfo=UTC) if window == "day" else datetime(YEAR, 8, 1, tzinfo=UTC)
    assert error.retry_after_seconds == until.timestamp() - counted_now(counters)


def counted_now(counters: Counters) -> int:
    return counters.hash("clock")["s"]


@pytest.mark.shows("G29")
async def test_a_request_is_settled_in_the_day_it_was_admitted_in(
    process: Process, times: Times, counters: Counters
) -> None:
    limit = a_limit("tokens", "day", amount=100, zone="Asia/Tokyo")
    midnight = datetime(YEAR, 7, 1, 15, tzinfo=UTC).timestamp()
    times.advance(midnight - 1 - times.now)
    await process.limiter.join()
    held = await process.reserve([limit], tokens(100))
    await refused(process, [limit], tokens(1))
    await process.live(times, 1)
    await process.reserve([limit], tokens(100))
    process.settle(held, tokens(60))
    await process.limiter.tell(rotate=True)
    yesterday = counters.hash(f"c:{limit.id.hex}:{int(midnight - 86_400)}")
    today = counters.hash(f"c:{limit.id.hex}:{int(midnight)}")
    assert (yesterday["used"], yesterday.get("held", 0)) == (60, 0)
    assert (today.get("used", 0), today["held"]) == (0, 100)
    assert yesterday["end"] == today["end"] - 86_400 == int(midnight)


def _last_sunday(month: int, *, hour: int) -> datetime:
    """Of a month that has 31 days; when clocks are changed in Berlin."""
    last = datetime(YEAR, month, 31, hour, tzinfo=UTC)
    return last - timedelta(days=last.isoweekday() % 7)


@pytest.mark.shows("G29")
@pytest.mark.parametrize(
    ("zone", "noon", "hours"),
    [
        ("Europe/Berlin", _last_sunday(3, hour=10), 23),
        ("Europe/Berlin", _last_sunday(10, hour=11), 25),
    ],
)
async def test_a_day_is_as_long_as_its_zone_makes_it(
    process: Process, times: Times, counters: Counters, zone: str, noon: datetime, hours: int
) -> None:
    limit = a_limit("requests", "day", amount=1, zone=zone)
    times.now = noon.timestamp()
    counters.set_time(times.now)
    await process.limiter.join()
    process.settle(await process.reserve([limit], ONE), ONE)
    (name,) = counters.client.scan_iter(f"{counters.area}c:{limit.id.hex}:*")
    start = int(name.rpartition(":")[2])
    assert counters.client.hget(name, "end") == str(start + hours * 3600)


async def test_a_process_whose_clock_is_off_asks_for_the_right_day(process: Process, times: Times) -> None:
    limits = [a_limit("requests", "day", amount=1)]
    await process.reserve(limits, ONE)
    times.now += 86_400  # unknown to the process, whose own clock stands
    times.counters.set_time(times.now)
    times.counters.client.zadd(times.counters.area + "procs", {process.id.hex: times.now + 10})
    await process.reserve(limits, ONE)
    await refused(process, limits)


async def test_all_limits_or_none(process: Process, counters: Counters) -> None:
    wide, narrow = a_limit("tokens", "day", amount=1_000), a_limit("tokens", amount=100)
    gate = a_limit("concurrency", "standing", amount=10)
    error = await refused(process, [wide, gate, narrow], tokens(101))
    assert "too large" in error.message
    assert error.retry_after_seconds is None
    assert counters.counter("c", wide) == counters.counter("s", gate) == counters.counter("w", narrow) == {}
    await process.reserve([wide, gate, narrow], tokens(100))
    assert (counters.counter("c", wide)["held"], counters.counter("s", gate)["held"]) == (100, 1)


async def test_the_refusal_cites_what_takes_longest(process: Process) -> None:
    minute, month = a_limit(amount=1), a_limit("requests", "month", amount=1)
    process.settle(await process.reserve([minute, month], ONE), ONE)
    error = await refused(process, [minute, month])
    assert "requests per month" in error.message
    assert isinstance(error, QuotaExceeded)


async def test_a_boost_counts_until_it_ends(process: Process, times: Times) -> None:
    limits = [a_limit("requests", "day", amount=1, boost=(3, times.now + 5))]
    for _ in range(2):
        process.settle(await process.reserve(limits, ONE), ONE)
    await process.live(times, 5)
    await refused(process, limits)


async def test_a_lowered_amount_refuses_until_use_has_fallen(process: Process, times: Times) -> None:
    limit = a_limit(amount=10)
    for _ in range(5):
        process.settle(await process.reserve([limit], ONE), ONE)
    lower = a_limit(amount=3, limit_id=limit.id)
    await refused(process, [lower])
    await process.live(times, 61)
    for _ in range(3):
        await process.reserve([lower], ONE)
    await refused(process, [lower])


async def test_a_lowered_amount_calls_slices_in(process: Process, counters: Counters) -> None:
    limit = a_limit("requests", "day", amount=10_000)
    for _ in range(20):
        process.settle(await process.reserve([limit], ONE), ONE)
    assert counters.counter("c", limit)["held"] > 20
    await refused(process, [a_limit("requests", "day", amount=5, limit_id=limit.id)])
    await process.limiter.tell(rotate=False)
    counted = counters.counter("c", limit)
    assert (counted["used"], counted.get("held", 0), counted.get("free", 0)) == (20, 0, 0)


async def test_more_than_reserved_is_counted(process: Process, counters: Counters) -> None:
    budget, minute = a_limit("tokens", "day", amount=100), a_limit("tokens", amount=100)
    process.settle(await process.reserve([budget, minute], tokens(10)), tokens(25))
    await process.limiter.tell(rotate=False)
    assert counters.counter("c", budget)["used"] == counters.counter("w", minute)["used"] == 25


async def test_settling_twice_changes_nothing(process: Process, counters: Counters) -> None:
    limits = [a_limit("tokens", "day", amount=100)]
    held = await process.reserve(limits, tokens(10))
    process.settle(held, tokens(5))
    process.settle(held, None)
    await process.limiter.tell(rotate=False)
    assert counters.counter("c", limits[0])["used"] == 5


async def test_what_was_never_forwarded_costs_nothing(process: Process, counters: Counters) -> None:
    limits = [a_limit("requests", "day"), a_limit(), a_limit("concurrency", "standing")]
    (await process.reserve(limits, ONE)).settle(NOTHING, 0)
    await process.limiter.tell(rotate=False)
    assert counters.counter("c", limits[0]).get("used", 0) == 0
    assert counters.counter("w", limits[1])["used"] == 0
    assert counters.hash(f"h:{process.id.hex}") == {}


async def test_the_pools_limits_are_not_counted_here(process: Process) -> None:
    limits = [a_limit("gpus", "standing", amount=1), a_limit("gpu_memory", "standing", amount=1)]
    for _ in range(5):
        await process.reserve(limits, ONE)


async def test_held_requests_are_counted_by_themselves(process: Process) -> None:
    limits = [a_limit("held_requests", "standing", amount=1), a_limit(amount=5)]
    held = await process.limiter.hold(limits)
    with pytest.raises(RateLimited, match="requests held"):
        await process.limiter.hold(limits)
    for _ in range(5):
        await process.reserve(limits, ONE)
    held.settle(NOTHING, 0)
    await process.limiter.hold(limits)


async def test_a_request_given_up_while_it_asks_holds_nothing(process: Process, counters: Counters) -> None:
    limits = [a_limit("concurrency", "standing", amount=5)]
    asking = asyncio.create_task(process.limiter.reserve(limits, ONE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.gather(*process.limiter._asking)
    await process.limiter.tell(rotate=False)
    assert counters.counter("s", limits[0]) == {}


async def test_headers_are_of_the_limits_with_the_least_left(process: Process) -> None:
    limits = [a_limit(amount=10), a_limit("requests", "day", amount=5), a_limit("tokens", "bucket", 100, refill=1.0)]
    held = await process.reserve(limits, tokens(20, 20))
    assert dict(held.headers()) == {
        b"x-ratelimit-limit-requests": b"5",
        b"x-ratelimit-remaining-requests": b"4",
        b"x-ratelimit-reset-requests": b"12h0m0s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"60",
        b"x-ratelimit-reset-tokens": b"40s",
    }
    assert (await process.reserve([a_limit("money", "day")], ONE)).headers() == []
