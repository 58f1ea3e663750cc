"""Nobody goes for nothing, and nobody goes again and again: rights, priorities and large needs come to rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupool.policies.instance import State
from gpupool.policies.placement import (
    DeviceView,
    Need,
    Placed,
    Preempt,
    ReservationView,
    Round,
    Unplaced,
    place,
)
from gpupool.policies.reconcile import InstanceView, NodeView, Place, Rules, Stop, VersionView, World, reconcile
from tests.gpupool.policies.placement.pools import ACME, GIB, GLOBEX, a_claim, a_device, a_need, a_node, claimed

KEPT = ReservationView(ACME, "acme", devices=1, lendable=False)
LENT = replace(KEPT, lendable=True)


def test_nobody_goes_where_the_host_would_still_lack_memory() -> None:
    node = a_node(1)
    gpu = claimed(a_device(1, node=node), a_claim(1, 70, priority=-1))
    host = a_device(2, node=node, kind="cpu", memory_gib=8)
    made = place([gpu, host], a_need(40, priority=1, host_memory_bytes=16 * GIB))
    assert isinstance(made, Unplaced)


def test_they_go_where_the_host_has_room_once_they_have_gone() -> None:
    node = a_node(1)
    gpu = claimed(a_device(1, node=node), a_claim(1, 70, priority=-1))
    host = claimed(a_device(2, node=node, kind="cpu", memory_gib=20), a_claim(1, 10, priority=-1))
    made = place([gpu, host], a_need(40, priority=1, host_memory_bytes=16 * GIB))
    assert isinstance(made, Preempt)


def test_they_go_on_the_node_whose_host_has_room() -> None:
    poor, rich = a_node(1), a_node(2)
    gpus = [claimed(a_device(n, node=node), a_claim(n, 70, priority=-1)) for n, node in ((1, poor), (2, rich))]
    hosts = [a_device(n, node=node, kind="cpu", memory_gib=gib) for n, node, gib in ((3, poor, 8), (4, rich, 64))]
    made = place([*gpus, *hosts], a_need(40, priority=1, host_memory_bytes=16 * GIB))
    assert isinstance(made, Preempt)
    assert made.instances == (UUID(int=2),)


@pytest.mark.parametrize("change", [{"present": False}, {"isolated": "It fell."}, {"health": "unknown"}])
def test_a_host_that_gives_nothing_is_no_host(change: Mapping[str, object]) -> None:
    node = a_node(1)
    gpu, host = a_device(1, node=node), a_device(2, node=node, kind="cpu")
    made = place([gpu, replace(host, **change)], a_need(host_memory_bytes=GIB))  # type: ignore[arg-type]  # of its own fields
    assert isinstance(made, Unplaced)
    assert [one.code for one in made.unfit] == ["host", "kind"]


def test_nobody_goes_from_what_is_then_kept_for_another() -> None:
    """The only device is Acme's by right; whoever is sent off it makes room for Acme alone."""
    device = claimed(a_device(1), a_claim(1, 70, priority=-1, tenant_id=GLOBEX))
    assert isinstance(place([device], a_need(40, priority=1), reservations=[KEPT]), Unplaced)


def test_several_devices_leave_as_many_as_are_kept() -> None:
    devices = [a_device(1), a_device(2)]
    assert isinstance(place(devices, a_need(devices=2, tenant_id=GLOBEX), reservations=[KEPT]), Unplaced)
    third = [*devices, a_device(3)]
    assert isinstance(place(third, a_need(devices=2, tenant_id=GLOBEX), reservations=[KEPT]), Placed)


def test_two_reservations_do_not_count_on_the_same_device() -> None:
    kept = [KEPT, ReservationView(UUID(int=0x1A), "initech", devices=1, lendable=False)]
    devices = [a_device(1), a_device(2)]
    assert isinstance(place(devices, a_need(tenant_id=GLOBEX), reservations=kept), Unplaced)
    assert isinstance(place(devices, a_need(tenant_id=ACME), reservations=kept), Placed)
    assert isinstance(place(devices, a_need(devices=2, tenant_id=ACME), reservations=kept), Unplaced)


