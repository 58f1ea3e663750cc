"""What happens at the edges of sleep: just woken, waiting to wake, on a node that is silent or a device that is out."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from core.clock import SystemClock
from gpupool import services
from gpupool.controller.targets import list_silent_targets
from gpupool.controller.upkeep import keep_up_once
from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, ModelVersion, Node, NodeState
from gpupool.policies.instance import State
from gpupool.policies.lease import Refused
from gpupool.reads.instances import read_pool
from gpupool.services.resizing import claim_again
from tenants.actor import SYSTEM
from tests.doubles.sleeper import registered, sleeper
from tests.factories import make_tenant
from tests.gpupool.pool import GIB, OnlineNode, a_device, an_online_node, place_one
from tests.gpupool.services.test_sleeping import claimed, report, sleepy, told

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


def owned(version: ModelVersion, node: OnlineNode, **members: Any) -> Instance:
    """A tenant's own, ready."""
    instance = place_one(version, node)
    tenant = make_tenant()
    Instance.objects.filter(pk=instance.pk).update(pooled=True, tenant_id=tenant.pk)
    return report(node, instance, "ready", verified_tenant=tenant.pk, **members)


def look() -> None:
    keep_up_once(None, clock=SystemClock(), failed_grace_seconds=30)


def desire(instance: Instance) -> str:
    return Instance.objects.get(pk=instance.pk).desire


def test_one_that_took_longer_to_serve_than_it_may_idle_does_not_sleep_again_at_once() -> None:
    instance = owned(sleepy(), an_online_node(a_device("gpu0")))
    ModelVersion.objects.update(idle_sleep_seconds=60.0)
    Instance.objects.update(last_used_at=timezone.now() - timedelta(minutes=10), running_requests=0)
    look()
    assert desire(instance) == InstanceDesire.RUNNING
    Instance.objects.update(state_changed_at=timezone.now() - timedelta(seconds=61))
    look()
    assert desire(instance) == InstanceDesire.ASLEEP


def test_when_a_tenants_own_was_used_is_known_to_the_second_that_is_decided_by() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = owned(sleepy(), node, last_used_at=1000.0)
    tenant = instance.tenant_id
    assert report(node, instance, "ready", verified_tenant=tenant, last_used_at=1002.0).last_used_at is not None
    instance.refresh_from_db()
    assert instance.last_used_at is not None
    assert instance.last_used_at.timestamp() == 1002.0


def test_one_that_is_asked_to_wake_does_not_end_for_being_asleep(settings: Any) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, asleep_per_device=0)
    node = an_online_node(a_device("gpu0", memory_bytes=16 * GIB))
    instance = owned(sleepy(memory_bytes=10 * GIB), node)
    services.sleep_instance(instance.pk, actor=SYSTEM)
    report(node, instance, "asleep", verified_tenant=instance.tenant_id, device_bytes=GIB)
    services.wake_instance(instance.pk, actor=SYSTEM)
    look()
    assert desire(instance) == InstanceDesire.RUNNING


def test_nobody_sleeps_for_a_new_one_that_would_not_fit_on_its_device_anyway() -> None:
    node = an_online_node(a_device("gpu0", memory_bytes=16 * GIB))
    instance = owned(sleepy("m", memory_bytes=10 * GIB), node)
    ModelVersion.objects.update(idle_sleep_seconds=0.0)
    long_ago = timezone.now() - timedelta(minutes=1)
    Instance.objects.update(running_requests=0, state_changed_at=long_ago, ready_at=long_ago)
    for version in (sleepy("big", memory_bytes=20 * GIB), sleepy("other", memory_bytes=10 * GIB, device_kind="cpu")):
        waiting = services.acquire_instance(version.pk, make_tenant(version.model.name).pk, actor=SYSTEM).instance
        services.explain_waiting(waiting.pk, "There is no room.", actor=SYSTEM)
    look()
    assert desire(instance) == InstanceDesire.RUNNING
    fits = services.acquire_instance(sleepy("fits", memory_bytes=10 * GIB).pk, make_tenant("t").pk, actor=SYSTEM)
    services.explain_waiting(fits.instance.pk, "There is no room.", actor=SYSTEM)
    services.set_node_cordoned(node.pk, True, actor=SYSTEM)
    look()
    assert desire(instance) == InstanceDesire.RUNNING
    services.set_node_cordoned(node.pk, False, actor=SYSTEM)
    look()
    assert desire(instance) == InstanceDesire.ASLEEP


