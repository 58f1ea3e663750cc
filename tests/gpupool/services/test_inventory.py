"""What agents report is written as reported: unknown stays unknown, absent is not zero, telemetry is no event."""

from datetime import timedelta

import msgspec
import pytest
from django.utils import timezone

from core.epochs import Section, current_epoch, read_changes
from gpupool import services
from gpupool.models import Device, DeviceEvent, Instance, InstanceState, Node, StoreEvent, StoreRevision
from gpupool.selectors import list_devices_overview, list_ready_endpoints
from gpupool.stream.desired import read_desired
from gpupool.stream.messages import EngineLoadFact, EventFact, Observed
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tests.gpupool.pool import GIB, a_device, a_hello, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


def _audited(action: str) -> int:
    return AuditEvent.objects.filter(action=action).count()


def test_unknown_sizes_stay_unknown() -> None:
    an_online_node(a_device("gpu-0", memory_bytes=None))
    (device,) = list_devices_overview()
    assert device.memory_bytes is None
    assert device.used_bytes is None
    assert device.schedulable_bytes is None
    assert device.reserved_bytes == 0


def test_a_device_that_is_not_reported_any_more_is_absent_and_its_readings_are_unknown() -> None:
    node = an_online_node(a_device("gpu-0"), a_device("gpu-1"))
    services.apply_observed(node.pk, node.session, Observed(sequence=1, devices=[a_device("gpu-0")], instances=[]))
    gone = Device.objects.get(stable_id="gpu-1")
    assert (gone.present, gone.health, gone.memory_used_bytes) == (False, "unknown", None)
    assert gone.memory_bytes == 16 * GIB
    assert [device.stable_id for device in list_devices_overview()] == ["gpu-0"]
    services.apply_observed(
        node.pk, node.session, Observed(sequence=2, devices=[a_device("gpu-0"), a_device("gpu-1")], instances=[])
    )
    gone.refresh_from_db()
    assert (gone.present, gone.health) == (True, "ok")


def test_reserved_used_and_schedulable_are_three_numbers() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    place_one(a_version("m", memory_bytes=6 * GIB), node)
    Device.objects.update(memory_used_bytes=2 * GIB)
    (device,) = list_devices_overview()
    assert (device.reserved_bytes, device.used_bytes, device.schedulable_bytes) == (6 * GIB, 2 * GIB, 10 * GIB)
    services.set_node_cordoned(node.pk, True, actor=SYSTEM)
    (device,) = list_devices_overview()
    assert (device.reserved_bytes, device.schedulable_bytes) == (6 * GIB, 0)


def test_a_claimed_device_that_vanished_is_still_shown_with_its_claim() -> None:
    node = an_online_node(a_device("gpu-0"))
    place_one(a_version("m", memory_bytes=GIB), node)
    services.apply_observed(node.pk, node.session, Observed(sequence=1, devices=[], instances=[]))
    (device,) = list_devices_overview()
    assert (device.present, device.reserved_bytes, device.schedulable_bytes) == (False, GIB, 0)


def test_telemetry_is_overwritten_and_only_changes_of_state_are_audited() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    before = AuditEvent.objects.count()
    for sequence in range(5):
        report = seen(instance, "loading", pid=7)
        services.apply_observed(
            node.pk, node.session, Observed(sequence=sequence, devices=report.devices, instances=report.instances)
        )
    assert AuditEvent.objects.count() == before + 1
    assert _audited("device.state_changed") == 0
    sick = Observed(sequence=9, devices=[a_device("gpu-0", health="failed")], instances=[])
    services.apply_observed(node.pk, node.session, sick)
    services.apply_observed(node.pk, node.session, sick)
    assert _audited("device.state_changed") == 1


def test_load_reaches_the_instance_and_unknown_load_is_unknown() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    load = EngineLoadFact(instance_id=instance.pk, running=3, kv_used=0.5)
    services.apply_observed(
        node.pk, node.session, Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], load=[load])
    )
    row = Instance.objects.get()
    assert (row.running_requests, row.waiting_requests, row.kv_used) == (3, None, 0.5)


def test_readiness_reaches_the_routing_and_leaves_it_with_the_same_write() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    assert list_ready_endpoints() == []
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    (endpoint,) = list_ready_endpoints()
    assert (endpoint.instance_id, endpoint.model, endpoint.host, endpoint.port) == (
        instance.pk,
        "m",
        "127.0.0.1",
        21000,
    )
    services.apply_observed(node.pk, node.session, seen(instance, "staging", reason="It died."))
    assert list_ready_endpoints() == []
    assert Instance.objects.get().reason == "It died."


@pytest.mark.parametrize("ending", ["stop", "retire"])
def test_what_shall_not_serve_leaves_the_routing_at_once(ending: str) -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    if ending == "stop":
        services.stop_instance(instance.pk, actor=SYSTEM)
    else:
        services.retire_version(instance.version_id, actor=SYSTEM)
    assert list_ready_endpoints() == []


