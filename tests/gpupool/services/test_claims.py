"""Claims: never more than the device has, each with a higher token than the last, ended on every way out."""

import threading
from typing import Any
from uuid import UUID

import msgspec
import pytest
from django.db import connection
from django.db.models import Sum

from gpupool import services
from gpupool.leases.fencing import Fence, Superseded
from gpupool.models import Device, Instance, InstanceState, Lease
from gpupool.policies.lease import Refused
from gpupool.stream.messages import InstanceFact, Observed
from tenants.actor import SYSTEM
from tests.gpupool.pool import GIB, a_device, a_hello, a_version, an_online_node, place_one, seen

pytestmark = pytest.mark.django_db


@pytest.mark.shows("P1")
def test_two_halves_fit_on_a_card_and_one_more_byte_does_not() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    half, crumb = a_version("half", memory_bytes=8 * GIB), a_version("crumb", memory_bytes=1)
    device = Device.objects.get(node=node.pk)
    for _ in range(2):
        instance = services.request_instance(half.pk, actor=SYSTEM)
        assert isinstance(services.claim_and_place(instance.pk, device.pk, actor=SYSTEM), Lease)
    late = services.request_instance(crumb.pk, actor=SYSTEM)
    outcome = services.claim_and_place(late.pk, device.pk, actor=SYSTEM)
    assert isinstance(outcome, Refused)
    late.refresh_from_db()
    assert late.state == InstanceState.REQUESTED
    assert "0 B can be claimed" in late.reason
    assert Lease.objects.filter(released_at=None).aggregate(t=Sum("memory_bytes"))["t"] == 16 * GIB


def test_a_card_that_shrank_under_its_claims_keeps_them_and_has_nothing_to_give() -> None:
    """Divided anew, or its memory failed in part: who runs there is not told to go by arithmetic."""
    node = an_online_node(a_device("gpu-0", memory_bytes=16 * GIB))
    version = a_version("m", memory_bytes=8 * GIB)
    held = [place_one(version, node) for _ in range(2)]
    services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0", memory_bytes=4 * GIB)))
    late = services.request_instance(version.pk, actor=SYSTEM)
    device = Device.objects.get(node=node.pk)
    assert isinstance(services.claim_and_place(late.pk, device.pk, actor=SYSTEM), Refused)
    late.refresh_from_db()
    assert "8.0 GiB, 0 B can be claimed" in late.reason
    holders = Lease.objects.filter(released_at=None).values_list("holder", flat=True)
    assert set(holders) == {f"instance:{one.pk}" for one in held}


@pytest.mark.shows("P1", "P14")
@pytest.mark.django_db(transaction=True)
def test_claims_made_at_the_same_moment_never_exceed_the_card() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=10 * GIB))
    version, device = a_version("m", memory_bytes=3 * GIB), Device.objects.get(node=node.pk)
    instances = [services.request_instance(version.pk, actor=SYSTEM).pk for _ in range(8)]
    gate, outcomes = threading.Barrier(len(instances)), []

    def claim(instance_id: UUID) -> None:
        gate.wait()
        try:
            outcomes.append(services.claim_and_place(instance_id, device.pk, actor=SYSTEM))
        finally:
            connection.close()

    threads = [threading.Thread(target=claim, args=(pk,)) for pk in instances]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    assert len(leases) == 3
    assert len({lease.fencing_token for lease in leases}) == 3
    assert len({lease.lease_id for lease in leases}) == 3


def test_nothing_is_promised_on_a_device_that_does_not_say_its_size() -> None:
    node = an_online_node(a_device("gpu-0", memory_bytes=None))
    instance = services.request_instance(a_version("m").pk, actor=SYSTEM)
    outcome = services.claim_and_place(instance.pk, Device.objects.get(node=node.pk).pk, actor=SYSTEM)
    assert isinstance(outcome, Refused)
    assert "does not say" in outcome.reason


@pytest.mark.parametrize("health", ["failed", "unknown"])
def test_nothing_is_claimed_of_a_device_that_fell_after_it_was_chosen(health: str) -> None:
    node = an_online_node(a_device("gpu-0", health=health))
    instance = services.request_instance(a_version("m").pk, actor=SYSTEM)
    outcome = services.claim_and_place(instance.pk, Device.objects.get(node=node.pk).pk, actor=SYSTEM)
    assert isinstance(outcome, Refused)
    assert outcome.reason.startswith("gpu-0 ")


def test_a_later_claim_has_a_higher_fencing_token() -> None:
    node = an_online_node(a_device("gpu-0"))
    version = a_version("m")
    first, second = place_one(version, node), place_one(version, node)
    assert second.fencing_token > first.fencing_token


@pytest.mark.shows("P12")
def test_the_claim_ends_when_the_node_says_that_the_process_is_gone_and_not_before() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    services.stop_instance(instance.pk, actor=SYSTEM, reason="no longer wanted")
    assert Lease.objects.get().released_at is None
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    instance.refresh_from_db()
    assert instance.state == InstanceState.DRAINING
    assert Lease.objects.get().released_at is None
    services.apply_observed(node.pk, node.session, seen(instance, "stopped"))
    instance.refresh_from_db()
    assert instance.state == InstanceState.STOPPED
    assert Lease.objects.get().released_at is not None


