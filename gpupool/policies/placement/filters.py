"""Filters: each says why a device cannot take an instance, in a sentence's end, or nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpupool.policies.isolation import MOST_MPS_CLIENTS, refusals
from gpupool.policies.lease import Refused, decide_portion, describe_bytes
from gpupool.policies.nearest import type_of, why_infeasible
from gpupool.policies.placement.views import DeviceView, Need

Filter = Callable[[DeviceView, Need], str | None]

_WORKED_IN: Final = frozenset({"read", "write", "compute"})


def of_kind(device: DeviceView, need: Need) -> str | None:
    return None if device.kind == need.kind else f"it is a {device.kind}, not a {need.kind}"


def is_as_real(device: DeviceView, need: Need) -> str | None:
    """Made-up answers are for made-up versions."""
    simulated = device.node is not None and device.node.simulated
    if need.simulated is None or simulated == need.simulated:
        return None
    return "it is simulated" if simulated else "it is real, and the version is a simulated one"


def is_present(device: DeviceView, need: Need) -> str | None:
    return None if device.present else "it is no longer there"


def is_reachable(device: DeviceView, need: Need) -> str | None:
    return None if device.node_reachable else "its node is not reachable"


def takes_new(device: DeviceView, need: Need) -> str | None:
    if device.node is not None and device.node.maintenance:
        return "its node is in maintenance"
    return "its node is cordoned" if device.node_cordoned else None


def is_allocatable(device: DeviceView, need: Need) -> str | None:
    """A GPU that is divided (MIG) is no place itself; its instances are. AMD's partitions are devices of their own."""
    return None if device.allocatable else "it is divided: its parts can be claimed, it cannot"


def is_in_service(device: DeviceView, need: Need) -> str | None:
    return f"it was taken out of service: {device.isolated}" if device.isolated else None


def is_healthy(device: DeviceView, need: Need) -> str | None:
    if device.health == "ok":
        return None
    return "it has failed" if device.health == "failed" else "nobody can say how it is now"


def has_tag(device: DeviceView, need: Need) -> str | None:
    if not need.gpu_tag or need.gpu_tag in device.tags:
        return None
    has = f"; it has {', '.join(sorted(device.tags))}" if device.tags else "; it has none"
    return f"it does not have the tag {need.gpu_tag}{has}"


def is_within_limit(device: DeviceView, need: Need) -> str | None:
    if need.mem_limit_bytes is None or need.memory_bytes <= need.mem_limit_bytes:
        return None
    return (
        f"{describe_bytes(need.memory_bytes)} of it are asked for, and the limit of memory (mem_limit_mb) is "
        f"{describe_bytes(need.mem_limit_bytes)}"
    )


def has_precision(device: DeviceView, need: Need) -> str | None:
    """What is not known is not refused."""
    if not need.precision or not device.precisions or need.precision in device.precisions:
        return None
    return f"it does not compute in {need.precision}"


def carries_shape(device: DeviceView, need: Need) -> str | None:
    kind = None if need.shape is None else type_of(device.name, tuple(device.tags))
    if need.shape is None or kind is None:
        return None
    return why_infeasible(need.shape, kind)


def may_be_computed_in(device: DeviceView, need: Need) -> str | None:
    """Whether one of its regions that is large enough may be read, written and computed in."""
    reason = None
    for one in device.regions:
        if not one.access >= _WORKED_IN:
            reason = reason or "none of its memory may be read, written and computed in"
        elif one.size_bytes is None or one.size_bytes >= need.memory_bytes:
            return None
        else:
            reason = f"no region of its memory has {describe_bytes(need.memory_bytes)}"
    return reason


def can_isolate(device: DeviceView, need: Need) -> str | None:
    if device.node is None:
        return None
    found = refusals(need.isolation, device.node.capabilities)
    return f"its node cannot isolate it so: {found[0].removesuffix('.')}" if found else None


def has_mps_clients_left(device: DeviceView, need: Need) -> str | None:
    """MPS limits each client by itself, so all of them are counted."""
    if not need.isolation.mps:
        return None
    taken = sum(claim.mps_clients for claim in device.claims)
    if taken + need.isolation.mps_clients <= MOST_MPS_CLIENTS:
        return None
    return f"it has {taken} clients of MPS, and {need.isolation.mps_clients} more are over {MOST_MPS_CLIENTS}"


def has_room(device: DeviceView, need: Need) -> str | None:
    if device.untouched and 0 < need.memory_bytes <= (device.memory_bytes or 0):
        return None  # all of it is free: the rules of leases need not be asked
    decision = decide_portion(device_bytes=device.memory_bytes, held=device.portions(), wanted=need.portion)
    return decision.reason if isinstance(decision, Refused) else None


STANDING: Final[tuple[tuple[str, Filter], ...]] = (
    ("kind", of_kind),
    ("simulated", is_as_real),
    ("present", is_present),
    ("reachable", is_reachable),
    ("cordoned", takes_new),
    ("divided", is_allocatable),
    ("isolated", is_in_service),
    ("health", is_healthy),
    ("tag", has_tag),
    ("limit", is_within_limit),
    ("precision", has_precision),
    ("shape", carries_shape),
    ("access", may_be_computed_in),
    ("isolation", can_isolate),
)
"""What nobody's leaving changes."""

OCCUPANCY: Final[tuple[tuple[str, Filter], ...]] = (("mps", has_mps_clients_left), ("memory", has_room))
"""What is different once others have left."""


_ONLY_IF: Final[Mapping[str, Callable[[Need], bool]]] = {
    "simulated": lambda need: need.simulated is not None,
    "tag": lambda need: bool(need.gpu_tag),
    "limit": lambda need: need.mem_limit_bytes is not None,
    "precision": lambda need: bool(need.precision),
    "shape": lambda need: need.shape is not None,
    "isolation": lambda need: bool(need.isolation.sandbox or need.isolation.cgroup or need.isolation.mps),
    "mps": lambda need: need.isolation.mps,
}
"""Filters that have nothing to say of most needs: not asked a thousand times for nothing."""


def asked_by(
    need: Need, filters: Sequence[tuple[str, Filter]] = STANDING + OCCUPANCY
) -> tuple[tuple[str, Filter], ...]:
    """The filters that this need is held against."""
    return tuple(one for one in filters if one[0] not in _ONLY_IF or _ONLY_IF[one[0]](need))


def first_reason(
    device: DeviceView, need: Need, filters: Sequence[tuple[str, Filter]] = STANDING + OCCUPANCY
) -> tuple[str, str] | None:
    """Code and reason of the first filter that has one."""
    for code, check in filters:
        reason = check(device, need)
        if reason is not None:
            return code, reason
    return None
