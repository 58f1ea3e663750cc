"""Instances asked to sleep and to wake: what is wished, what their nodes are told, what they hold meanwhile."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.utils import timezone

from core.ids import uuid7
from gpupool import services
from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, ModelVersion, Node
from gpupool.policies.lease import Refused
from gpupool.policies.tenant_switch import Binding, is_signed, switch_key, token_digest
from gpupool.reads.instances import read_nearness, read_pool
from gpupool.selectors import list_ready_endpoints
from gpupool.services.inventory import apply_observed
from gpupool.services.resizing import claim_again
from gpupool.stream.desired import read_desired
from gpupool.stream.messages import DesiredInstance
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.doubles.sleeper import registered, sleeper
from tests.gpupool.pool import GIB, OnlineNode, a_device, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def engines() -> Iterator[None]:
    with registered(sleeper()):
        yield


def sleepy(name: str = "m", **members: Any) -> ModelVersion:
    """A version whose engine sleeps."""
    version = a_version(name, **members)
    ModelVersion.objects.filter(pk=version.pk).update(engine="sleeper", engine_args={})
    version.refresh_from_db()
    return version


def report(node: OnlineNode, instance: Instance, state: str, **members: Any) -> Instance:
    """Its node says so of it."""
    instance.refresh_from_db()
    pid = members.pop("pid", 41)
    observed = seen(instance, state, pid=pid, port=21_000)
    fact = msgspec.structs.replace(observed.instances[0], **members)
    others = Instance.objects.filter(node_id=node.pk, lease_id__isnull=False).exclude(pk=instance.pk)
    rest = [seen(other, other.state, pid=other.pid, port=other.port).instances[0] for other in others]
    apply_observed(node.pk, node.session, msgspec.structs.replace(observed, instances=[fact, *rest]))
    instance.refresh_from_db()
    return instance


def told(node: OnlineNode, instance: Instance) -> DesiredInstance:
    (found,) = [row for row in read_desired(node.pk).instances if row.instance_id == instance.pk]
    return found


def claimed(instance: Instance) -> list[int]:
    rows = Lease.objects.filter(holder=f"instance:{instance.pk}", released_at__isnull=True).order_by("pk")
    return list(rows.values_list("memory_bytes", flat=True))


def test_one_that_is_asked_to_sleep_leaves_the_routing_at_once() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=8 * GIB), node)
    report(node, instance, "ready")
    assert [one.instance_id for one in list_ready_endpoints()] == [instance.pk]
    services.sleep_instance(instance.pk, actor=SYSTEM)
    assert list_ready_endpoints() == []
    assert told(node, instance).state == "asleep"
    report(node, instance, "ready", reason="It finishes its requests, then it sleeps.")
    assert claimed(instance) == [8 * GIB]  # it does not sleep yet
    services.sleep_instance(instance.pk, actor=SYSTEM)  # again: nothing
    assert AuditEvent.objects.filter(action="instance.sleep_requested").count() == 1


@pytest.mark.shows("R16")
def test_what_it_gives_back_others_may_claim_and_it_wakes_once_it_has_it_again() -> None:
    node = an_online_node(a_device("gpu0", memory_bytes=16 * GIB))
    version = sleepy(memory_bytes=10 * GIB)
    first = place_one(version, node)
    token = first.fencing_token
    report(node, first, "ready")
    services.sleep_instance(first.pk, actor=SYSTEM)
    report(node, first, "asleep", device_bytes=None)
    assert claimed(first) == [10 * GIB]  # how much its process keeps is not known: all of it
    report(node, first, "asleep", device_bytes=GIB)
    assert claimed(first) == [int(GIB * 1.05)]
    second = place_one(version, node)  # 10 of the 16 GiB, beside what the first one's process keeps
    report(node, second, "ready", pid=42)
    services.wake_instance(first.pk, actor=SYSTEM)
    assert told(node, first).state == "asleep"  # it has not got its memory
    refused = claim_again(first.pk, actor=SYSTEM)
    assert isinstance(refused, Refused)
    first.refresh_from_db()
    assert first.reason == refused.reason
    assert "It waits to wake. gpu0: it needs 10.0 GiB, 6.0 GiB can be claimed." in refused.reason
    services.sleep_instance(second.pk, actor=SYSTEM)
    report(node, second, "asleep", pid=42, device_bytes=GIB)
    assert claim_again(first.pk, actor=SYSTEM) is None
    assert claimed(first) == [10 * GIB]
    row = told(node, first)
    assert (row.state, row.fencing_token, row.memory_bytes) == ("running", token, 10 * GIB)
    report(node, first, "ready", device_bytes=9 * GIB)
    assert [one.instance_id for one in list_ready_endpoints()] == [first.pk]


@pytest.mark.shows("R23")
def test_the_hosts_memory_stays_claimed_while_it_sleeps_and_is_no_device_of_its_engine() -> None:
    node = an_online_node(a_device("cpu0", kind="cpu", memory_bytes=64 * GIB), a_device("gpu0"))
    version = sleepy(memory_bytes=8 * GIB)
    ModelVersion.objects.filter(pk=version.pk).update(host_memory_bytes=12 * GIB)
    instance = services.request_instance(version.pk, actor=SYSTEM)
    gpu = Device.objects.get(stable_id="gpu0")
    assert isinstance(services.claim_and_place(instance.pk, gpu.pk, actor=SYSTEM), Lease)
    report(node, instance, "ready")
    row = told(node, instance)
    assert (row.device_ids, row.memory_bytes, row.host_memory_bytes) == (["gpu0"], 8 * GIB, 12 * GIB)
    services.sleep_instance(instance.pk, actor=SYSTEM)
    report(node, instance, "asleep", device_bytes=GIB)
    assert sorted(claimed(instance)) == [int(GIB * 1.05), 12 * GIB]


@pytest.mark.shows("R23")
def test_no_instance_is_placed_where_the_host_has_not_the_memory_for_its_sleep() -> None:
    an_online_node(a_device("cpu0", kind="cpu", memory_bytes=8 * GIB), a_device("gpu0"))
    version = sleepy(memory_bytes=8 * GIB)
    ModelVersion.objects.filter(pk=version.pk).update(host_memory_bytes=12 * GIB)
    instance = services.request_instance(version.pk, actor=SYSTEM)
    refused = services.claim_and_place(instance.pk, Device.objects.get(stable_id="gpu0").pk, actor=SYSTEM)
    assert isinstance(refused, Refused)
    assert "cpu0: it needs 12.0 GiB, 8.0 GiB can be claimed" in refused.reason
    assert claimed(instance) == []


def test_one_that_cannot_sleep_is_refused_and_can_be_staged() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(a_version("m", memory_bytes=8 * GIB), node)  # llama.cpp
    report(node, instance, "ready")
    with pytest.raises(InvalidInput, match=r"llama.cpp cannot give its devices' memory back while it runs. It can be"):
        services.sleep_instance(instance.pk, actor=SYSTEM)
    services.sleep_instance(instance.pk, actor=SYSTEM, staged=True)
    report(node, instance, "asleep", pid=None)
    assert claimed(instance) == [1 << 20]  # it has nothing there: a claim keeps its place
    assert {one.tier: one.instances for one in read_nearness().tiers if one.instances} == {"staged": 1}
    services.wake_instance(instance.pk, actor=SYSTEM)
    assert claim_again(instance.pk, actor=SYSTEM) is None
    report(node, instance, "loading")
    report(node, instance, "ready", load_seconds=0.7, started_from="staged")
    assert instance.state == InstanceState.READY
    assert {one.tier: one.latency.median for one in read_nearness().tiers if one.latency.measured} == {"staged": 0.7}


def test_what_cannot_sleep_says_why() -> None:
    version = sleepy(memory_bytes=GIB)
    waiting = services.request_instance(version.pk, actor=SYSTEM)
    with pytest.raises(InvalidInput, match="no place yet"):
        services.sleep_instance(waiting.pk, actor=SYSTEM)
    ModelVersion.objects.filter(pk=version.pk).update(engine_args={"sleep_mode": False})
    node = an_online_node(a_device("gpu0"))
    instance = place_one(version, node)
    report(node, instance, "ready")
    with pytest.raises(InvalidInput, match="started without what lets it sleep"):
        services.sleep_instance(instance.pk, actor=SYSTEM)
    services.stop_instance(instance.pk, actor=SYSTEM)
    with pytest.raises(InvalidInput, match="only one that serves"):
        services.sleep_instance(instance.pk, actor=SYSTEM)
    with pytest.raises(InvalidInput, match="It was stopped"):
        services.wake_instance(instance.pk, actor=SYSTEM)


# Tenants


def test_the_row_of_a_tenants_instance_is_signed_for_its_node() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=GIB), node)
    tenant = uuid7()
    Instance.objects.filter(pk=instance.pk).update(tenant_id=tenant)
    row, key = told(node, instance), switch_key(_digest(node))
    assert key == switch_key(token_digest(node.token))  # as its agent derives it
    assert row.tenant_id == tenant
    assert is_signed(key, Binding(tenant, instance.pk, instance.fencing_token), row.signature)
    other = switch_key(_digest(an_online_node(a_device("gpu1"), name="node-2")))
    assert not is_signed(other, Binding(tenant, instance.pk, instance.fencing_token), row.signature)


def _digest(node: OnlineNode) -> str:
    return Node.objects.get(pk=node.pk).token_digest


@pytest.mark.shows("R17")
def test_no_request_reaches_an_instance_whose_node_has_not_verified_its_tenant() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=GIB), node)
    tenant = uuid7()
    Instance.objects.filter(pk=instance.pk).update(tenant_id=tenant)
    for verified in (None, uuid7()):
        report(node, instance, "ready", verified_tenant=verified)
        assert (instance.state, instance.reason) == (
            InstanceState.WARMING, "Its node has not verified yet that it serves its tenant.",
        )  # fmt: skip
        assert list_ready_endpoints() == []
    report(node, instance, "ready", verified_tenant=tenant)
    assert instance.state == InstanceState.READY
    assert [one.tenant_id for one in list_ready_endpoints()] == [tenant]


# Devices


@pytest.mark.shows("P15")
@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        ({"isolated_at": timezone.now(), "isolated_reason": "XID 79."}, "gpu0 was taken out of service: XID 79."),
        ({"health": "failed"}, "gpu0 has failed."),
    ],
)
def test_an_engine_on_a_device_in_trouble_is_not_ready_however_well_it_answers(
    trouble: dict[str, Any], says: str
) -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=GIB), node)
    report(node, instance, "ready")
    device = Device.objects.get(stable_id="gpu0")
    Device.objects.filter(pk=device.pk).update(**trouble)
    observed = seen(instance, "ready", pid=41, port=21_000)
    health = str(trouble.get("health", "ok"))
    devices = [msgspec.structs.replace(one, health=health) for one in observed.devices]
    apply_observed(node.pk, node.session, msgspec.structs.replace(observed, devices=devices))
    instance.refresh_from_db()
    assert (instance.state, instance.reason) == (InstanceState.UNKNOWN, says)
    assert list_ready_endpoints() == []
    Device.objects.filter(pk=device.pk).update(isolated_at=None)
    report(node, instance, "ready")  # a way back
    assert (instance.state, instance.reason) == (InstanceState.READY, "")


# What is measured


@pytest.mark.shows("R140")
def test_requests_are_counted_while_it_serves_and_unknown_when_it_does_not() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=GIB), node)
    report(node, instance, "ready")
    Instance.objects.filter(pk=instance.pk).update(running_requests=3, waiting_requests=1, kv_used=0.5)
    report(node, instance, "staging", pid=None, reason="It died.")
    assert (instance.running_requests, instance.waiting_requests, instance.kv_used) == (None, None, None)


def test_when_it_was_used_is_written_now_and_then() -> None:
    node = an_online_node(a_device("gpu0"))
    instance = place_one(sleepy(memory_bytes=GIB), node)
    report(node, instance, "ready", last_used_at=1000.0, load_seconds=1.5)
    assert instance.last_used_at is not None
    assert instance.load_seconds == 1.5
    first = instance.last_used_at
    report(node, instance, "ready", last_used_at=1005.0)
    assert instance.last_used_at == first
    report(node, instance, "ready", last_used_at=1011.0)
    assert instance.last_used_at == first + timedelta(seconds=11)


def test_idle_seconds_are_the_versions_or_the_setting(settings: Any) -> None:
    settings.GATEHOUSE = replace(settings.GATEHOUSE, idle_sleep_seconds=7.0)
    node = an_online_node(a_device("gpu0"))
    version = sleepy(memory_bytes=GIB)
    found: list[UUID] = []
    for _ in range(2):
        instance = place_one(version, node)
        Instance.objects.filter(pk=instance.pk).update(pooled=True)
        found.append(instance.pk)
    assert dict(read_pool().idle_seconds) == dict.fromkeys(found, 7.0)
    ModelVersion.objects.filter(pk=version.pk).update(idle_sleep_seconds=60.0)
    assert set(read_pool().idle_seconds.values()) == {60.0}
    assert Instance.objects.filter(desire=InstanceDesire.RUNNING).count() == 2
