"""Several processes under the same limits: never more than the amount, never a refusal while another holds room."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from core.clock import SystemClock
from core.errors import GatehouseError, QuotaExceeded, RateLimited
from gateway.relay.limiting.base import Charge
from gateway.relay.rows import LimitRow
from tests.gateway.relay.limiting.valkey import Counters, Process, Times, a_limit, until

ONE = Charge()
TASKS = 64


@pytest.fixture
async def processes(counters: Counters) -> AsyncIterator[list[Process]]:
    """Three, as gateways run."""
    processes = [await Process(counters, clock=SystemClock()).start() for _ in range(3)]
    yield processes
    for process in processes:
        await process.stop()


async def flood(processes: Sequence[Process], limits: list[LimitRow], bound: Charge, used: Charge | None) -> int:
    """64 clients that go on until they have been refused; how many requests were admitted."""
    admitted = 0

    async def client(number: int) -> None:
        nonlocal admitted
        process = processes[number % len(processes)]
        while True:
            try:
                held = await process.reserve(limits, bound)
            except (RateLimited, QuotaExceeded):
                return
            admitted += 1
            if number % 3:
                await asyncio.sleep(random.random() / 100)
            process.settle(held, used)

    await asyncio.gather(*(client(number) for number in range(TASKS)))
    return admitted


@pytest.mark.shows("G3", "G4")
@pytest.mark.parametrize("window", ["day", "minute", "bucket"])
@pytest.mark.parametrize("amount", [10, 1_000])
async def test_a_budget_for_so_many_admits_exactly_so_many(
    processes: list[Process], counters: Counters, window: str, amount: int
) -> None:
    limit = a_limit("requests", window, amount=amount, refill=1e-6)
    assert await flood(processes, [limit], ONE, ONE) == amount
    for process in processes:
        await process.limiter.tell(rotate=True)
    if window != "bucket":
        counted = counters.counter({"day": "c", "minute": "w"}[window], limit)
        assert (counted["used"], counted.get("held", 0)) == (amount, 0)


@pytest.mark.shows("G3")
async def test_fifty_calls_on_a_balance_for_ten(processes: list[Process]) -> None:
    limits = [a_limit("money", "month", amount=10_000_000), a_limit(amount=1_000_000)]
    outcomes = await asyncio.gather(
        *(processes[n % 3].reserve(limits, Charge(micros=1_000_000)) for n in range(50)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 10
    assert all(
        isinstance(o, GatehouseError) and o.code == "insufficient_quota"
        for o in outcomes
        if isinstance(o, BaseException)
    )


async def test_what_is_given_back_is_used_by_others(processes: list[Process], counters: Counters) -> None:
    limit = a_limit("tokens", "day", amount=40_000)
    admitted = await flood(processes, [limit], Charge(500, 500), Charge(50, 50))
    for process in processes:
        await process.limiter.tell(rotate=True)
    counted = counters.counter("c", limit)
    assert counted["used"] == 100 * admitted
    assert counted.get("held", 0) == 0
    assert 40_000 - counted["used"] < 64 * 1_000 + 1_000  # no more left over than was reserved at that moment


@pytest.mark.shows("G4")
async def test_no_more_run_at_once_than_may(processes: list[Process], counters: Counters) -> None:
    limits = [a_limit("concurrency", "standing", amount=8)]
    running = most = done = 0

    async def client(process: Process) -> None:
        nonlocal running, most, done
        while done < 200:
            try:
                held = await process.reserve(limits, ONE)
            except RateLimited:
                await asyncio.sleep(0.001)
                continue
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            done += 1
            process.settle(held, ONE)

    await asyncio.gather(*(client(processes[n % 3]) for n in range(24)))
    assert most <= 8
    await until(lambda: counters.counter("s", limits[0]) == {}, "all given back")


async def test_idle_slices_are_given_back_by_themselves(processes: list[Process], counters: Counters) -> None:
    limits = [a_limit("requests", "day", amount=100_000), a_limit("tokens", amount=1_000_000)]
    for process in processes:
        for _ in range(50):
            process.settle(await process.reserve(limits, Charge(5, 5)), Charge(5, 5))
        if process is processes[0]:  # before any of its slices can have been idle for long
            assert process.limiter.reserve_now(limits, Charge(5, 5)) is not None
    await until(lambda: counters.counter("c", limits[0]).get("held", 0) == 1, "slices of requests given back")
    await until(lambda: counters.counter("w", limits[1]).get("held", 0) == 0, "slices of tokens given back")
    assert counters.counter("c", limits[0])["used"] == 150
    assert counters.counter("w", limits[1])["used"] == 1_510


async def test_a_large_request_gets_what_others_hold_idle(processes: list[Process], counters: Counters) -> None:
    limit = a_limit("tokens", "day", amount=100_000)
    for process in processes[1:]:
        for _ in range(40):
            process.settle(await process.reserve([limit], Charge(1, 0)), Charge(1, 0))
    counted = counters.counter("c", limit)
    assert counted["held"] > 0
    await processes[0].reserve([limit], Charge(100_000 - 80, 0))


async def test_slices_are_small(counters: Counters) -> None:
    """Not more than a process's part of a twentieth of what is left, however much is asked for."""
    times = Times(counters)
    crowd = [Process(counters, clock=times.local, timed=True) for _ in range(4)]
    for process in crowd:
        await process.limiter.join()
    limits = [a_limit("requests", "day", amount=10_000)]
    for process in crowd:
        left = 10_000 - counters.counter("c", limits[0]).get("used", 0)
        for _ in range(800):
            process.settle(await process.reserve(limits, ONE), ONE)
        await process.limiter.tell(rotate=True)
        (held,) = counters.hash(f"h:{process.id.hex}").values()
        assert 0.01 * (left - 800) < held <= 0.05 / 4 * left
        await process.client.close()


