"""One leader at a time, who stops itself first."""

import asyncio
from collections.abc import Sequence

import pytest

from core.clock import ManualClock, SystemClock
from gpupool.leases.base import Condition, Entry, Grant, LeaseNotFound, LeaseStore, Operation, Outcome, StoreUnavailable
from gpupool.leases.fencing import Fence, Superseded
from gpupool.leases.leader import LeaderLease
from tests.gpupool.leases.contract import eventually


class CutOff:
    """A store whose network can be cut: every call then fails, as it would for one process alone."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self.cut = False
        self.frozen = False
        self.stubborn = False

    async def _reach(self) -> LeaseStore:
        if self.frozen:
            await asyncio.Event().wait()
        if self.stubborn:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(2.0)  # like a driver that, cancelled, first tries to reach the server
        if self.cut:
            raise StoreUnavailable("cut off")
        return self._store

    async def get(self, key: str) -> Entry | None:
        return await (await self._reach()).get(key)

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        return await (await self._reach()).transact(conditions, operations)

    async def grant(self, ttl_seconds: float) -> Grant:
        return await (await self._reach()).grant(ttl_seconds)

    async def keep_alive(self, lease_id: int) -> Grant:
        return await (await self._reach()).keep_alive(lease_id)

    async def revoke(self, lease_id: int) -> None:
        await (await self._reach()).revoke(lease_id)


class Work:
    """Notes who leads when; `leading` counts those that work at this moment."""

    def __init__(self) -> None:
        self.leading: list[Fence] = []
        self.history: list[Fence] = []

    async def __call__(self, fence: Fence) -> None:
        self.leading.append(fence)
        self.history.append(fence)
        try:
            await asyncio.Event().wait()
        finally:
            self.leading.remove(fence)

    async def led(self, times: int) -> None:
        async def look() -> bool:
            assert len(self.leading) <= 1
            return len(self.history) >= times and len(self.leading) == 1

        await eventually(look)


@pytest.fixture
def store(postgres_store: LeaseStore) -> LeaseStore:
    return postgres_store


def _candidate(store: LeaseStore | CutOff, ttl_seconds: float = 1.0) -> LeaderLease:
    return LeaderLease(
        store,  # type: ignore[arg-type]  # the parts of a store that leadership uses
        name="test",
        identity="me",
        ttl_seconds=ttl_seconds,
        clock=SystemClock(),
    )


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_second_candidate_waits_and_follows_at_once_when_the_first_resigns(store: LeaseStore) -> None:
    work = Work()
    first = asyncio.create_task(_candidate(store, 60.0).run(work))
    await work.led(1)
    second = asyncio.create_task(_candidate(store, 1.0).run(work))
    await _end(first)
    await work.led(2)
    assert work.history[1].revision > work.history[0].revision
    await _end(second)


@pytest.mark.parametrize("fault", ["cut", "frozen", "stubborn"])
async def test_a_leader_cut_off_from_the_store_stops_before_the_next_begins(store: LeaseStore, fault: str) -> None:
    work, link = Work(), CutOff(store)
    first = asyncio.create_task(_candidate(link).run(work))
    await work.led(1)
    second = asyncio.create_task(_candidate(store).run(work))
    setattr(link, fault, True)
    await work.led(2)  # asserts at every look that there is never more than one
    assert work.history[1].revision > work.history[0].revision
    await _end(first, second)


async def test_a_superseded_leader_campaigns_again(store: LeaseStore) -> None:
    fences: list[Fence] = []

    async def work(fence: Fence) -> None:
        fences.append(fence)
        if len(fences) == 1:
            raise Superseded("somebody newer wrote")
        await asyncio.Event().wait()

    task = asyncio.create_task(_candidate(store).run(work))

    async def twice() -> bool:
        return len(fences) == 2

    await eventually(twice)
    assert fences[1].revision > fences[0].revision
    await _end(task)


async def test_a_defect_in_the_work_ends_the_process_and_gives_the_leadership_up(store: LeaseStore) -> None:
    async def work(fence: Fence) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await _candidate(store, 60.0).run(work)
    assert await store.get("/leader/test") is None


class OneAnswer:
    """Grants once, then forgets the lease, as a store does that expired it during a long pause of this process."""

    async def get(self, key: str) -> None:
        return None

    async def keep_alive(self, lease_id: int) -> Grant:
        raise LeaseNotFound(str(lease_id))


async def test_a_lease_that_the_store_has_ended_is_given_up_at_once() -> None:
    lease = LeaderLease(
        OneAnswer(),  # type: ignore[arg-type]  # only what is called here
        name="test",
        identity="me",
        ttl_seconds=0.2,
        clock=ManualClock(),
    )
    async with asyncio.timeout(5):
        await lease._keep(Grant(1, 0.2), deadline=10.0)
