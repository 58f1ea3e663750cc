"""Several devices for one instance: on one node, of one vendor, as near to each other as is asked."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.policies import topology
from gpupool.policies.placement.scorers import SET_WEIGHTS
from gpupool.policies.placement.views import DeviceView, Fits, Need


@dataclass(frozen=True, slots=True)
class Chosen:
    """Devices in the order of their stable ids; `nearness` as topology has it."""

    device_ids: tuple[UUID, ...]
    nearness: float
    score: float


@dataclass(frozen=True, slots=True)
class NotTogether:
    """Devices that fit one by one, but not together; `reason` is a sentence."""

    reason: str


def choose(fits: Sequence[Fits], devices: Mapping[UUID, DeviceView], need: Need) -> Chosen | NotTogether:
    """The best set of `need.devices`."""
    if need.devices == 1:
        best = min(fits, key=lambda fit: (-fit.score, -fit.left_bytes, fit.device_id))
        return Chosen((best.device_id,), 1.0, best.score)
    groups: dict[tuple[UUID | None, str], list[Fits]] = defaultdict(list)
    for fit in fits:
        device = devices[fit.device_id]
        groups[device.node_id, device.vendor].append(fit)
    candidates = [
        found
        for group in groups.values()
        if len(group) >= need.devices and (found := _best_of(group, devices, need)) is not None
    ]
    if candidates:
        return min(candidates, key=lambda one: (-one.score, one.device_ids))
    return NotTogether(_why_not(groups, devices, need))


def _best_of(group: list[Fits], devices: Mapping[UUID, DeviceView], need: Need) -> Chosen | None:
    ordered = sorted(group, key=lambda fit: (-fit.score, fit.device_id))
    views = [devices[fit.device_id] for fit in ordered]
    if need.topology == "any":
        positions: tuple[int, ...] | None = tuple(range(need.devices))
    else:
        positions = topology.nearest_set(views, need.devices)
    if positions is None:
        return None
    members = [ordered[position] for position in positions]
    chosen = sorted((devices[fit.device_id] for fit in members), key=lambda one: (one.stable_id, one.device_id))
    nearness = topology.set_score(chosen)
    if need.topology == "required" and nearness < topology.DOMAIN:
        return None
    parts = {
        "nearness": 0.0 if need.topology == "any" else nearness,
        "alike": 1.0 if len({one.name for one in chosen}) == 1 else 0.0,
        "own_node": need.devices / len(group),  # none of its node is left over: larger ones stay for larger needs
    }
    mean = sum(fit.score for fit in members) / len(members)
    total = mean + sum(SET_WEIGHTS[name] * value for name, value in parts.items())
    return Chosen(tuple(one.device_id for one in chosen), nearness, total / (1.0 + sum(SET_WEIGHTS.values())))


def _why_not(
    groups: Mapping[tuple[UUID | None, str], list[Fits]], devices: Mapping[UUID, DeviceView], need: Need
) -> str:
    by_node: dict[UUID | None, dict[str, int]] = defaultdict(dict)
    for (node_id, vendor), group in groups.items():
        by_node[node_id][vendor] = len(group)
    mixed = next((node for node, own in by_node.items() if sum(own.values()) >= need.devices and len(own) > 1), None)
    enough = [group for group in groups.values() if len(group) >= need.devices]
    if enough:
        views = [devices[fit.device_id] for fit in max(enough, key=len)]
        positions = topology.nearest_set(views, need.devices) or ()
        nearness = topology.set_score([views[position] for position in positions])
        return (
            f"No {need.devices} devices of one node are near enough to each other: the nearest are connected "
            f"{topology.describe(nearness)}, and its topology is required."
        )
    if mixed is not None:
        name = _node_name(mixed, groups, devices)
        own = ", ".join(f"{count} of {vendor}" for vendor, count in sorted(by_node[mixed].items()))
        return (
            f"Node {name} has {own}, and one instance does not span devices of several vendors: "
            f"it needs {need.devices} of one."
        )
    most = max((len(group) for group in groups.values()), default=0)
    return f"It needs {need.devices} devices of one node; the most that can take it on any node are {most}."


def _node_name(
    node_id: UUID | None, groups: Mapping[tuple[UUID | None, str], list[Fits]], devices: Mapping[UUID, DeviceView]
) -> str:
    for (one, _), group in groups.items():
        node = devices[group[0].device_id].node
        if one == node_id and node is not None:
            return node.name
    return "?"