def test_a_device_that_takes_nothing_new_is_nobodys_spare_one() -> None:
    devices = [
        a_device(1),
        a_device(2, node=a_node(2), node_cordoned=True),
        a_device(3, node=a_node(3, maintenance=True)),
    ]
    assert isinstance(place(devices, a_need(tenant_id=GLOBEX), reservations=[KEPT]), Unplaced)


def test_what_a_tenant_holds_beyond_its_own_reservation_comes_back_and_no_more() -> None:
    both = [LENT, ReservationView(GLOBEX, "globex", devices=1)]
    devices = [claimed(a_device(n), a_claim(n, 70, tenant_id=ACME)) for n in (1, 2)]
    made = place(devices, a_need(40, tenant_id=GLOBEX), reservations=both)
    assert isinstance(made, Preempt)
    assert len(made.instances) == 1
    fair = [devices[0], claimed(a_device(2), a_claim(3, 40, tenant_id=GLOBEX, priority=1))]
    assert isinstance(place(fair, a_need(60, tenant_id=GLOBEX, priority=1), reservations=both), Unplaced)
    assert isinstance(place(devices, a_need(40, devices=2, tenant_id=GLOBEX), reservations=both), Unplaced)


def test_a_right_to_a_little_makes_nobody_go_for_a_lot() -> None:
    borrowed = claimed(a_device(1), a_claim(7, 70, tenant_id=GLOBEX))
    kept = ReservationView(ACME, "acme", memory_bytes=GIB)
    assert isinstance(place([borrowed], a_need(40, tenant_id=ACME), reservations=[kept]), Unplaced)


def test_what_leaves_at_different_times_is_kept_for_whom_it_leaves() -> None:
    """Two of two have gone for a large need; the first device is free, the second not yet: no small one gets it."""
    devices = [a_device(1), claimed(a_device(2), a_claim(2, 70, priority=-1, leaving=True))]
    this_round = Round(devices)
    large = this_round.place(a_need(60, devices=2, priority=1), holder=UUID(int=11))
    assert isinstance(large, Unplaced)
    assert "leaving" in large.reason
    assert isinstance(this_round.place(a_need(60, priority=-1), holder=UUID(int=12)), Unplaced)
    assert isinstance(this_round.place(a_need(20, priority=-1), holder=UUID(int=13)), Placed)  # beside it


# Looks in a row, until nothing changes


@dataclass
class Pool:
    """Carries out what is decided at once, but that who is told to leave does so after `linger` looks."""

    devices: list[DeviceView]
    versions: Mapping[UUID, VersionView]
    reservations: list[ReservationView]
    linger: Callable[[UUID], int] = lambda _: 0
    placed: dict[UUID, tuple[UUID, tuple[UUID, ...]]] = field(default_factory=dict)  # version and devices by instance
    leaving: dict[UUID, int] = field(default_factory=dict)
    waiting: dict[UUID, UUID] = field(default_factory=dict)
    stops: int = 0
    next_id: int = 1000

    def look(self) -> bool:
        """One look; whether anything was placed or stopped."""
        for gone in [one for one, left in self.leaving.items() if left <= 0]:
            del self.leaving[gone], self.placed[gone]
        self.leaving = {one: left - 1 for one, left in self.leaving.items()}
        for version in self.versions.values():
            own = [of for one, (of, _) in self.placed.items() if one not in self.leaving] + [*self.waiting.values()]
            for _ in range(version.replicas - own.count(version.version_id)):
                self.next_id += 1
                self.waiting[UUID(int=self.next_id)] = version.version_id
        plan = reconcile(self._world(), Rules())
        changed = False
        for action in plan.actions:
            match action:
                case Place(instance_id=one, device_ids=where):
                    self.placed[one] = (self.waiting.pop(one), where)
                    changed = True
                case Stop(instance_id=one):
                    assert Place(one, self.placed[one][1]) not in plan.actions  # not in the look that placed it
                    self.leaving[one] = self.linger(one)
                    self.stops += 1
                    changed = True
        return changed or bool(self.leaving)

    def _world(self) -> World:
        claims: dict[UUID, list[object]] = {}
        views = []
        for one, (of, where) in self.placed.items():
            need = self.versions[of].need
            for device in where:
                claim = replace(need.claim(one, now=float(one.int)), leaving=one in self.leaving)
                claims.setdefault(device, []).append(claim)
            if one not in self.leaving:
                views.append(InstanceView(one, of, UUID(int=1), State.READY, True, 0.0))
        views += [InstanceView(one, of, None, State.REQUESTED, True, 0.0) for one, of in self.waiting.items()]
        devices = [claimed(device, *claims.get(device.device_id, ())) for device in self.devices]
        node = NodeView(UUID(int=1), "node-1", connected=True, alive=True)
        return World(1.0, [*self.versions.values()], views, [node], devices, reservations=self.reservations)


