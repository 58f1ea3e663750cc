"""The decision: filters with reasons, scores, the best set; who goes first where nothing fits."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from gpupool.policies.lease import describe_bytes
from gpupool.policies.placement import filters, rights, sets
from gpupool.policies.placement.filters import Filter
from gpupool.policies.placement.preempt import preempt, without
from gpupool.policies.placement.rights import Kept, Standing
from gpupool.policies.placement.scorers import score
from gpupool.policies.placement.views import (
    DeviceView,
    Fits,
    Need,
    Placed,
    Placement,
    QuotaView,
    ReservationView,
    Unfit,
    Unplaced,
)

_BORROWED_LAST = 10.0
"""Taken off the score of devices that are reserved for others: those are borrowed only where no other fits."""


def judge(device: DeviceView, need: Need) -> Fits | Unfit:
    """Every filter on one device by itself, the first reason wins."""
    return _judge(device, need, filters.asked_by(need), {}, (), (), ())


def place(
    devices: Sequence[DeviceView],
    need: Need,
    *,
    quotas: Sequence[QuotaView] = (),
    reservations: Sequence[ReservationView] = (),
    may_preempt: bool = True,
    by_right: bool = True,
) -> Placement:
    """Where it goes, or why nowhere. Ties go to the smaller ids, so that the choice is stable."""
    if need.memory_bytes <= 0:
        return Unplaced("Its version does not say how many bytes one instance claims.", ())
    if need.devices < 1:
        return Unplaced("Its version asks for no device.", ())
    standings = rights.standings(reservations, devices) if need.kind == "gpu" else []
    made = _place(devices, need, quotas, standings)
    if isinstance(made, Placed) or not may_preempt:
        return made
    over = rights.over_quota_together((), need, [one for one in quotas if one.metric == "gpu_memory"])
    if over is not None or any(one.code == "quota" for one in made.unfit):
        return made  # more room would not help
    if any(claim.leaving for device in devices for claim in device.claims):
        left = without(devices)
        soon = _place(left, need, quotas, rights.standings(reservations, left))
        if isinstance(soon, Placed):
            reason = "It waits for instances that are leaving: there is room once they have gone."
            return Unplaced(reason, made.unfit, made.fits, soon.device_ids)
    found = preempt(devices, need, standings, made, _hosts(devices, need), by_right=by_right)
    if found is None:
        return made
    # Nobody goes for what would not fit then: its host may be full, or what comes free be kept for others.
    then = without(devices, frozenset(found.instances))
    nodes = {device.node_id for device in devices if any(one.holder in found.instances for one in device.claims)}
    there = [device for device in then if device.node_id in nodes]  # on other nodes it did not fit, and does not then
    after = _place(there, need, quotas, rights.standings(reservations, then))
    return replace(found, device_ids=after.device_ids) if isinstance(after, Placed) else made


def judge_all(
    devices: Sequence[DeviceView],
    need: Need,
    *,
    quotas: Sequence[QuotaView] = (),
    reservations: Sequence[ReservationView] = (),
) -> list[Fits | Unfit]:
    """Each device's own verdict, in their order: for people who ask why."""
    standings = rights.standings(reservations, devices) if need.kind == "gpu" else []
    hosts, asked = _hosts(devices, need), filters.asked_by(need)
    kept = rights.kept_of(need, standings)
    return [_judge(device, need, asked, hosts, standings, kept, quotas) for device in devices]


def _place(
    devices: Sequence[DeviceView], need: Need, quotas: Sequence[QuotaView], standings: Sequence[Standing]
) -> Placed | Unplaced:
    hosts, asked = _hosts(devices, need), filters.asked_by(need)
    kept = rights.kept_of(need, standings)
    fits: list[Fits] = []
    unfit: list[Unfit] = []
    for device in devices:
        verdict = _judge(device, need, asked, hosts, standings, kept, quotas)
        if isinstance(verdict, Fits):
            fits.append(verdict)
        else:
            unfit.append(verdict)
    if not fits:
        return Unplaced(_explain(unfit, need), tuple(unfit))
    by_id = {device.device_id: device for device in devices}
    chosen = sets.choose(fits, by_id, need)
    if isinstance(chosen, sets.NotTogether):
        return Unplaced(chosen.reason, tuple(unfit), tuple(fits))
    over = rights.over_quota_together(chosen.device_ids, need, quotas)
    if over is not None:
        return Unplaced(over, tuple(unfit), tuple(fits))
    lent = rights.lenders((by_id[one] for one in chosen.device_ids), need, standings)
    return Placed(chosen.device_ids, tuple(unfit), tuple(fits), chosen.nearness, lent)


def _judge(
    device: DeviceView,
    need: Need,
    asked: Sequence[tuple[str, Filter]],
    hosts: Mapping[UUID | None, DeviceView],
    standings: Sequence[Standing],
    kept: Sequence[Kept],
    quotas: Sequence[QuotaView],
) -> Fits | Unfit:
    found = filters.first_reason(device, need, asked)
    if found is None and need.host_memory_bytes and need.kind != "cpu":
        found = _host_lacks(hosts.get(device.node_id), need)
    if found is None and kept and (reason := rights.kept_for_others(device, need, kept)) is not None:
        found = ("reserved", reason)
    if found is None and quotas and need.kind == "gpu" and (reason := rights.over_quota(device, quotas)) is not None:
        found = ("quota", reason)
    if found is not None:
        code, reason = found
        return Unfit(device.device_id, device.label, reason, code)
    total, parts = score(device, need)
    if standings and rights.is_reserved(device, need, standings):
        total -= _BORROWED_LAST
    left = (device.memory_bytes or 0) - device.claimed_bytes - need.memory_bytes
    return Fits(device.device_id, left, device.label, total, parts)


def _hosts(devices: Iterable[DeviceView], need: Need) -> Mapping[UUID | None, DeviceView]:
    """The host's own device of each node, where its memory is asked for too."""
    if not need.host_memory_bytes:
        return {}
    found: dict[UUID | None, DeviceView] = {}
    for device in devices:
        if device.kind == "cpu" and (device.node_id not in found or device.device_id < found[device.node_id].device_id):
            found[device.node_id] = device  # of several the one that is claimed of
    return found


def _host_lacks(host: DeviceView | None, need: Need) -> tuple[str, str] | None:
    if host is not None and (not host.present or host.isolated or host.health != "ok"):
        return "host", "nothing can be claimed of its host's memory now"
    free = None if host is None else host.free_bytes
    if free is None:
        return "host", "its node does not say how much memory its host has"
    if free < need.host_memory_bytes:
        wanted = describe_bytes(need.host_memory_bytes)
        return "host", f"its host has {describe_bytes(max(0, free))} of memory to claim, {wanted} are needed beside it"
    return None


def _explain(unfit: Sequence[Unfit], need: Need) -> str:
    if not unfit:
        return "No device is known yet: no node agent has connected."
    of_kind = [verdict for verdict in unfit if verdict.code != "kind"]
    if not of_kind:
        return f"There is no {need.kind} among the {len(unfit)} known devices."
    shown = "; ".join(f"{verdict.label}: {verdict.reason}" for verdict in of_kind[:3])
    more = f"; and {len(of_kind) - 3} more" if len(of_kind) > 3 else ""
    return f"No device can take it. {shown}{more}."
