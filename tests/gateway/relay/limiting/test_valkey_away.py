"""Valkey frozen or gone: slices are spent while they are valid, then requests are refused as ours to mend."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from core.clock import SystemClock
from core.embedded.valkey import ValkeyServer
from core.errors import StateStoreUnavailable
from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.book import Held
from gateway.relay.limiting.place import State
from gateway.relay.limiting.scripts import JOIN, Script
from tests.gateway.relay.limiting.valkey import Counters, Process, Times, a_limit, until

ONE = Charge()


@contextmanager
def frozen(server: ValkeyServer) -> Iterator[None]:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture
async def process(counters: Counters) -> AsyncIterator[Process]:
    process = await Process(counters, clock=SystemClock()).start()
    yield process
    await process.kill()


@pytest.mark.parametrize("slower", [pytest.param(1, marks=pytest.mark.drill), 20])
async def test_a_frozen_valkey(process: Process, counters: Counters, server: ValkeyServer, slower: int) -> None:
    """On a machine on which all other tests run too, everything may be `slower`."""
    wide = [a_limit("requests", "day", amount=1_000_000), a_limit("tokens", amount=100_000_000)]
    narrow = [a_limit("requests", "day", amount=10)]
    for _ in range(200):
        process.settle(await process.reserve(wide, Charge(10, 10)), Charge(10, 10))
    patience, process.client._deadline_seconds = process.client._deadline_seconds, 0.05
    with frozen(server):
        spent = 0
        started = time.monotonic()
        with pytest.raises(StateStoreUnavailable):
            await process.reserve(narrow, ONE)
        assert time.monotonic() - started < 0.3 * slower  # the deadline, and no more
        took = []
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(StateStoreUnavailable) as refused:
                await process.reserve(narrow, ONE)
            took.append(time.monotonic() - started)
        assert min(took) < 0.04 * slower  # it is known to be away
        assert refused.value.retry_after_seconds == 1
        while True:  # what it holds is spent without waiting, and then it is over
            try:
                held = await process.reserve(wide, Charge(10, 10))
            except StateStoreUnavailable:
                break
            process.settle(held, Charge(10, 10))
            spent += 1
        assert 20 <= spent <= 1_000
    process.client._deadline_seconds = patience
    await until(lambda: process.limiter._state is State.JOINED, "back")
    process.settle(await process.reserve(wide, Charge(10, 10)), Charge(10, 10))
    process.settle(await process.reserve(narrow, ONE), ONE)
    await process.limiter.tell(rotate=True, everything=True)
    counted = counters.counter("c", wide[0])
    assert (counted["used"], counted.get("held", 0)) == (201 + spent, 0)
    assert counters.counter("w", wide[1])["used"] == 20 * (201 + spent)
    assert counters.counter("c", narrow[0])["used"] == 1  # what nobody heard of is not counted


async def test_slices_are_void_before_others_may_have_them(counters: Counters) -> None:
    times = Times(counters)
    process = Process(counters, clock=times.local, timed=True)
    assert process.store is not None
    await process.limiter.join()
    limits = [a_limit("requests", "day", amount=1_000_000)]
    for _ in range(10):
        process.settle(await process.reserve(limits, ONE), ONE)
    process.store.drop_calls = 1_000
    await process.limiter.tell(rotate=False)
    times.advance(7.9)
    assert process.limiter.reserve_now(limits, ONE)
    await process.reserve(limits, ONE)
    times.advance(0.2)
    assert process.limiter.reserve_now(limits, ONE) is None
    with pytest.raises(StateStoreUnavailable):
        await process.reserve(limits, ONE)
    await process.client.close()


async def test_at_once_goes_on_by_parts(counters: Counters) -> None:
    """When nobody can be asked, each process admits its part of what may run at once."""
    times = Times(counters)
    processes = [Process(counters, clock=times.local, timed=True) for _ in range(3)]
    gate, minute = a_limit("concurrency", "standing", amount=12), a_limit(amount=12)
    for process in processes:
        await process.limiter.join()
    for process in processes:
        await process.limiter.tell(rotate=True)
        process.limiter._renew_at = 0
        await process.limiter.tell(rotate=True)  # knows of all three
    running = [await processes[0].reserve([gate], ONE)]
    for process in processes:
        assert process.store is not None
        process.store.drop_calls = 1_000
        while True:
            try:
                held = await process.reserve([gate], ONE)
            except StateStoreUnavailable:
                break
            if process is processes[0]:
                running.append(held)
        assert process.limiter._accounts.find(f"s:{gate.id.hex}").inflight == 4  # type: ignore[union-attr]
        with pytest.raises(StateStoreUnavailable):
            await process.reserve([minute], ONE)
    processes[0].settle(running.pop(), ONE)
    running.append(await processes[0].reserve([gate], ONE))
    for process in processes:
        assert process.store is not None
        process.store.drop_calls = 0
        assert await process.limiter.join()
    assert counters.counter("s", gate)["held"] == 12
    for held in running:
        processes[0].settle(held, ONE)
    await processes[0].limiter.tell(rotate=True)
    assert counters.counter("s", gate)["held"] == 8
    for process in processes:
        await process.client.close()


async def test_nothing_is_admitted_unasked_while_a_process_says_what_it_holds(counters: Counters) -> None:
    """It would be in nobody's count: more would run at once than may, for as long as it runs."""
    times = Times(counters)
    process = Process(counters, clock=times.local, timed=True)
    gate = a_limit("concurrency", "standing", amount=4)
    await process.limiter.join()
    assert process.store is not None
    process.store.drop_calls = 1
    running = [await process.reserve([gate], ONE)]
    call = process.store.call
    unasked: list[asyncio.Task[Held]] = []

    async def call_slowly(script: Script, *values: object, **more: Any) -> list[Any]:
        if script is JOIN:
            unasked.append(asyncio.create_task(process.limiter.reserve([gate], ONE)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return await call(script, *values, **more)

    process.store.call = call_slowly  # type: ignore[method-assign]
    assert await process.limiter.join()
    running.append(await unasked[0])
    assert counters.counter("s", gate)["held"] == process.limiter._accounts.find(f"s:{gate.id.hex}").inflight == 2  # type: ignore[union-attr]
    await process.client.close()


async def test_what_may_not_run_at_all_does_not_run_by_parts(counters: Counters) -> None:
    process = Process(counters, clock=Times(counters).local, timed=True)
    await process.limiter.join()
    assert process.store is not None
    process.store.drop_calls = 9
    with pytest.raises(StateStoreUnavailable):
        await process.reserve([a_limit("concurrency", "standing", amount=0)], ONE)
    await process.client.close()


async def test_the_limiter_outlives_a_defect_of_ours(counters: Counters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else limited work would be told 503 until the process is started again."""
    process = await Process(counters, clock=SystemClock()).start()
    report, calls = process.limiter._book.report, 0

    def fail_once(**more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return report(**more)

    monkeypatch.setattr(process.limiter._book, "report", fail_once)
    await until(lambda: calls == 2, "it to go on reporting")
    await process.reserve([a_limit()], ONE)
    await process.stop()


async def test_unlimited_requests_are_not_refused(counters: Counters) -> None:
    process = Process(counters, clock=SystemClock())
    await process.reserve([], ONE)
    await process.reserve([a_limit("gpus", "standing", amount=1)], ONE)
    await process.client.close()


async def test_a_process_that_was_stopped_itself(process: Process, counters: Counters) -> None:
    """It wakes up long after its lapse, with its slices swept: it spends none of them."""
    limits = [a_limit("requests", "day", amount=1_000_000)]
    for _ in range(100):
        process.settle(await process.reserve(limits, ONE), ONE)
    other = await Process(counters, clock=SystemClock()).start()
    counters.lapse(process.id)
    other.settle(await other.reserve([a_limit("requests", "day", 5)], ONE), ONE)  # sweeps
    assert counters.client.sismember(counters.area + "orphans", process.id.hex)
    await until(lambda: not counters.client.exists(counters.area + "orphans"), "declared again")
    process.settle(await process.reserve(limits, ONE), ONE)
    await asyncio.sleep(0)
    for one in (process, other):
        await one.limiter.tell(rotate=True, everything=True)
    counted = counters.counter("c", limits[0])
    assert (counted["used"], counted.get("held", 0)) == (101, 0)
    await other.stop()
