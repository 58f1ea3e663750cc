"""Counters that are lost and built anew, by the protocol of gateway.relay.limiting.layout."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from core.clock import SystemClock
from core.embedded.valkey import ValkeyServer
from core.errors import QuotaExceeded, RateLimited, StateStoreUnavailable
from gateway.relay.limiting.base import Charge
from tests.gateway.relay.limiting.valkey import Counters, Process, Times, a_limit, until

ONE = Charge()


def tokens(count: int) -> Charge:
    return Charge(input_tokens=count)


@pytest.fixture
def times(counters: Counters) -> Times:
    return Times(counters)


@pytest.fixture
async def process(counters: Counters, times: Times) -> AsyncIterator[Process]:
    process = Process(counters, clock=times.local, timed=True)
    await process.limiter.join()
    yield process
    await process.client.close()


async def test_nothing_is_granted_while_there_are_no_counters(process: Process, counters: Counters) -> None:
    limits = [a_limit("requests", "day", amount=100_000), a_limit("concurrency", "standing", amount=100)]
    for _ in range(10):
        process.settle(await process.reserve(limits, ONE), ONE)
    assert process.limiter.reserve_now(limits, ONE)  # a slice
    counters.lose()
    await process.limiter.tell(rotate=True)
    assert process.limiter.reserve_now(limits, ONE) is None
    with pytest.raises(StateStoreUnavailable) as refused:
        await process.reserve(limits, ONE)
    assert refused.value.retry_after_seconds
    assert not await process.limiter.join()
    counters.begin("rebuilding")
    assert not await process.limiter.join()
    with pytest.raises(StateStoreUnavailable):
        await process.reserve(limits, ONE)


async def test_a_rebuild_counts_everything_once(process: Process, counters: Counters, times: Times) -> None:
    """Rows that the base has, rows that the ledger has besides, and requests that run."""
    budget, minute = a_limit("tokens", "day", amount=1_000), a_limit("tokens", amount=1_000)
    bucket, gate = a_limit("tokens", "bucket", amount=1_000, refill=1e-9), a_limit("concurrency", "standing", 5)
    limits = [budget, minute, bucket, gate]
    for _ in range(4):
        process.settle(await process.reserve(limits, tokens(100)), tokens(50))
    running = await process.reserve(limits, tokens(200))
    process.limiter.acknowledged(1)
    second = int(times.now)

    counters.lose()
    counters.begin("rebuilding")
    await process.limiter.tell(rotate=True)  # hears of it
    assert not await process.limiter.join()
    assert counters.counter("c", budget) == {"held": 350, "end": counters.counter("c", budget)["end"]}
    assert counters.counter("w", minute)["held"] == 350
    assert counters.counter("s", gate)["held"] == 1
    assert counters.client.zscore(counters.area + "procs", process.id.hex)
    process.settle(running, tokens(120))  # settled meanwhile
    assert not await process.limiter.join()

    # The keeper's base has the rows up to the third one.
    (name,) = counters.client.scan_iter(f"{counters.area}c:*")
    counters.client.hset(name, "used", 150)
    minute_key = f"{counters.area}w:{minute.id.hex}"
    counters.client.hset(minute_key, mapping={str(second): 150, "used": 150, "head": second, "last": second})
    counters.client.hset(f"{counters.area}b:{bucket.id.hex}", mapping={"level": 850, "at": int(times.now * 1e6)})
    counters.client.hset(counters.area + "marks", process.id.hex, 3)
    counters.client.hset(counters.area + "gen", "state", "ready")
    assert await process.limiter.join()
    counted = counters.counter("c", budget)
    assert (counted["used"], counted.get("held", 0)) == (150 + 50 + 120, 0)
    counted = counters.counter("w", minute)
    assert (counted["used"], counted[str(second)], counted.get("held", 0)) == (320, 320, 0)
    assert counters.counter("b", bucket)["level"] == 680
    assert counters.counter("s", gate) == {}
    assert counters.client.hget(counters.area + "through", process.id.hex) == "5"
    await process.reserve(limits, tokens(680))
    with pytest.raises((RateLimited, QuotaExceeded)):
        await process.reserve(limits, tokens(1))


async def test_what_runs_is_held_in_the_new_generation(process: Process, counters: Counters, times: Times) -> None:
    budget, minute = a_limit("tokens", "day", amount=1_000), a_limit("tokens", amount=1_000)
    running = await process.reserve([budget, minute], tokens(600))
    counters.lose()
    counters.begin()
    await process.limiter.tell(rotate=True)
    assert await process.limiter.join()
    assert counters.counter("c", budget)["held"] == 600
    assert counters.counter("w", minute)["used"] == 600
    with pytest.raises((RateLimited, QuotaExceeded)):
        await process.reserve([budget, minute], tokens(500))
    process.settle(running, tokens(100))
    await process.limiter.tell(rotate=False)
    counted = counters.counter("c", budget)
    assert (counted["used"], counted.get("held", 0)) == (100, 0)
    assert counters.counter("w", minute)["used"] == 100
    await process.reserve([budget, minute], tokens(900))


async def test_what_the_ledger_has_is_forgotten(process: Process) -> None:
    limits = [a_limit("tokens", "day", amount=1_000_000)]
    for _ in range(50):
        process.settle(await process.reserve(limits, tokens(10)), tokens(10))
    process.limiter.acknowledged(40)
    assert len(process.limiter._book.settled) == 50  # Valkey has not heard of them
    await process.limiter.tell(rotate=True)
    process.limiter.acknowledged(41)
    assert len(process.limiter._book.settled) == 9
    (record,), _ = process.limiter._book.declare(counted=45, anew=False, ready=True, swept=False)
    assert record[5] == 50  # the last five


async def test_accounts_that_nobody_uses_are_forgotten(process: Process, times: Times) -> None:
    book = process.limiter._book
    for _ in range(20):
        process.settle(await process.reserve([a_limit("tokens", "day", amount=1_000)], tokens(10)), tokens(10))
    running = await process.reserve([a_limit("tokens", "day", amount=1_000)], tokens(10))
    await process.live(times, 4)
    process.limiter.acknowledged(20)
    list(book.forget_unused())  # plans may still be wanted
    assert len(book.accounts.all()) == 21
    list(book.forget_unused())
    assert [account for account, _ in running.plan.entries] == book.accounts.all()


async def test_rows_that_come_into_the_ledger_while_counters_are_built_are_counted(
    process: Process, counters: Counters
) -> None:
    """They were told to the counters that are lost, and came too late for the base of the new ones."""
    limits = [a_limit("tokens", "day", amount=1_000_000)]
    for _ in range(3):
        process.settle(await process.reserve(limits, tokens(10)), tokens(10))
    await process.limiter.tell(rotate=True)
    counters.lose()
    generation = counters.begin("rebuilding")
    await process.limiter.tell(rotate=True)
    await process.limiter.join()
    process.limiter.acknowledged(3)
    assert counters.client.hget(counters.area + "gen", "id") == generation
    counters.client.hset(counters.area + "marks", process.id.hex, 1)
    counters.client.hset(counters.area + "gen", "state", "ready")
    assert await process.limiter.join()
    assert counters.counter("c", limits[0])["used"] == 20
    process.limiter.acknowledged(3)
    await process.limiter.tell(rotate=True)
    assert not process.limiter._book.settled


async def test_a_slow_bucket_is_debited_by_what_has_run_for_long(
    process: Process, counters: Counters, times: Times
) -> None:
    """It fills in hours: what was taken minutes ago is missing still."""
    slow = a_limit("tokens", "bucket", amount=1_000, refill=0.1)
    fast = a_limit("tokens", "bucket", amount=1_000, refill=100.0)
    running = await process.reserve([slow, fast], tokens(900))
    await process.live(times, 90)
    counters.lose()
    counters.begin()
    await process.limiter.tell(rotate=True)
    assert await process.limiter.join()
    with pytest.raises(RateLimited):
        await process.reserve([slow], tokens(500))
    await process.reserve([fast], tokens(1_000))
    process.settle(running, tokens(900))


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path / "data", log=tmp_path / "log", durable=True)
    server.start()
    yield server
    server.stop()


async def test_counters_out_of_an_old_file_are_not_trusted(own_server: ValkeyServer) -> None:
    counters = Counters(own_server.database_url(0))
    counters.begin(run=counters.client.info("server")["run_id"])
    process = await Process(counters, clock=SystemClock()).start()
    limits = [a_limit("requests", "day", amount=10)]
    process.settle(await process.reserve(limits, ONE), ONE)
    pid, port = own_server.pid, urlsplit(own_server.database_url(0)).port
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: own_server.poll() is not None, "the server is gone")
    own_server.start(port=port)
    await until(lambda: not counters.client.exists(counters.area + "gen"), "the generation is taken away")
    with pytest.raises(StateStoreUnavailable):
        await process.reserve(limits, ONE)
    assert counters.counter("c", limits[0])  # the file had it
    counters.lose()
    counters.begin(run=counters.client.info("server")["run_id"])
    await until(process.limiter._joined.is_set, "joined the new generation")
    process.settle(await process.reserve(limits, ONE), ONE)
    await process.stop()
    counted = counters.counter("c", limits[0])
    assert (counted["used"], counted.get("held", 0)) == (2, 0)
    counters.client.close()


async def test_a_process_waits_for_its_first_generation(counters: Counters) -> None:
    counters.lose()
    process = Process(counters, clock=SystemClock())
    running = asyncio.create_task(process.limiter.run())
    limits = [a_limit()]
    with pytest.raises(StateStoreUnavailable):
        await process.reserve(limits, ONE)
    counters.begin()
    await until(process.limiter._joined.is_set, "joined")
    await process.reserve(limits, ONE)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await process.kill()