def silent(node: OnlineNode, instance: Instance) -> Instance:
    """Its node falls silent, and nobody knows of it."""
    Node.objects.filter(pk=node.pk).update(state=NodeState.UNREACHABLE)
    services.mark_instance_unknown(instance.pk, reason="Its node is silent.", actor=SYSTEM)
    instance.refresh_from_db()
    assert instance.state == InstanceState.UNKNOWN
    return instance


@pytest.mark.parametrize("why", ["asleep", "device", "unverified"])
def test_no_health_probe_brings_back_what_did_not_serve_when_its_node_fell_silent(why: str) -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=8 * GIB), node)
    report(node, instance, "ready")
    if why == "device":
        Device.objects.update(isolated_at=timezone.now(), isolated_reason="XID 79.", isolated_by="healing")
        report(node, instance, "ready")
    else:
        services.sleep_instance(instance.pk, actor=SYSTEM)
        report(node, instance, "asleep", device_bytes=GIB)
        if why == "unverified":
            Instance.objects.update(tenant_id=make_tenant().pk, pooled=True)
        services.wake_instance(instance.pk, actor=SYSTEM)
        if why == "unverified":
            assert claim_again(instance.pk, actor=SYSTEM) is None
    silent(node, instance)
    assert list_silent_targets((), State.UNKNOWN) == []
    services.set_probed_state(instance.pk, healthy=True, reason="It answers.", actor=SYSTEM)
    instance.refresh_from_db()
    assert instance.state == InstanceState.UNKNOWN


def test_one_that_served_comes_back_by_its_probe() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=8 * GIB), node)
    silent(node, report(node, instance, "ready"))
    assert [one.instance_id for one in list_silent_targets((), State.UNKNOWN)] == [instance.pk]
    services.set_probed_state(instance.pk, healthy=True, reason="It answers.", actor=SYSTEM)
    instance.refresh_from_db()
    assert instance.state == InstanceState.READY


def test_it_wakes_on_no_device_that_was_taken_out() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=8 * GIB), node)
    report(node, instance, "ready")
    services.sleep_instance(instance.pk, actor=SYSTEM)
    report(node, instance, "asleep", device_bytes=GIB)
    Device.objects.update(isolated_at=timezone.now(), isolated_reason="XID 79.", isolated_by="healing")
    services.wake_instance(instance.pk, actor=SYSTEM)
    refused = claim_again(instance.pk, actor=SYSTEM)
    assert isinstance(refused, Refused)
    assert "XID 79" in refused.reason
    Device.objects.update(isolated_at=None)
    assert claim_again(instance.pk, actor=SYSTEM) is None


def test_on_the_hosts_own_cpu_it_wakes_with_all_that_it_claims_of_the_host() -> None:
    node = an_online_node(a_device("cpu0", kind="cpu", memory_bytes=64 * GIB))
    version = sleepy(memory_bytes=8 * GIB, device_kind="cpu")
    ModelVersion.objects.update(host_memory_bytes=12 * GIB)
    instance = place_one(version, node)
    assert claimed(instance) == [20 * GIB]
    report(node, instance, "ready")
    services.sleep_instance(instance.pk, actor=SYSTEM)
    report(node, instance, "asleep", memory_rss_bytes=10 * GIB)
    assert claimed(instance) == [12 * GIB]  # what it sleeps in stays claimed
    services.wake_instance(instance.pk, actor=SYSTEM)
    assert told(node, instance).state == "asleep"
    assert [one.instance_id for one in read_pool().waiting] == [instance.pk]
    assert claim_again(instance.pk, actor=SYSTEM) is None
    assert claimed(instance) == [20 * GIB]
    assert told(node, instance).state == "running"


def test_one_that_is_sent_to_sleep_while_it_wakes_keeps_its_claim_until_it_sleeps_again() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=8 * GIB), node)
    report(node, instance, "ready")
    services.sleep_instance(instance.pk, actor=SYSTEM)
    report(node, instance, "asleep", device_bytes=GIB)
    services.wake_instance(instance.pk, actor=SYSTEM)
    assert claim_again(instance.pk, actor=SYSTEM) is None  # its node is told, and wakes it at this moment
    services.sleep_instance(instance.pk, actor=SYSTEM)
    assert claimed(instance) == [8 * GIB]
    report(node, instance, "asleep", device_bytes=GIB)  # it never woke
    assert claimed(instance) == [int(GIB * 1.05)]
    assert Lease.objects.filter(released_at=None).count() == 1
