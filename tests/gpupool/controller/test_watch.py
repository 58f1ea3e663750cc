"""A leader hears of what others change in the store by its watch, and looks anew after every gap in that."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from core.clock import SystemClock
from gpupool.controller import loop
from gpupool.controller.loop import Controller
from gpupool.leases.base import Compacted, Delete, Event, LeaseStore, StoreUnavailable
from gpupool.leases.devices import GPU_PREFIX, pool_key
from gpupool.leases.liveness import NodeLiveness, health_key
from gpupool.models import Device, Instance, InstanceState, Node, NodeState
from gpupool.policies.reconcile import Rules
from tests.gpupool.leases.contract import eventually
from tests.gpupool.pool import a_device, a_version, an_online_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["postgres", "etcd"])
def store(request: pytest.FixtureRequest, transactional_db: None) -> LeaseStore:
    opened: LeaseStore = request.getfixturevalue(f"{request.param}_store")
    return opened


class Interrupted:
    """A store whose first watches end badly, after something was missed."""

    def __init__(self, store: LeaseStore, *endings: Exception) -> None:
        self._store, self._endings = store, list(endings)
        self.watched = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Event]:
        self.watched += 1
        if self._endings:
            raise self._endings.pop(0)
        async for event in self._store.watch(prefix, after_revision=after_revision):
            yield event


@contextmanager
def leading(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator["asyncio.Task[None]"]:
    """A controller that looks at nothing by itself once it has looked."""
    monkeypatch.setattr(loop, "LIVENESS_POLL_SECONDS", 1000.0)
    controller = Controller(
        store,
        identity="test",
        lease_seconds=5.0,
        rules=Rules(unknown_grace_seconds=1000.0),
        clock=SystemClock(),
        poll_seconds=0.05,
        probe_seconds=0.1,
        resync_seconds=1000.0,
    )
    task = asyncio.create_task(controller.run())
    try:
        yield task
    finally:
        task.cancel()


async def _placed(store: LeaseStore) -> None:
    async def look() -> bool:
        return await Instance.objects.filter(state=InstanceState.STAGING).aexists()

    await eventually(look)


@pytest.mark.shows("R34", "R35")
async def test_a_node_whose_time_ran_out_is_seen_by_the_watch(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await sync_to_async(an_online_node)(a_device("gpu-0"))
    other = await sync_to_async(an_online_node)(a_device("gpu-1"), name="node-2")
    for one in (node, other):
        await NodeLiveness(store, one.pk, ttl_seconds=60).heard()
    await sync_to_async(a_version)("m", replicas=1)
    with leading(store, monkeypatch):
        await _placed(store)
        await store.transact([], [Delete(health_key(node.pk))])

        async def unreachable() -> bool:
            return await Node.objects.filter(pk=node.pk, state=NodeState.UNREACHABLE).aexists()

        await eventually(unreachable)
    assert await Node.objects.filter(pk=other.pk, state=NodeState.ONLINE).aexists()


@pytest.mark.shows("R34")
async def test_after_a_gap_the_leader_reads_anew_and_mends_what_it_missed(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await sync_to_async(an_online_node)(a_device("gpu-0"))
    await NodeLiveness(store, node.pk, ttl_seconds=60).heard()
    await sync_to_async(a_version)("m", replicas=1)
    interrupted = Interrupted(store, Compacted(1), StoreUnavailable("away"))
    gpu = (await Device.objects.aget()).pk
    with leading(interrupted, monkeypatch):
        await _placed(store)

        async def watches() -> bool:
            return interrupted.watched >= 3

        await eventually(watches)
        # Somebody has taken the record away: nobody but the watch can tell.
        await store.transact([], [Delete(pool_key(gpu))])

        async def back() -> bool:
            return any(entry.key == pool_key(gpu) for entry in (await store.range(GPU_PREFIX)).entries)

        await eventually(back)
