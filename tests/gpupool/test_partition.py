"""Partitions: an etcd, two controllers and three nodes, cut off from each other in turn.

No store that is away stops an engine. A cut node's device is given to nobody while it may use it; what it served
starts elsewhere after a grace; on its return the one that is too many is stopped. No device has two engines, ever.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from core.clock import SystemClock
from gpupool import services
from gpupool.leases.devices import BookView, DeviceBook
from gpupool.leases.etcd import EtcdStore
from gpupool.leases.etcd_address import parse_etcd_url
from gpupool.models import Instance, InstanceState, Lease, ModelVersion, Node, NodeState
from gpupool.policies.device_record import Status
from tenants.actor import SYSTEM
from tests.gpupool.leases.etcd_server import EtcdServer, an_etcd, needs_etcd
from tests.gpupool.partition import CutNode, CutPool, Watcher, frozen
from tests.gpupool.processes import eventually

pytestmark = [pytest.mark.django_db(transaction=True), needs_etcd]
_NODES: Final = ("node-1", "node-2", "node-3")


class Drill:
    """One pool, with one engine that must always run exactly once in the end."""

    def __init__(self, pool: CutPool, etcd: EtcdServer, tiny_model: Path, *, ttl_seconds: float) -> None:
        self.pool, self.etcd, self.ttl_seconds = pool, etcd, ttl_seconds
        tokens = {name: services.create_node(name, actor=SYSTEM).token for name in _NODES}
        version = services.create_version(
            services.create_model("tiny", actor=SYSTEM),
            name="v1",
            engine="llamacpp",
            artefact_uri=f"file://{tiny_model}",
            memory_bytes=64 * 1024 * 1024,
            device_kind="cpu",
            replicas=1,
            actor=SYSTEM,
        )
        ModelVersion.objects.filter(pk=version.pk).update(whole_device=True)
        pool.start_web()
        self.controllers = [pool.start_cut_controller() for _ in range(2)]  # all at once: each takes its time to start
        eventually(pool.web_serves, say=pool.logs)
        for name, token in tokens.items():
            pool.start_node(name, token)
        self.settled()

    def settled(self) -> Instance:
        """Every node is there, one instance serves, and book, database and processes say the same."""

        def look() -> Instance | None:
            live = list(Instance.objects.exclude(state=InstanceState.STOPPED).select_related("node"))
            online = Node.objects.filter(state=NodeState.ONLINE).count()
            if len(live) != 1 or live[0].state != InstanceState.READY or online != len(_NODES):
                return None
            holders = list(Lease.objects.filter(released_at=None).values_list("holder", flat=True))
            if holders != [f"instance:{live[0].pk}"] or live[0].node is None:
                return None
            running = {name: [one.pid for one in engines] for name, engines in self.pool.engines_by_node().items()}
            expected = {name: [live[0].pid] if name == live[0].node.name else [] for name in _NODES}
            view = self.book()
            statuses = sorted(record.status for record in view.book.records.values())
            agreed = list(view.book.claims) == holders and Status.UNKNOWN not in statuses
            return live[0] if running == expected and agreed else None

        found = eventually(look, seconds=60, say=self.pool.logs)
        assert found is not None
        return found

    def book(self) -> BookView:
        async def read() -> BookView:
            store = EtcdStore(parse_etcd_url(self.etcd.url))
            try:
                return await DeviceBook(store, clock=SystemClock()).read()
            finally:
                await store.close()

        return asyncio.run(read())

    def store_away(self) -> None:
        """For ten times its time to live: nothing stops, nothing starts, nothing is anybody else's afterwards."""
        before = self.settled()
        with frozen(self.etcd):
            until = time.monotonic() + 10 * self.ttl_seconds
            while time.monotonic() < until:
                now = Instance.objects.get(pk=before.pk)
                assert (now.state, now.pid) == (InstanceState.READY, before.pid), self.pool.logs()
                assert Instance.objects.exclude(state=InstanceState.STOPPED).count() == 1
                time.sleep(0.2)
        after = self.settled()
        assert (after.pk, after.pid, after.restarts) == (before.pk, before.pid, before.restarts)

    def node_cut(self, *, lost: bool = False, leader: bool = False) -> None:
        """Its engine runs on, its device is nobody's; another starts elsewhere. Then it returns."""
        before = self.settled()
        assert before.node is not None
        node = self.pool.nodes[before.node.name]
        started = time.monotonic()
        self.pool.cut(node)
        if leader:  # and both controllers lose the store for a while, in turn
            for _, wire in self.controllers:
                self.pool.wires.cut(wire)
                time.sleep(self.ttl_seconds)
                self.pool.wires.mend(wire)
        replaced = eventually(lambda: self._elsewhere(before), seconds=60, say=self.pool.logs)
        assert replaced is not None
        assert time.monotonic() - started > self.ttl_seconds  # a grace, not a reflex
        self.untouched(node, before)
        if lost:
            services.declare_node_lost(before.node.pk, actor=SYSTEM)
            assert [engine.pid for engine in self.pool.engines(node)] == [before.pid]  # it cannot hear that it is over
        self.pool.mend(node)
        kept = self.settled()
        assert kept.pk in (before.pk, replaced.pk)
        if lost:
            assert kept.pk == replaced.pk
        assert replaced.fencing_token > before.fencing_token

    def _elsewhere(self, before: Instance) -> Instance | None:
        serving = Instance.objects.filter(state=InstanceState.READY).exclude(node=before.node)
        return serving.exclude(pid=None).first()

    def untouched(self, node: CutNode, before: Instance) -> None:
        """While the node is cut: its engine runs, its device is still that engine's and unknown to the book."""
        assert [engine.pid for engine in self.pool.engines(node)] == [before.pid]
        held = Lease.objects.filter(device__node=before.node, released_at=None)
        assert [lease.holder for lease in held] == [f"instance:{before.pk}"]
        view = self.book()
        for device_id, record in view.book.records.items():
            if record.node_id == before.node_id:
                assert record.status == Status.UNKNOWN, device_id
                assert [one.holder for one in record.claims] == [f"instance:{before.pk}"]