def test_a_report_of_an_old_stream_is_not_believed() -> None:
    node = an_online_node(a_device("gpu-0"))
    services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0")))
    with pytest.raises(services.SessionSuperseded):
        services.apply_observed(node.pk, node.session, Observed(sequence=1, devices=[], instances=[]))
    assert Device.objects.get().present


def test_a_node_that_speaks_again_is_online_and_what_was_unknown_is_as_it_says() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM)
    services.mark_instance_unknown(instance.pk, reason="silent", actor=SYSTEM)
    assert list_ready_endpoints() == []
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    assert Node.objects.get().state == "online"
    assert Instance.objects.get().state == InstanceState.READY


def test_a_verdict_that_comes_after_the_node_spoke_again_changes_nothing() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "loading", pid=7, port=21000))
    services.mark_instance_unknown(instance.pk, reason="silent", actor=SYSTEM)
    services.set_probed_state(instance.pk, healthy=True, reason="It answers.", actor=SYSTEM)
    assert Instance.objects.get().state == InstanceState.LOADING


def test_a_report_of_an_impossible_state_changes_nothing() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "requested"))
    instance.refresh_from_db()
    assert instance.state == InstanceState.STAGING


def test_old_events_of_the_store_are_dropped_once() -> None:
    StoreRevision.objects.create(revision=7)
    StoreEvent.objects.create(revision=5, key="/a", value=b"")
    later = timezone.now() + timedelta(hours=2)
    assert services.compact_store_events(now=later) == 1
    assert services.compact_store_events(now=later) == 0
    assert StoreRevision.objects.get().compacted_revision == 5


def test_an_engine_that_its_agent_does_not_list_any_more_leaves_the_routing() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    nothing = Observed(sequence=1, devices=[a_device("gpu-0")], instances=[])
    services.apply_observed(node.pk, node.session, nothing)
    instance.refresh_from_db()
    assert instance.state == InstanceState.STAGING  # the agent may not have heard of it yet
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0")))
    assert list_ready_endpoints() == []
    instance.refresh_from_db()
    assert (instance.state, instance.reason) == (InstanceState.FAILED, "Node node-1 does not run it any more.")


def _event(sequence: int, *, code: int = 79, device: str = "gpu-0") -> EventFact:
    return EventFact(sequence=sequence, source="nvml", kind="xid", at=1_790_000_000.0, stable_id=device, code=code)


@pytest.mark.shows("P24")
def test_the_same_error_twice_is_kept_twice_and_a_report_that_comes_again_adds_nothing() -> None:
    node = an_online_node(a_device("gpu-0"))
    report = Observed(
        sequence=1, devices=[a_device("gpu-0")], instances=[], events=[_event(1), _event(2), _event(3, device="")]
    )
    for _ in range(2):
        services.apply_observed(node.pk, node.session, report)
    kept = DeviceEvent.objects.order_by("sequence").values_list("sequence", "code", "device__stable_id")
    assert list(kept) == [(1, 79, "gpu-0"), (2, 79, "gpu-0"), (3, 79, None)]
    assert read_desired(node.pk).event_sequence == 3


def test_what_is_kept_counts_by_boot() -> None:
    node = an_online_node(a_device("gpu-0"))
    services.apply_observed(
        node.pk, node.session, Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], events=[_event(7)])
    )
    services.apply_hello(node.pk, a_hello("node-1", a_device("gpu-0"), boot_id="second"))
    assert read_desired(node.pk).event_sequence == 0


def test_what_a_node_isolates_by_is_told_anew_when_it_changed() -> None:
    node = an_online_node(a_device("gpu-0"))
    record = {"mps": {"available": True, "reason": ""}}
    for told in (record, {}):
        report = Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], capabilities=told)
        services.apply_observed(node.pk, node.session, report)
    assert Node.objects.get().capabilities == record


@pytest.mark.shows("R34")
def test_an_event_wakes_the_controller_and_one_that_came_before_does_not() -> None:
    node = an_online_node(a_device("gpu-0"))
    report = Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], events=[_event(1)])
    before = current_epoch(Section.POOL)
    services.apply_observed(node.pk, node.session, report)
    changes = read_changes(Section.POOL, after=before, limit=10)
    assert [change.object_id for change in changes or ()] == [node.pk]
    after = current_epoch(Section.POOL)
    services.apply_observed(node.pk, node.session, report)
    assert current_epoch(Section.POOL) == after


@pytest.mark.shows("P18")
def test_of_a_divided_gpu_the_parts_are_listed_and_summed_and_not_the_whole() -> None:
    whole = msgspec.structs.replace(a_device("GPU-1"), allocatable=False)
    part = msgspec.structs.replace(a_device("MIG-1", memory_bytes=8 * GIB), partition_of="GPU-1")
    an_online_node(whole, part)
    (listed,) = list_devices_overview()
    assert (listed.stable_id, listed.memory_bytes) == ("MIG-1", 8 * GIB)
