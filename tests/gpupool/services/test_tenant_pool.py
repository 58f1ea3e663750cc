"""Instances that tenants acquire: reused, bound, let go, and sixteen tenants on one device."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models import Sum
from pytest_django import DjangoCaptureOnCommitCallbacks

from core.telemetry import instances as metrics
from gpupool import services
from gpupool.controller.upkeep import keep_up_once
from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, ModelVersion, VersionState
from gpupool.policies.tiers import Tier
from gpupool.reads.instances import read_nearness
from gpupool.selectors import list_ready_endpoints
from gpupool.services.inventory import apply_observed
from gpupool.stream.desired import read_desired
from gpupool.stream.messages import InstanceFact, Observed
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Tenant
from tenants.services import InvalidInput
from tests.doubles.sleeper import registered, sleeper
from tests.gpupool.pool import GIB, OnlineNode, a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


def sleepy(memory_bytes: int = GIB) -> ModelVersion:
    version = a_version("m", memory_bytes=memory_bytes)
    ModelVersion.objects.filter(pk=version.pk).update(engine="sleeper")
    return version


def a_tenant(number: int = 1) -> Tenant:
    return Tenant.objects.create(name=f"Tenant {number}", slug=f"tenant-{number}")


class PretendNode:
    """A node's agent, as far as its reports go: it does at once what the desired rows say."""

    def __init__(self, node: OnlineNode) -> None:
        self.node = node
        self.pids: dict[UUID, int] = {}
        self.bound: dict[UUID, UUID | None] = {}
        self.conflicts = 0
        self._next = 100

    def work(self) -> None:
        """Place what waits, then do and tell what is desired of every instance."""
        device = Device.objects.get(node_id=self.node.pk)
        for waiting in Instance.objects.filter(state=InstanceState.REQUESTED, desire=InstanceDesire.RUNNING):
            services.claim_and_place(waiting.pk, device.pk, actor=SYSTEM)
        facts = [self._do(row) for row in read_desired(self.node.pk).instances]
        seen = a_device(device.stable_id, memory_bytes=device.memory_bytes)
        apply_observed(self.node.pk, self.node.session, Observed(sequence=1, devices=[seen], instances=facts))

    def _do(self, row: Any) -> InstanceFact:
        pk = row.instance_id
        before = self.bound.setdefault(pk, row.tenant_id)
        if before not in (None, row.tenant_id):
            self.conflicts += 1  # handed from one tenant to another under one claim
        self.bound[pk] = row.tenant_id
        if row.state == "stopped":
            self.pids.pop(pk, None)
            return self._fact(row, "stopped", None)
        if row.state == "asleep":
            return self._fact(row, "asleep", self.pids.get(pk), device_bytes=GIB // 16)
        if pk not in self.pids:
            self._next += 1
        return self._fact(row, "ready", self.pids.setdefault(pk, self._next), device_bytes=row.memory_bytes)

    def _fact(self, row: Any, state: str, pid: int | None, **members: Any) -> InstanceFact:
        return InstanceFact(
            instance_id=row.instance_id, state=state, lease_id=row.lease_id, fencing_token=row.fencing_token, pid=pid,
            port=None if pid is None else 21_000 + pid, verified_tenant=row.tenant_id, **members,
        )  # fmt: skip


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC) + timedelta(minutes=1)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()


@pytest.mark.shows("R95")
def test_a_tenant_gets_its_instance_again_asleep_or_awake() -> None:
    node, version, tenant = an_online_node(a_device("gpu0")), sleepy(), a_tenant()
    agent = PretendNode(node)
    first = services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    assert (first.reused, first.tier, first.instance.tenant_id) == (False, Tier.COLD, tenant.pk)
    agent.work()
    again = services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    assert (again.reused, again.tier, again.instance.pk) == (True, Tier.AWAKE, first.instance.pk)
    services.release_instance(first.instance.pk, actor=SYSTEM)
    agent.work()
    asleep = services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    assert (asleep.reused, asleep.tier, asleep.instance.desire) == (True, Tier.ASLEEP, InstanceDesire.RUNNING)
    nearness = read_nearness(version.pk)
    assert (nearness.acquisitions, nearness.reuses) == (3, 2)
    assert nearness.reuse_ratio == pytest.approx(2 / 3)
    assert AuditEvent.objects.filter(action="instance.acquired", tenant_id=tenant.pk).count() == 3
    moves = AuditEvent.objects.filter(action="instance.state_changed")
    assert set(moves.values_list("tenant_id", flat=True)) == {tenant.pk}