@pytest.fixture
def etcd() -> Iterator[EtcdServer]:
    with an_etcd() as server:
        yield server


def _run(tmp_path: Path, etcd: EtcdServer, tiny_model: Path, *, ttl_seconds: float, rounds: Sequence[str]) -> None:
    pool = CutPool(tmp_path, os.environ["DATABASE_URL"], etcd, ttl_seconds=ttl_seconds)
    try:
        with Watcher(pool) as watcher:
            drill = Drill(pool, etcd, tiny_model, ttl_seconds=ttl_seconds)
            for number, kind in enumerate(rounds):
                started = time.monotonic()
                match kind:
                    case "store":
                        drill.store_away()
                    case "cut":
                        drill.node_cut()
                    case "lost":
                        drill.node_cut(lost=True)
                    case "leader":
                        drill.node_cut(leader=True)
                assert watcher.wrong == []
                print(f"round {number + 1}, {kind}: {time.monotonic() - started:.1f} s")
        assert watcher.looks > 10
    finally:
        pool.close()


@pytest.mark.slow
@pytest.mark.shows("P8", "P13", "P15", "R73")
def test_three_rounds_of_partition(tmp_path: Path, transactional_db: None, etcd: EtcdServer, tiny_model: Path) -> None:
    _run(tmp_path, etcd, tiny_model, ttl_seconds=1.0, rounds=("store", "cut", "lost"))


@pytest.mark.drill
def test_fifty_rounds_of_partition(tmp_path: Path, transactional_db: None, etcd: EtcdServer, tiny_model: Path) -> None:
    chosen = random.Random(50)
    rounds = [chosen.choices(("store", "cut", "lost", "leader"), (1, 5, 3, 3))[0] for _ in range(50)]
    _run(tmp_path, etcd, tiny_model, ttl_seconds=3.0, rounds=rounds)