def a_version(number: int, replicas: int, need: Need) -> tuple[UUID, VersionView]:
    return UUID(int=number), VersionView(UUID(int=number), f"v{number}", replicas, need)


def settle(pool: Pool, looks: int = 40) -> None:
    quiet = 0
    for _ in range(looks):
        quiet = 0 if pool.look() else quiet + 1
        if quiet == 2:
            return
    pytest.fail(f"After {looks} looks it still changes; {pool.stops} were sent off.")


def test_a_right_and_a_priority_do_not_send_each_other_off_for_ever() -> None:
    """Globex runs what is more important on Acme's device; Acme comes, by right."""
    versions = dict([a_version(1, 1, a_need(60, tenant_id=GLOBEX, priority=1))])
    pool = Pool([a_device(1)], versions, [LENT])
    settle(pool)
    pool.versions = dict([*versions.items(), a_version(2, 1, a_need(60, tenant_id=ACME, priority=-1))])
    settle(pool)
    assert pool.stops == 1
    assert [of for of, _ in pool.placed.values()] == [UUID(int=2)]


def test_a_large_need_gets_its_devices_though_they_leave_one_by_one() -> None:
    small = a_version(1, 4, a_need(60, priority=-1))
    pool = Pool([a_device(n) for n in (1, 2, 3, 4)], dict([small]), [], linger=lambda one: one.int % 4)
    settle(pool)
    pool.versions = dict([small, a_version(2, 1, a_need(60, devices=4, priority=1))])
    settle(pool)
    assert pool.stops == 4
    assert [of for of, _ in pool.placed.values()] == [UUID(int=2)]


TENANTS = st.sampled_from([None, ACME, GLOBEX])


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([20, 45, 80]), st.integers(1, 2), st.integers(-1, 1), TENANTS),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.tuples(st.sampled_from([ACME, GLOBEX]), st.integers(0, 2), st.sampled_from([0, 60]), st.booleans()),
        max_size=2,
        unique_by=lambda row: row[0],
    ),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_whatever_is_wanted_it_comes_to_rest(
    wanted: list[tuple[int, int, int, int, UUID | None]],
    kept: list[tuple[UUID, int, int, bool]],
    count: int,
    linger: int,
) -> None:
    reservations = [
        ReservationView(tenant, str(tenant), devices=devices, memory_bytes=gib * GIB, lendable=lendable)
        for tenant, devices, gib, lendable in kept
        if devices or gib
    ]
    pool = Pool([a_device(n) for n in range(1, count + 1)], {}, reservations, linger=lambda one: one.int % (linger + 1))
    for number, (replicas, gib, devices, priority, tenant) in enumerate(wanted, start=1):
        need = a_need(gib, devices=devices, priority=priority, tenant_id=tenant)
        pool.versions = dict([*pool.versions.items(), a_version(number, replicas, need)])
        settle(pool)
        for device in pool._world().devices:
            assert device.claimed_bytes <= 80 * GIB
