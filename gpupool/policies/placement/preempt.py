"""Who has to go when nothing else fits: lower priorities, and those who borrowed what is reserved for this tenant."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from gpupool.policies.placement import filters, rights, sets
from gpupool.policies.placement.rights import Standing
from gpupool.policies.placement.views import ClaimView, DeviceView, Fits, Need, Preempt, Unplaced

_OCCUPIED: Final = frozenset(code for code, _ in filters.OCCUPANCY)


def preempt(
    devices: Sequence[DeviceView],
    need: Need,
    standings: Sequence[Standing],
    made: Unplaced,
    hosts: Mapping[UUID | None, DeviceView],
    *,
    by_right: bool = True,
) -> Preempt | None:
    """The fewest and least important instances whose going makes room; None where none would do.

    `made` is why nothing fits now: only devices that are full, or that fit alone, are worth a second look.
    """
    own_rights = [one for one in standings if by_right and one.covers(need)]
    if not own_rights and not any(one.priority < need.priority for device in devices for one in device.claims):
        return None
    kept = rights.kept_of(need, standings)
    by_tenant: dict[UUID, list[Standing]] = defaultdict(list)
    for one in standings:
        by_tenant[one.reservation.tenant_id].append(one)
    room: list[Fits] = []
    going: dict[UUID, tuple[ClaimView, ...]] = {}
    full = {one.device_id for one in made.unfit if one.code in _OCCUPIED}
    free = {one.device_id for one in made.fits}
    for device in devices:
        if device.device_id in free:
            victims: tuple[ClaimView, ...] | None = ()
        elif device.device_id in full and rights.kept_for_others(device, need, kept) is None:
            victims = _victims(device, need, own_rights, by_tenant)
        else:
            continue
        if victims is None or not _host_has_room(hosts.get(device.node_id), victims, need):
            continue
        going[device.device_id] = victims
        left = (device.free_bytes or 0) + sum(one.memory_bytes for one in victims) - need.memory_bytes
        room.append(Fits(device.device_id, left, device.label, score=_score(victims)))
    if len(room) < need.devices:
        return None
    chosen = sets.choose(room, {device.device_id: device for device in devices}, need)
    if isinstance(chosen, sets.NotTogether):
        return None
    instances = {claim.holder: claim for one in chosen.device_ids for claim in going[one] if claim.holder is not None}
    if not instances:
        return None
    if _takes_rights(devices, frozenset(instances), need, standings):
        return None
    why = "a tenant's reservation" if _is_by_right(instances.values(), need) else "its higher priority"
    return Preempt(tuple(sorted(instances)), chosen.device_ids, f"It waits for {len(instances)} to go, by {why}.")


def _victims(
    device: DeviceView, need: Need, own_rights: Sequence[Standing], by_tenant: Mapping[UUID, Sequence[Standing]]
) -> tuple[ClaimView, ...] | None:
    """Claims that have to end for the need to fit: the least important first, the youngest of those."""
    by_right = any(rights.matches(device, one.reservation.gpu_tag) for one in own_rights)
    candidates = sorted(
        (
            claim
            for claim in device.claims
            if claim.holder is not None
            and (claim.leaving or _may_be_sent_off(claim, device, need, by_tenant, by_right=by_right))
        ),
        key=lambda claim: (not claim.leaving, claim.priority, -claim.since),
    )
    occupancy = filters.asked_by(need, filters.OCCUPANCY)
    ended: list[ClaimView] = []
    for claim in candidates:
        ended.append(claim)
        if filters.first_reason(_without(device, ended), need, occupancy) is None:
            return tuple(ended)
    return None


def _may_be_sent_off(
    claim: ClaimView,
    device: DeviceView,
    need: Need,
    by_tenant: Mapping[UUID, Sequence[Standing]],
    *,
    by_right: bool,
) -> bool:
    """What another tenant has by right goes for nobody, whatever its priority: the tenant would take it back."""
    if claim.tenant_id == need.tenant_id:
        return claim.priority < need.priority
    if not by_right and claim.priority >= need.priority:
        return False
    return rights.is_borrowing(claim.tenant_id, device, by_tenant)


def without(devices: Sequence[DeviceView], instances: frozenset[UUID] = frozenset()) -> tuple[DeviceView, ...]:
    """Devices as they are once those that were told to go have gone, and these with them."""
    return tuple(
        _without(device, ended)
        if (ended := [claim for claim in device.claims if claim.leaving or claim.holder in instances])
        else device
        for device in devices
    )


def _takes_rights(
    devices: Sequence[DeviceView], instances: frozenset[UUID], need: Need, standings: Sequence[Standing]
) -> bool:
    """Whether another tenant would be left with less than its own: it would take that back, and so on without end."""
    losing = {
        claim.tenant_id
        for device in devices
        for claim in device.claims
        if claim.holder in instances and not claim.leaving
    }
    others = [
        one for one in standings if one.reservation.tenant_id in losing and one.reservation.tenant_id != need.tenant_id
    ]
    if not others:
        return False
    then = without(devices, instances)
    return any(
        after.unmet_devices > one.unmet_devices or after.unmet_bytes > one.unmet_bytes
        for one, after in zip(others, rights.standings([one.reservation for one in others], then), strict=True)
    )


def _without(device: DeviceView, ended: Sequence[ClaimView]) -> DeviceView:
    gone = {id(claim) for claim in ended}  # the very ones: comparing thousands by their members takes long
    return replace(
        device,
        claims=tuple(claim for claim in device.claims if id(claim) not in gone),
        claimed_bytes=device.claimed_bytes - sum(claim.memory_bytes for claim in ended),
    )


def _host_has_room(host: DeviceView | None, victims: Sequence[ClaimView], need: Need) -> bool:
    """Whether the host's memory beside the device suffices once they have gone."""
    if not need.host_memory_bytes or need.kind == "cpu":
        return True
    free = None if host is None else host.free_bytes
    if host is None or free is None:
        return False
    holders = {one.holder for one in victims}
    back = sum(one.memory_bytes for one in host.claims if one.leaving or (one.holder and one.holder in holders))
    return free + back >= need.host_memory_bytes


def _score(victims: Sequence[ClaimView]) -> float:
    """Nobody is best; then few, of low priority."""
    if not victims:
        return 1.0
    worst = max(claim.priority for claim in victims)
    return 0.5 / (1 + len(victims)) - 0.01 * worst


def _is_by_right(claims: Iterable[ClaimView], need: Need) -> bool:
    return any(claim.priority >= need.priority and not claim.leaving for claim in claims)