async def test_a_process_that_leaves_leaves_nothing(processes: list[Process], counters: Counters) -> None:
    limits = [a_limit("requests", "day", amount=100_000), a_limit("tokens", amount=1_000_000)]
    limits += [a_limit("concurrency", "standing", amount=1_000), a_limit("tokens", "bucket", 1_000_000, refill=1e-6)]
    for process in processes:
        for _ in range(50):
            process.settle(await process.reserve(limits, Charge(5, 5)), Charge(5, 2))
        assert process.limiter._accounts.active  # slices, and what is not told yet
        await process.stop()
    assert counters.counter("c", limits[0])["used"] == 150
    assert counters.counter("w", limits[1])["used"] == 1_050
    assert counters.counter("b", limits[3])["level"] == 1_000_000 - 1_050
    assert counters.counter("s", limits[2]) == {}
    assert counters.client.zcard(counters.area + "procs") == 0
    assert not list(counters.client.scan_iter(counters.area + "[hfo]:*"))


async def test_a_process_that_leaves_keeps_what_still_runs(processes: list[Process], counters: Counters) -> None:
    limits = [a_limit("requests", "day", amount=100_000), a_limit("concurrency", "standing", amount=1_000)]
    for _ in range(10):
        await processes[0].reserve(limits, ONE)
    await processes[0].stop()
    assert counters.counter("c", limits[0])["held"] == counters.counter("s", limits[1])["held"] == 10
    assert counters.client.zscore(counters.area + "procs", processes[0].id.hex)


@pytest.fixture
async def pair(counters: Counters) -> AsyncIterator[tuple[Times, Process, Process]]:
    """Two whose time is the test's."""
    times = Times(counters)
    processes = [Process(counters, clock=times.local, timed=True) for _ in range(2)]
    for process in processes:
        await process.limiter.join()
    first, second = processes
    yield times, first, second
    for process in processes:
        await process.client.close()


async def test_what_a_dead_process_held(pair: tuple[Times, Process, Process], counters: Counters) -> None:
    times, dead, alive = pair
    gate, minute = a_limit("concurrency", "standing", amount=1), a_limit("tokens", amount=100_000)
    budget = a_limit("tokens", "day", amount=100_000)
    await dead.reserve([gate, minute, budget], Charge(1_000, 0))
    for _ in range(2):
        dead.settle(await dead.reserve([minute, budget], Charge(100, 0)), Charge(100, 0))
    slices = counters.hash(f"h:{dead.id.hex}")
    with pytest.raises(RateLimited):
        await alive.reserve([gate], ONE)
    await alive.live(times, 12)
    await alive.reserve([gate], ONE)  # released
    held = slices[f"w:{minute.id.hex}"]
    assert counters.counter("w", minute)["used"] == 1_100 + held > 1_200  # it may have spent all of it
    assert counters.counter("w", minute).get("held", 0) == 0
    (name,) = [name for name in slices if name.startswith("c:")]
    assert counters.hash(f"o:{dead.id.hex}") == {name: slices[name]}
    assert counters.hash(name)["held"] == slices[name]
    assert counters.client.smembers(counters.area + "orphans") == {dead.id.hex}
    assert counters.hash(f"h:{dead.id.hex}") == {}


