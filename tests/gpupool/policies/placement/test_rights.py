"""Quotas, reservations with what is borrowed of them, and who goes for whom."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.placement import (
    ClaimView,
    DeviceView,
    Placed,
    Preempt,
    QuotaView,
    ReservationView,
    Round,
    Unplaced,
    judge_all,
    place,
)
from tests.gpupool.policies.placement.pools import ACME, GIB, GLOBEX, a_claim, a_device, a_need, claimed

KEPT = ReservationView(ACME, "acme", devices=2, lendable=False)
LENT = replace(KEPT, lendable=True)


def gpus(amount: int, *held: int) -> QuotaView:
    return QuotaView(UUID(int=1), "gpus", amount, frozenset(UUID(int=one) for one in held), tenants=frozenset({ACME}))


def memory(amount_gib: int, held_gib: int = 0) -> QuotaView:
    return QuotaView(UUID(int=2), "gpu_memory", amount_gib * GIB, held_bytes=held_gib * GIB)


# Quotas


def test_a_tenant_at_its_limit_of_gpus_stays_on_those_it_has() -> None:
    devices = [claimed(a_device(1), a_claim(9, 20, tenant_id=ACME)), a_device(2)]
    made = place(devices, a_need(tenant_id=ACME), quotas=[gpus(1, 1)])
    assert isinstance(made, Placed)
    assert made.device_ids == (UUID(int=1),)
    assert [(one.code, one.reason) for one in made.unfit] == [("quota", "its tenant may hold 1 GPU and holds 1")]
    refused = place(devices, a_need(70, tenant_id=ACME, priority=1), quotas=[gpus(1, 1)])
    assert isinstance(refused, Unplaced)  # nobody goes for it either: more room would not help


def test_several_devices_are_counted_together() -> None:
    refused = place([a_device(1), a_device(2)], a_need(devices=2), quotas=[gpus(1)])
    assert isinstance(refused, Unplaced)
    assert refused.reason == "Its tenant may hold 1 GPU, and would hold 2: raise the limit, or stop some."


def test_a_limit_of_memory_counts_what_is_held() -> None:
    assert isinstance(place([a_device(1)], a_need(10), quotas=[memory(40, 30)]), Placed)
    refused = place([a_device(1)], a_need(11), quotas=[memory(40, 30)])
    assert isinstance(refused, Unplaced)
    assert "may hold 40.0 GiB of GPU memory, and would hold 41.0 GiB" in refused.reason


def test_a_round_counts_what_it_gave() -> None:
    this_round = Round([a_device(1), a_device(2)], quotas=[gpus(1)])
    need = a_need(50, tenant_id=ACME)
    assert isinstance(this_round.place(need, holder=UUID(int=11)), Placed)
    assert isinstance(this_round.place(need, holder=UUID(int=12)), Unplaced)
    assert isinstance(this_round.place(a_need(50, tenant_id=GLOBEX), holder=UUID(int=13)), Placed)


# Reservations


def test_what_is_kept_for_a_tenant_and_not_lent_is_left_alone() -> None:
    devices = [a_device(1), a_device(2)]
    refused = place(devices, a_need(tenant_id=GLOBEX), reservations=[KEPT])
    assert isinstance(refused, Unplaced)
    assert {one.reason for one in refused.unfit} == {"it is kept for the tenant acme, who does not lend"}
    assert isinstance(place(devices, a_need(tenant_id=ACME), reservations=[KEPT]), Placed)
    assert isinstance(place([*devices, a_device(3)], a_need(tenant_id=GLOBEX), reservations=[KEPT]), Placed)


def test_what_lies_idle_is_lent_and_named() -> None:
    made = place([a_device(1), a_device(2)], a_need(tenant_id=GLOBEX), reservations=[LENT])
    assert isinstance(made, Placed)
    assert made.borrowed_from == ("acme",)
    spare = place([a_device(1), a_device(2), a_device(3)], a_need(tenant_id=GLOBEX), reservations=[LENT])
    assert isinstance(spare, Placed)
    assert spare.borrowed_from == ()


def test_a_reservation_is_of_devices_with_its_tag() -> None:
    tagged = a_device(1, tags=frozenset({"H100"}))
    kept = replace(KEPT, devices=1, gpu_tag="H100")
    made = place([tagged, a_device(2)], a_need(tenant_id=GLOBEX), reservations=[kept])
    assert isinstance(made, Placed)
    assert made.device_ids == (UUID(int=2),)


def test_memory_can_be_kept_too() -> None:
    kept = ReservationView(ACME, "acme", memory_bytes=60 * GIB, lendable=False)
    assert isinstance(place([a_device(1)], a_need(20, tenant_id=GLOBEX), reservations=[kept]), Placed)
    refused = place([a_device(1)], a_need(21, tenant_id=GLOBEX), reservations=[kept])
    assert isinstance(refused, Unplaced)
    assert "60.0 GiB are kept for the tenant acme" in refused.reason


# Preemption


def test_who_borrowed_goes_when_the_tenant_comes() -> None:
    """Whatever the borrower's priority: it is the tenant's right."""
    borrowed = claimed(a_device(1), a_claim(7, 70, tenant_id=GLOBEX, priority=1))
    made = place([borrowed], a_need(40, tenant_id=ACME), reservations=[LENT])
    assert isinstance(made, Preempt)
    assert made.instances == (UUID(int=7),)
    assert "a tenant's reservation" in made.reason
    assert isinstance(place([borrowed], a_need(40, tenant_id=GLOBEX), reservations=[LENT]), Unplaced)


def test_a_higher_priority_makes_the_least_important_go_and_no_more_than_needed() -> None:
    device = claimed(
        a_device(1), a_claim(1, 30, priority=0), a_claim(2, 30, priority=-1, since=5.0), a_claim(3, 20, priority=-1)
    )
    made = place([device], a_need(30, priority=1))
    assert isinstance(made, Preempt)
    assert made.instances == (UUID(int=2),)  # the younger of the low ones, and it is enough
    assert "its higher priority" in made.reason
    assert isinstance(place([device], a_need(30, priority=-1)), Unplaced)


def test_the_device_where_the_fewest_go_is_taken() -> None:
    crowded = claimed(a_device(1), *(a_claim(n, 20, priority=-1) for n in (1, 2, 3, 4)))
    single = claimed(a_device(2), a_claim(5, 80, priority=-1))
    made = place([crowded, single], a_need(70, priority=0))
    assert isinstance(made, Preempt)
    assert made.instances == (UUID(int=5),)


def test_what_no_instance_holds_is_never_taken_away() -> None:
    device = claimed(a_device(1), ClaimView(None, 70 * GIB, priority=-1))
    assert isinstance(place([device], a_need(40, priority=1)), Unplaced)


def test_nobody_goes_where_somebody_is_leaving_already() -> None:
    leaving = claimed(a_device(1), a_claim(1, 70, priority=-1, leaving=True))
    other = claimed(a_device(2), a_claim(2, 70, priority=-1))
    made = place([leaving, other], a_need(40, priority=1))
    assert isinstance(made, Unplaced)
    assert "waits for instances that are leaving" in made.reason


def test_several_devices_are_freed_together() -> None:
    devices = [
        claimed(a_device(number, links={"switch": "nvswitch"}), a_claim(number, 70, priority=-1))
        for number in (1, 2, 3)
    ]
    made = place(devices, a_need(40, devices=2, topology="required", priority=0))
    assert isinstance(made, Preempt)
    assert made.instances == (UUID(int=1), UUID(int=2))


def test_two_in_one_round_do_not_send_the_same_away_twice() -> None:
    devices = [claimed(a_device(number), a_claim(number, 70, priority=-1)) for number in (1, 2)]
    this_round = Round(devices)
    first = this_round.place(a_need(60, priority=1), holder=UUID(int=11))
    second = this_round.place(a_need(60, priority=1), holder=UUID(int=12))
    assert isinstance(first, Preempt)
    assert isinstance(second, Preempt)  # what the first leaves is the first need's
    assert (first.instances, second.instances) == ((UUID(int=1),), (UUID(int=2),))
    third = this_round.place(a_need(60, priority=1), holder=UUID(int=13))
    assert isinstance(third, Unplaced)


CLAIMS = st.builds(
    ClaimView,
    holder=st.one_of(st.none(), st.uuids(version=4)),
    memory_bytes=st.integers(1, 40).map(lambda gib: gib * GIB),
    priority=st.integers(-1, 1),
    tenant_id=st.sampled_from([None, ACME, GLOBEX]),
    leaving=st.booleans(),
)


@pytest.mark.shows("P1")
@given(st.lists(st.lists(CLAIMS, max_size=4), min_size=1, max_size=5), st.integers(1, 90), st.integers(1, 3), st.data())
def test_whatever_is_decided_the_sum_stays_within_the_device(
    claims: list[list[ClaimView]], gib: int, count: int, data: st.DataObject
) -> None:
    devices: list[DeviceView] = []
    for number, own in enumerate(claims):
        kept, used = [], 0
        for claim in own:
            if used + claim.memory_bytes <= 80 * GIB:
                kept.append(claim)
                used += claim.memory_bytes
        devices.append(claimed(a_device(number), *kept))
    priority, tenant = data.draw(st.integers(-1, 1)), data.draw(st.sampled_from([None, ACME, GLOBEX]))
    reservation = replace(KEPT, lendable=data.draw(st.booleans()), devices=data.draw(st.integers(0, 3)))
    need = a_need(gib, devices=count, priority=priority, tenant_id=tenant)
    made = place(devices, need, reservations=[reservation])
    by_id = {device.device_id: device for device in devices}
    match made:
        case Placed(device_ids=chosen):
            assert len(set(chosen)) == count
            assert all(by_id[one].claimed_bytes + need.memory_bytes <= 80 * GIB for one in chosen)
        case Preempt(device_ids=chosen, instances=gone):
            for one in chosen:
                left = [claim for claim in by_id[one].claims if claim.holder not in gone and not claim.leaving]
                assert sum(claim.memory_bytes for claim in left) + need.memory_bytes <= 80 * GIB
        case Unplaced(reason=reason):
            assert reason.endswith(".")
    assert len(judge_all(devices, need, reservations=[reservation])) == len(devices)
