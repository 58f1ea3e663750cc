"""Healing in rows: actions with reasons and audit rows, devices out and back."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from core.refusals import Conflict
from gpupool import services
from gpupool.leases.fencing import Fence, Superseded, raise_fence
from gpupool.models import (
    Device,
    DeviceEvent,
    HealingAction,
    HealingActionState,
    Instance,
    InstanceDesire,
    InstanceState,
    Lease,
    Node,
    XidRule,
)
from gpupool.reads.healing import device_actions, overrides, why_device_is_out
from gpupool.selectors import list_devices_overview
from gpupool.services import device_isolation, xid_rules
from gpupool.services import healing as healing_services
from gpupool.services.changes import Changes
from tenants.actor import SYSTEM
from tenants.models import AuditEvent
from tenants.services import InvalidInput
from tests.gpupool.pool import OnlineNode, a_device, a_hello, a_version, an_online_node, seen
from tests.gpupool.services.told import a_running_instance, an_xid, heal, say, tell

pytestmark = pytest.mark.django_db


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "GATEHOUSE", _with(settings.GATEHOUSE, healing_hardware=True))


def _with(environment: Any, **changed: Any) -> Any:
    from dataclasses import replace

    return replace(environment, **changed)


def test_an_application_error_stops_the_instance_it_names_with_a_reason_and_an_audit_row() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = a_running_instance(node, pid=70)
    tell(node, an_xid(1, 31, pid="70"))
    heal()
    action = HealingAction.objects.get()
    assert (action.action, action.state, action.instance_id) == ("restart_app", "done", instance.pk)
    assert action.outcome == "1 instance was asked to stop; a new one is asked for."
    assert "XID 31" in action.reason
    instance.refresh_from_db()
    assert (instance.desire, instance.state) == (InstanceDesire.STOPPED, InstanceState.DRAINING)
    assert "XID 31" in instance.reason
    event = DeviceEvent.objects.get()
    assert event.decided
    assert event.verdict == action.reason
    audited = AuditEvent.objects.get(action="healing.decided")
    assert audited.after["reason"] == action.reason
    heal()
    assert HealingAction.objects.count() == 1


@pytest.mark.shows("R65")
def test_an_error_that_nobody_knows_has_its_instance_rebuilt_and_the_device_stays_in() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = a_running_instance(node, pid=70)
    tell(node, an_xid(1, 7777, pid="70"))
    heal()
    action = HealingAction.objects.get()
    assert (action.action, action.state, action.instance_id) == ("rebuild", "done", instance.pk)
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED  # and its version, which shall have one, gets another
    services.apply_observed(node.pk, node.session, seen(instance, "stopped"))
    instance.refresh_from_db()
    assert (instance.state, Device.objects.get().isolated_by) == ("stopped", "")


def test_without_hardware_actions_a_reset_is_written_down_and_the_device_is_taken_out() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = a_running_instance(node)
    tell(node, an_xid(1, 48))
    heal()
    states = dict(HealingAction.objects.values_list("action", "state"))
    assert states == {"reset": "dry_run", "isolate": "done"}
    assert "GATEHOUSE_HEALING_HARDWARE" in HealingAction.objects.get(action="reset").outcome
    device = Device.objects.get()
    assert device.isolated_by == "healing"
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED
    assert device_actions(node.pk) == []


@pytest.mark.usefixtures("hardware")
def test_a_reset_waits_until_the_device_is_empty_is_the_nodes_to_do_and_brings_the_device_back() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = a_running_instance(node)
    tell(node, an_xid(1, 48))
    heal()
    action = HealingAction.objects.get()
    assert (action.action, action.state) == ("reset", "pending")
    assert device_actions(node.pk) == []  # its instance still holds it
    services.apply_observed(node.pk, node.session, seen(instance, "stopped"))
    (row,) = device_actions(node.pk)
    assert (row.action, row.stable_id, row.dry_run) == ("reset", "gpu-0", False)
    say(node, action, "running")
    assert len(device_actions(node.pk)) == 1
    say(node, action, "done", "It was reset.")
    assert device_actions(node.pk) == []
    device = Device.objects.get()
    assert device.isolated_at is not None
    assert "watched" in (why_device_is_out(device, now=timezone.now()) or "")
    heal(later=30)
    assert Device.objects.get().isolated_at is not None
    heal(later=90)
    assert Device.objects.get().isolated_at is None
    kinds = AuditEvent.objects.order_by("pk").values_list("action", flat=True)
    assert [kind for kind in kinds if kind.startswith(("healing", "device.i", "device.g"))] == [
        "device.isolated", "healing.decided", "healing.started", "healing.ended", "device.given_back",
    ]  # fmt: skip


@pytest.mark.usefixtures("hardware")
def test_a_failed_reset_is_followed_by_a_restart_of_the_node_which_is_over_with_its_new_boot_id() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 48))
    heal()
    say(node, HealingAction.objects.get(), "failed", "Process 12 still holds it.")
    heal()
    reboot = HealingAction.objects.get(action="reboot")
    assert Node.objects.get().cordoned
    (row,) = device_actions(node.pk)
    assert (row.action, row.stable_id) == ("reboot", "")
    say(node, reboot, "running", "It restarts.")
    services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0"), boot_id="second"))
    with transaction.atomic():
        changes = Changes()
        healing_services.end_reboots(Node.objects.get(), actor=SYSTEM, changes=changes)
        changes.publish()
    reboot.refresh_from_db()
    assert (reboot.state, reboot.outcome) == ("done", "The node has restarted.")
    assert not Node.objects.get().cordoned
    heal(later=90)
    assert Device.objects.get().isolated_at is None


def a_divided_gpu() -> tuple[OnlineNode, Instance]:
    """One GPU in two parts, one of them in use."""
    whole = msgspec.structs.replace(a_device("gpu-0"), allocatable=False)
    parts = [msgspec.structs.replace(a_device(f"MIG-{n}"), partition_of="gpu-0") for n in (1, 2)]
    node = an_online_node(whole, *parts)
    instance = services.request_instance(a_version("m").pk, actor=SYSTEM)
    part = Device.objects.get(stable_id="MIG-1")
    assert isinstance(services.claim_and_place(instance.pk, part.pk, actor=SYSTEM), Lease)
    Instance.objects.filter(pk=instance.pk).update(pid=70)
    return node, instance


@pytest.mark.shows("R139")
@pytest.mark.usefixtures("hardware")
def test_an_error_of_a_divided_gpu_hits_its_parts_and_it_is_never_reset() -> None:
    node, instance = a_divided_gpu()
    tell(node, an_xid(1, 48))
    heal()
    action = HealingAction.objects.get()
    assert action.action == "end_processes"
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED
    assert set(Device.objects.filter(isolated_by="healing").values_list("stable_id", flat=True)) == {
        "gpu-0", "MIG-1", "MIG-2",
    }  # fmt: skip
    assert device_actions(node.pk) == []  # the part is still held
    Lease.objects.update(released_at=timezone.now())
    assert [one.stable_id for one in device_actions(node.pk)] == ["gpu-0"]
    say(node, action, "done", "Nothing of ours is on it any more.")
    tell(node, an_xid(2, 48))
    DeviceEvent.objects.filter(sequence=2).update(received_at=timezone.now() + timedelta(minutes=9))
    assert not heal(later=660).give_back  # the whole is watched on, and its parts with it
    fence = Fence("controller", 1)
    raise_fence(fence)
    assert len(heal(later=1300, fence=fence).give_back) == 1
    assert len(heal(later=1300, fence=fence).give_back) == 2  # and then its parts
    assert not Device.objects.exclude(isolated_by="").exists()


def test_a_person_takes_a_divided_gpu_out_with_its_parts_and_gives_them_back_together() -> None:
    _, instance = a_divided_gpu()
    whole = Device.objects.get(stable_id="gpu-0")
    device_isolation.isolate_device(whole.pk, reason="It is sold.", move_instances=True, actor=SYSTEM)
    assert Device.objects.filter(isolated_by="person").count() == 3
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED
    device_isolation.give_back_device(whole.pk, reason="It is not.", actor=SYSTEM)
    assert not Device.objects.exclude(isolated_by="").exists()


def test_an_error_that_names_a_process_of_a_part_restarts_its_instance() -> None:
    node, instance = a_divided_gpu()
    tell(node, an_xid(1, 31, pid="70"))
    heal()
    assert HealingAction.objects.get().action == "restart_app"
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED


@pytest.mark.usefixtures("hardware")
def test_a_person_who_cordons_during_a_restart_keeps_the_node_cordoned() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 79))
    heal()
    assert Node.objects.get().cordoned
    services.set_node_cordoned(node.pk, True, actor=SYSTEM)
    assert AuditEvent.objects.filter(action="healing.cordon_kept").exists()
    healing_services.end_overdue_action(HealingAction.objects.get(action="reboot").pk, actor=SYSTEM)
    assert Node.objects.get().cordoned


@pytest.mark.usefixtures("hardware")
def test_a_cordon_of_a_person_outlasts_a_restart() -> None:
    node = an_online_node(a_device("gpu-0"))
    services.set_node_cordoned(node.pk, True, actor=SYSTEM)
    tell(node, an_xid(1, 79))
    heal()
    action = HealingAction.objects.get(action="reboot")
    healing_services.end_overdue_action(action.pk, actor=SYSTEM)
    action.refresh_from_db()
    assert action.state == HealingActionState.FAILED
    assert Node.objects.get().cordoned


@pytest.mark.shows("P15")
def test_a_person_takes_a_device_out_and_only_a_person_gives_it_back() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = a_running_instance(node)
    device = Device.objects.get()
    device_isolation.isolate_device(device.pk, reason="A fan is loud.", move_instances=True, actor=SYSTEM)
    instance.refresh_from_db()
    assert instance.desire == InstanceDesire.STOPPED
    heal(later=86_400)
    device.refresh_from_db()
    assert device.isolated_by == "person"
    assert [seen.schedulable_bytes for seen in list_devices_overview()] == [0]
    assert "person" in (why_device_is_out(device, now=timezone.now()) or "")
    device_isolation.give_back_device(device.pk, reason="It was replaced.", actor=SYSTEM)
    device.refresh_from_db()
    assert (device.isolated_at, device.isolated_by) == (None, "")
    assert why_device_is_out(device, now=timezone.now()) is None


@pytest.mark.usefixtures("hardware")
def test_a_device_is_not_given_back_while_something_is_done_about_it() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 48))
    heal()
    with pytest.raises(Conflict):
        device_isolation.give_back_device(Device.objects.get().pk, reason="", actor=SYSTEM)


def test_an_operators_rule_counts_before_the_catalogue_until_it_is_dropped() -> None:
    node = an_online_node(a_device("gpu-0"))
    xid_rules.set_xid_rule(48, action="ignore", note="known firmware", provenance="runbook 12", actor=SYSTEM)
    assert overrides()[48].provenance == "runbook 12"
    tell(node, an_xid(1, 48))
    heal()
    assert not HealingAction.objects.exists()
    assert "runbook 12" in DeviceEvent.objects.get().verdict
    with pytest.raises(InvalidInput):
        xid_rules.set_xid_rule(48, action="merge_48", actor=SYSTEM)
    xid_rules.drop_xid_rule(48, actor=SYSTEM)
    assert not XidRule.objects.exists()
    tell(node, an_xid(2, 48))
    heal()
    assert HealingAction.objects.filter(action="isolate").exists()


def test_a_leader_that_was_superseded_heals_nothing() -> None:
    node = an_online_node(a_device("gpu-0"))
    a_running_instance(node, pid=70)
    tell(node, an_xid(1, 31, pid="70"))
    raise_fence(Fence("controller", 9))
    with pytest.raises(Superseded):
        heal(fence=Fence("controller", 8))
    assert not HealingAction.objects.exists()
    assert not DeviceEvent.objects.get().decided


def test_an_unknown_device_or_instance_of_another_node_is_left_alone() -> None:
    node = an_online_node(a_device("gpu-0"))
    other = an_online_node(a_device("gpu-9"), name="node-2")
    elsewhere = a_running_instance(other, pid=70)
    tell(node, an_xid(1, 31, pid="70"))
    heal()
    elsewhere.refresh_from_db()
    assert elsewhere.desire == InstanceDesire.RUNNING
    assert isinstance(elsewhere.pk, UUID)


@pytest.mark.shows("P15")
def test_an_error_of_the_last_minutes_keeps_a_device_out_and_it_is_said_so() -> None:
    node = an_online_node(a_device("gpu-0"))
    tell(node, an_xid(1, 48))
    heal()
    device = Device.objects.get()
    an_hour_ago, just_now = timezone.now() - timedelta(hours=1), timezone.now() - timedelta(minutes=5)
    HealingAction.objects.update(created_at=an_hour_ago, finished_at=an_hour_ago)
    Device.objects.update(isolated_at=an_hour_ago)
    DeviceEvent.objects.update(received_at=just_now)
    assert not heal().give_back
    device.refresh_from_db()
    assert "without an error" in (why_device_is_out(device, now=timezone.now()) or "")
    assert heal(later=301).give_back
    device.refresh_from_db()
    assert device.isolated_at is None