async def test_a_process_that_was_thought_dead_says_what_it_holds(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    times, frozen, alive = pair
    gate, budget = a_limit("concurrency", "standing", amount=2), a_limit("tokens", "day", amount=1_000_000)
    minute = a_limit("tokens", amount=1_000_000)
    limits = [gate, budget, minute]
    for _ in range(3):
        frozen.settle(await frozen.reserve(limits, Charge(100, 0)), Charge(60, 0))
    running = await frozen.reserve(limits, Charge(100, 0))
    await alive.live(times, 12)
    assert counters.client.smembers(counters.area + "orphans") == {frozen.id.hex}
    swept = counters.counter("w", minute)["used"]
    other = await alive.reserve([gate], ONE)
    assert frozen.limiter.reserve_now(limits, Charge(1, 0)) is None  # its slices are void
    assert await frozen.limiter.join()
    assert not counters.client.exists(counters.area + "orphans", counters.area + f"o:{frozen.id.hex}")
    assert counters.counter("w", minute)["used"] == swept  # what it spent of a slice was counted with the slice
    counted = counters.counter("c", budget)
    assert (counted["used"], counted["held"]) == (180, 100)
    assert counters.counter("s", gate)["held"] == 2
    frozen.settle(running, Charge(70, 0))
    alive.settle(other, ONE)
    for process in (frozen, alive):
        await process.limiter.tell(rotate=True)
    counted = counters.counter("c", budget)
    assert (counted["used"], counted.get("held", 0)) == (250, 0)
    assert counters.counter("s", gate) == {}
    assert counters.client.hget(counters.area + "through", frozen.id.hex) == "4"


async def test_what_the_keeper_counted_of_a_process_is_not_counted_again(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    times, frozen, alive = pair
    budget = a_limit("tokens", "day", amount=1_000_000)
    for _ in range(3):
        frozen.settle(await frozen.reserve([budget], Charge(100, 0)), Charge(60, 0))
    await alive.live(times, 12)
    (name,) = counters.hash(f"o:{frozen.id.hex}")
    counters.client.hincrby(counters.area + name, "used", 120)  # two of three rows were in the ledger
    counters.client.hset(counters.area + "through", frozen.id.hex, 2)
    assert await frozen.limiter.join()
    counted = counters.counter("c", budget)
    assert (counted["used"], counted.get("held", 0)) == (180, 0)


async def test_an_answer_that_is_lost_loses_and_leaks_nothing(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    _, process, _ = pair
    assert process.store is not None
    limits = [a_limit("tokens", "day", amount=1_000), a_limit("tokens", amount=1_000)]
    limits.append(a_limit("tokens", "bucket", amount=1_000, refill=1e-9))
    held = await process.reserve(limits, Charge(300, 0))
    process.settle(held, Charge(100, 0))
    process.store.drop_answers = 1
    await process.limiter.tell(rotate=False)  # heard, and not known to be
    assert await process.limiter.join()
    process.settle(await process.reserve(limits, Charge(300, 0)), Charge(100, 0))
    process.store.drop_calls = 1
    await process.limiter.tell(rotate=False)  # not heard
    process.store.drop_answers = 2
    assert not await process.limiter.join()  # the question's answer
    process.store.drop_answers = 0
    assert await process.limiter.join()
    await process.limiter.tell(rotate=True)
    counted = counters.counter("c", limits[0])
    assert (counted["used"], counted.get("held", 0)) == (200, 0)
    assert counters.counter("w", limits[1])["used"] == 200
    assert counters.counter("b", limits[2])["level"] == 800
    process.store.drop_answers = 1
    with pytest.raises(GatehouseError):  # granted, and not known to be
        await process.reserve(limits, Charge(300, 0))
    assert counters.counter("c", limits[0])["held"] == 300
    assert await process.limiter.join()
    assert counters.counter("c", limits[0]).get("held", 0) == 0


async def test_what_was_sent_before_a_new_look_is_not_heard(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    """A frozen server, when it goes on, first reads what an abandoned connection still had for it."""
    _, process, _ = pair
    assert process.store is not None
    limit = a_limit("tokens", "day", amount=1_000)
    held = await process.reserve([limit], Charge(300, 0))
    sent: list[tuple[object, ...]] = []
    call = process.store.call

    async def record(*arguments: object, **options: object) -> list[object]:
        sent.append(arguments)
        return await call(*arguments, **options)  # type: ignore[arg-type]

    process.store.call = record  # type: ignore[method-assign]
    process.settle(held, Charge(100, 0))
    await process.limiter.tell(rotate=False)
    (report,) = sent
    assert await process.limiter.join()
    before = counters.counter("c", limit)
    assert (await call(*report))[0] == "swept"  # type: ignore[arg-type]
    assert counters.counter("c", limit) == before


async def test_slices_are_void_as_soon_as_it_is_known(pair: tuple[Times, Process, Process], counters: Counters) -> None:
    _, process, alive = pair
    limits = [a_limit("requests", "day", amount=100_000)]
    for _ in range(10):
        process.settle(await process.reserve(limits, ONE), ONE)
    counters.lapse(process.id)
    await alive.limiter.join()  # sweeps
    assert process.limiter.reserve_now(limits, ONE)  # it cannot know
    await process.limiter.tell(rotate=False)
    assert process.limiter.reserve_now(limits, ONE) is None


async def test_a_grant_of_before_a_new_start_is_asked_for_again(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    """What was granted before the process declared what it holds is not in what it declared."""
    _, process, _ = pair
    assert process.store is not None
    limit = a_limit("tokens", "day", amount=1_000)
    call, granted, on = process.store.call, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: object, **options: object) -> list[object]:
        answer = await call(*arguments, **options)  # type: ignore[arg-type]
        if not granted.is_set():
            granted.set()
            await on.wait()
        return answer

    process.store.call = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(process.reserve([limit], Charge(400, 0)))
    await granted.wait()
    assert counters.counter("c", limit)["held"] == 400
    assert await process.limiter.join()
    assert counters.counter("c", limit).get("held", 0) == 0
    on.set()
    await asking
    assert counters.counter("c", limit)["held"] == 400


async def test_a_reservation_takes_what_lies_here_and_asks_for_the_rest(
    pair: tuple[Times, Process, Process], counters: Counters
) -> None:
    _, process, _ = pair
    budget, minute = a_limit("tokens", "day", amount=100_000), a_limit("tokens", amount=100_000)
    bucket = a_limit("tokens", "bucket", amount=100_000, refill=1e-9)
    limits = [budget, minute, bucket]
    for _ in range(4):
        process.settle(await process.reserve(limits, Charge(100, 0)), Charge(100, 0))
    accounts = [account for account, _ in process.limiter._plan(limits, False).entries]
    assert all(0 < account.free < 1_000 for account in accounts)
    held = await process.reserve(limits, Charge(1_000, 0))

    def holds() -> None:
        counted = counters.hash(f"h:{process.id.hex}")
        mine = [counted.get(account.counter.name, 0) for account in accounts]
        open_units = sum(one.units[1] for one in process.limiter._book.open)
        assert mine[0] == accounts[0].free + accounts[0].consumed + open_units
        assert mine[1:] == [accounts[1].granted, accounts[2].granted]

    holds()
    with pytest.raises(RateLimited):
        await process.reserve([bucket], Charge(100_000, 0))  # what it took of its own is here again
    process.settle(held, Charge(1_000, 0))
    holds()
    await process.limiter.tell(rotate=True, everything=True)
    assert counters.counter("c", budget)["used"] == counters.counter("w", minute)["used"] == 1_400
    assert counters.counter("b", bucket)["level"] == 98_600
    assert counters.hash(f"h:{process.id.hex}") == {}