@pytest.mark.shows("R95")
def test_how_often_an_instance_was_found_there_is_a_metric(
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    an_online_node(a_device("gpu0"))
    version, tenant = sleepy(), a_tenant()
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(4):
            services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    (family,) = metrics.reuse_ratio.collect()
    assert (family.name, family.samples[0].value) == ("gatehouse_instance_reuse_ratio", 0.75)


@pytest.mark.shows("R16")
def test_one_that_sleeps_for_nobody_is_bound_and_never_given_to_another() -> None:
    node, version = an_online_node(a_device("gpu0")), sleepy()
    spare = place_one(version, node)
    Instance.objects.filter(pk=spare.pk).update(pooled=True)
    agent = PretendNode(node)
    agent.work()
    services.sleep_instance(spare.pk, actor=SYSTEM)
    agent.work()
    one, other = a_tenant(1), a_tenant(2)
    got = services.acquire_instance(version.pk, one.pk, actor=SYSTEM)
    assert (got.instance.pk, got.reused, got.instance.tenant_id) == (spare.pk, True, one.pk)
    services.release_instance(spare.pk, actor=SYSTEM)
    agent.work()
    second = services.acquire_instance(version.pk, other.pk, actor=SYSTEM)
    assert (second.reused, second.instance.tenant_id) == (False, other.pk)
    assert second.instance.pk != spare.pk


def test_who_may_not_have_it_is_told_why() -> None:
    version, tenant, owner = sleepy(), a_tenant(1), a_tenant(2)
    with pytest.raises(InvalidInput, match="no such tenant"):
        services.acquire_instance(version.pk, version.pk, actor=SYSTEM)
    ModelVersion.objects.filter(pk=version.pk).update(tenant_id=owner.pk)
    with pytest.raises(InvalidInput, match="another tenant's own"):
        services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    ModelVersion.objects.filter(pk=version.pk).update(tenant_id=None, state=VersionState.RETIRED)
    with pytest.raises(InvalidInput, match="none of it starts"):
        services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    instance = services.request_instance(version.pk, actor=SYSTEM)
    with pytest.raises(InvalidInput, match="which no tenant acquired"):
        services.release_instance(instance.pk, actor=SYSTEM)


def test_replicas_are_kept_beside_what_tenants_acquire() -> None:
    version, tenant = sleepy(), a_tenant()
    services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM)
    ordinary = services.request_instance(version.pk, actor=SYSTEM)
    assert (ordinary.pooled, ordinary.tenant_id) == (False, None)
    assert Instance.objects.filter(pooled=True).count() == 1


def test_one_without_requests_sleeps_after_its_time() -> None:
    node, version, tenant = an_online_node(a_device("gpu0")), sleepy(), a_tenant()
    ModelVersion.objects.filter(pk=version.pk).update(idle_sleep_seconds=120.0)
    agent, clock = PretendNode(node), Clock()
    got = services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM).instance
    agent.work()
    Instance.objects.filter(pk=got.pk).update(running_requests=0)
    keep_up_once(None, clock=clock, failed_grace_seconds=30)
    got.refresh_from_db()
    assert got.desire == InstanceDesire.RUNNING
    clock.at += timedelta(seconds=120)
    keep_up_once(None, clock=clock, failed_grace_seconds=30)
    got.refresh_from_db()
    assert got.desire == InstanceDesire.ASLEEP


@pytest.mark.shows("R16", "R18", "R19")
def test_sixteen_tenants_share_a_device_that_holds_four_awake_without_a_conflict() -> None:
    """In a random order: each is served in its turn, by an instance of its own, and the device is never overdrawn."""
    size = 5 * GIB  # 4 awake, 12 asleep with a sixteenth each
    node, version = an_online_node(a_device("gpu0", memory_bytes=size + GIB)), sleepy(GIB)
    ModelVersion.objects.filter(pk=version.pk).update(idle_sleep_seconds=0.0)  # they sleep for each other alone
    tenants = [a_tenant(number) for number in range(16)]
    agent, clock, dice = PretendNode(node), Clock(), random.Random(7)
    order = [*tenants, *(dice.choice(tenants) for _ in range(12))]
    for tenant in order:
        got = services.acquire_instance(version.pk, tenant.pk, actor=SYSTEM).instance
        for _ in range(5):  # the controller's looks, until it serves
            agent.work()
            held = Lease.objects.filter(released_at__isnull=True).aggregate(total=Sum("memory_bytes"))["total"] or 0
            assert held <= size + GIB
            serving = {one.tenant_id for one in list_ready_endpoints() if one.instance_id == got.pk}
            if serving:
                break
            Instance.objects.filter(state=InstanceState.READY).update(running_requests=0)
            clock.at += timedelta(seconds=10)
            keep_up_once(None, clock=clock, failed_grace_seconds=30)
        assert serving == {tenant.pk}
    owners = dict(Instance.objects.filter(pooled=True).values_list("pk", "tenant_id"))
    assert agent.conflicts == 0
    assert len(owners) == len(set(owners.values())) == 16
    nearness = read_nearness()
    assert (nearness.acquisitions, nearness.reuses) == (28, 12)


@pytest.mark.shows("R18")
def test_more_than_a_device_keeps_asleep_end_with_the_least_recently_used(settings: Any) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, asleep_per_device=2)
    node, version = an_online_node(a_device("gpu0")), sleepy()
    agent, clock, got = PretendNode(node), Clock(), []
    for number in range(3):
        got.append(services.acquire_instance(version.pk, a_tenant(number).pk, actor=SYSTEM).instance)
        agent.work()
        services.release_instance(got[-1].pk, actor=SYSTEM)
        agent.work()
    Instance.objects.filter(pk=got[1].pk).update(last_used_at=clock.at - timedelta(hours=1))
    keep_up_once(None, clock=clock, failed_grace_seconds=30)
    assert [Instance.objects.get(pk=one.pk).desire for one in got] == ["asleep", "stopped", "asleep"]
    agent.work()
    assert Instance.objects.get(pk=got[1].pk).state == InstanceState.STOPPED