@pytest.mark.shows("P12")
def test_a_failed_instance_that_shall_stop_gives_its_claim_back() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "failed", reason="no such file"))
    assert Lease.objects.get().released_at is None  # it may be started again on the same claim
    services.stop_instance(instance.pk, actor=SYSTEM)
    services.apply_observed(node.pk, node.session, seen(instance, "failed"))
    assert Lease.objects.get().released_at is not None


@pytest.mark.shows("P12")
def test_the_sweep_frees_what_nobody_holds_and_leaves_what_somebody_does() -> None:
    node = an_online_node(a_device("gpu-0"))
    kept, lost = place_one(a_version("kept"), node), place_one(a_version("lost"), node)
    Instance.objects.filter(pk=lost.pk).update(state=InstanceState.STOPPED)  # as if a release had been forgotten
    assert services.sweep_claims(actor=SYSTEM) == 1
    assert services.sweep_claims(actor=SYSTEM) == 0
    assert Lease.objects.get(released_at=None).holder == f"instance:{kept.pk}"


def test_the_sweep_leaves_a_claim_that_begins_while_it_looks() -> None:
    node, version = an_online_node(a_device("gpu-0")), a_version("m")
    begun: list[bool] = []

    def begin(execute: Any, sql: str, *rest: Any) -> Any:
        found = execute(sql, *rest)
        if not begun and sql.startswith("SELECT"):
            begun.append(True)
            place_one(version, node)  # as another's transaction that commits between two of its statements
        return found

    with connection.execute_wrapper(begin):
        assert services.sweep_claims(actor=SYSTEM) == 0
    assert begun
    assert Lease.objects.filter(released_at=None).count() == 1


@pytest.mark.parametrize("remembered", [False, True])
def test_a_restarted_machine_holds_nothing_of_its_last_boot(remembered: bool) -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.apply_observed(node.pk, node.session, seen(instance, "ready", pid=7, port=21000))
    # What its agent remembers of the last boot: an engine without a process, to be started again.
    facts = tuple(seen(instance, "staging").instances) if remembered else ()
    intake = services.apply_hello(node.pk, a_hello(node.name, a_device("gpu-0"), boot_id="second", instances=facts))
    assert intake.orphans == facts  # it is told not to
    instance.refresh_from_db()
    assert instance.state == InstanceState.STOPPED
    assert Lease.objects.get().released_at is not None


def test_a_node_that_never_returns_gives_its_claims_back_when_a_person_vouches_for_it() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    services.mark_node_unreachable(node.pk, reason="silent", actor=SYSTEM)
    services.mark_instance_unknown(instance.pk, reason="silent", actor=SYSTEM)
    assert Lease.objects.get().released_at is None
    services.declare_node_lost(node.pk, actor=SYSTEM)
    instance.refresh_from_db()
    assert instance.state == InstanceState.STOPPED
    assert Lease.objects.get().released_at is not None


@pytest.mark.shows("P11")
def test_a_superseded_controller_cannot_write() -> None:
    node = an_online_node(a_device("gpu-0"))
    version = a_version("m")
    old, new = Fence("controller", 10), Fence("controller", 20)
    services.request_instance(version.pk, actor=SYSTEM, fence=old)
    instance = services.request_instance(version.pk, actor=SYSTEM, fence=new)
    device = Device.objects.get(node=node.pk)
    with pytest.raises(Superseded):
        services.claim_and_place(instance.pk, device.pk, actor=SYSTEM, fence=old)
    with pytest.raises(Superseded):
        services.stop_instance(instance.pk, actor=SYSTEM, fence=old)
    assert not Lease.objects.exists()
    assert isinstance(services.claim_and_place(instance.pk, device.pk, actor=SYSTEM, fence=new), Lease)


@pytest.mark.shows("P11", "R33")
def test_a_report_about_an_earlier_claim_changes_no_instance_and_its_readings_are_taken() -> None:
    node = an_online_node(a_device("gpu-0"))
    instance = place_one(a_version("m"), node)
    stale = InstanceFact(instance_id=instance.pk, state="ready", lease_id=1, fencing_token=instance.fencing_token - 1)
    for used in (5, 3):  # readings have no order but the last one's
        device = msgspec.structs.replace(a_device("gpu-0"), memory_used_bytes=used)
        services.apply_observed(node.pk, node.session, Observed(sequence=1, devices=[device], instances=[stale]))
        assert Device.objects.get().memory_used_bytes == used
    instance.refresh_from_db()
    assert instance.state == InstanceState.STAGING


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model_exists", [True, False])
def test_an_engine_attached_twice_at_the_same_moment_is_attached_once(model_exists: bool) -> None:
    if model_exists:
        services.create_model("llama", actor=SYSTEM)
    gate, attached = threading.Barrier(4), []

    def attach() -> None:
        gate.wait()
        try:
            attached.append(
                services.attach_engine("http://host:8000", engine="vllm", model_name="llama", actor=SYSTEM).instance.pk
            )
        finally:
            connection.close()

    threads = [threading.Thread(target=attach) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attached) == 4
    assert len(set(attached)) == 1
