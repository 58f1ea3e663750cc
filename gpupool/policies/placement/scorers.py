"""Scorers: each says from 0 to 1 how well a device suits, by one consideration alone."""

from collections.abc import Callable, Mapping
from typing import Final

from gpupool.policies.nearest import Nearest, NoneFeasible, distance, nearest_type, type_of
from gpupool.policies.placement.views import DeviceView, Need

Scorer = Callable[[DeviceView, Need], float]

_NEAREST_NS: Final = {"gpu": 150.0, "cpu": 100.0}
"""Latency of the nearest memory of a kind of device, in the table of memory classes."""


def emptiness(device: DeviceView, need: Need) -> float:
    """The share of the device that stays free: spreading."""
    if not device.memory_bytes:
        return 0.0
    return _clamped((device.memory_bytes - device.claimed_bytes - need.memory_bytes) / device.memory_bytes)


def fullness(device: DeviceView, need: Need) -> float:
    """The share of the device that is then in use: packing."""
    return 1.0 - emptiness(device, need)


def wholeness(device: DeviceView, need: Need) -> float:
    """Devices that are whole stay whole for those who need all of one."""
    if need.whole or not device.untouched:
        return 1.0
    return _clamped(need.memory_bytes / device.memory_bytes) if device.memory_bytes else 0.0


def memory_nearness(device: DeviceView, need: Need) -> float:
    """How near its memory is, by the class's latency; half where that is not known."""
    nearest = 0.0
    for one in device.regions:
        if one.latency_ns and "compute" in one.access and "write" in one.access:
            nearest = one.latency_ns if not nearest else min(nearest, one.latency_ns)
    return _clamped(_NEAREST_NS.get(device.kind, 150.0) / nearest) if nearest else 0.5


def capability(device: DeviceView, need: Need) -> float:
    """Tensor cores, and the precision that is asked for; half for what is not known."""
    cores = 0.5 if device.tensor_cores is None else float(device.tensor_cores)
    if not need.precision:
        return cores
    precise = 0.5 if not device.precisions else float(need.precision in device.precisions)
    return (cores + precise) / 2


def shape_nearness(device: DeviceView, need: Need) -> float:
    """How near the device's type is to the requests' shape; half where there is no shape or no such type."""
    if need.shape is None:
        return 0.5
    kind = type_of(device.name, tuple(device.tags))
    if kind is None:
        return 0.5
    match nearest_type(need.shape, memory_bytes=need.memory_bytes):
        case Nearest(type=best) if best.name == kind.name:
            return 1.0
        case NoneFeasible():
            return 0.0
        case _:
            return 1.0 / (1.0 + distance(need.shape, kind))


SCORERS: Final[Mapping[str, Scorer]] = {
    "emptiness": emptiness,
    "fullness": fullness,
    "wholeness": wholeness,
    "memory": memory_nearness,
    "capability": capability,
    "shape": shape_nearness,
}
WEIGHTS: Final[Mapping[str, Mapping[str, float]]] = {
    "spread": {"emptiness": 1.0, "wholeness": 0.02, "memory": 0.1, "capability": 0.1, "shape": 0.5},
    "pack": {"fullness": 1.0, "wholeness": 0.5, "memory": 0.1, "capability": 0.1, "shape": 0.5},
}
"""By strategy. Spreading leaves devices whole only where all else is equal: the two pull apart."""

_WEIGHED: Final = {
    strategy: tuple((name, SCORERS[name], weight / sum(weights.values())) for name, weight in weights.items())
    for strategy, weights in WEIGHTS.items()
}

SET_WEIGHTS: Final = {"nearness": 1.0, "alike": 0.2, "own_node": 0.1}
"""Of several devices together: see `sets`."""


def score(device: DeviceView, need: Need) -> tuple[float, tuple[tuple[str, float], ...]]:
    """The weighted mean, and its parts."""
    total, parts = 0.0, []
    for name, scorer, weight in _WEIGHED[need.strategy]:
        value = scorer(device, need)
        total += weight * value
        parts.append((name, value))
    return total, tuple(parts)


def _clamped(value: float) -> float:
    return max(0.0, min(1.0, value))
