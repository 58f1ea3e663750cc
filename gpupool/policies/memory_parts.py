"""What one instance has of one device's memory, part by part: what its engine tells, and what was measured."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

Part = tuple[str, int, str]
"""(segment, MiB, what it is a part of where nobody tells more: "kv" of a cache whose use is not told)."""


@dataclass(frozen=True, slots=True)
class Held:
    """One instance on one device, in bytes; None where nobody tells."""

    claimed: int
    used: int | None = None  # by its processes, as the device or the kernel says
    weights: int | None = None
    kv_capacity: int | None = None
    kv_used: float | None = None  # of the capacity, 0 to 1
    adapters: int | None = None
    compute: int | None = None  # graphs, activations, scratch, as the engine reckons them
    has_process: bool = True
    awake: bool = True
    beside: bool = False  # it runs on other devices: this is the host's memory beside them


def parts_of(held: Held) -> list[Part]:
    """In MiB, in one order; together what is claimed, or what is in use where that is more."""
    claimed = held.claimed // MIB
    if not held.has_process:
        return [("unused", claimed, "")]
    used = None if held.used is None else held.used // MIB
    if held.beside or not held.awake:
        return _at_rest(held, claimed, used)
    if used is None and held.weights is None and held.kv_capacity is None:
        return [("unknown", claimed, "")]
    parts = _told(held, max(claimed, used or 0), used)
    taken = sum(size for _, size, _ in parts)
    if used is None:
        return [*parts, ("unknown", max(0, claimed - taken), "")]
    return [*parts, ("unused", max(0, claimed - taken), "")]


def _at_rest(held: Held, claimed: int, used: int | None) -> list[Part]:
    """A sleeping engine keeps its weights on the host, and a context on its devices."""
    if used is None:
        return [("unknown", claimed, "")]
    weights = min(used, (held.weights or 0) // MIB) if held.beside and not held.awake else 0
    parts: list[Part] = [("weights", weights, "")] if weights else []
    return [*parts, ("activations", used - weights, ""), ("unused", max(0, claimed - used), "")]


def _told(held: Held, room: int, used: int | None) -> list[Part]:
    """What the engine tells, within what its processes have; the measured rest is activations where all else is told.

    An engine that takes its cache as it needs it has less than it told: the cache is then what it may still take.
    """
    parts: list[Part] = []
    left = room if used is None else used
    if held.weights is not None:
        weights = min(held.weights // MIB, left)
        parts.append(("weights", weights, ""))
        left -= weights
    adapters = min((held.adapters or 0) // MIB, left)
    left -= adapters
    capacity = 0 if held.kv_capacity is None else held.kv_capacity // MIB
    if used is not None and left >= capacity:
        rest, cache = left - capacity, capacity
    else:
        known = sum(size for _, size, _ in parts) + adapters
        rest = min((held.compute or 0) // MIB, left)
        cache = min(capacity, max(0, room - known - rest))
    if held.kv_capacity is not None:
        parts += _cache(cache, held.kv_used)
    if held.weights is not None and held.kv_capacity is not None:
        parts.append(("activations", rest, ""))
    elif rest:
        parts.append(("unknown", rest, ""))
    if held.adapters is not None:
        parts.append(("lora", adapters, ""))
    return parts


def _cache(reserved: int, share: float | None) -> list[Part]:
    if share is None:
        return [("unknown", reserved, "kv")]
    full = round(min(1.0, max(0.0, share)) * reserved)
    return [("kv_used", full, ""), ("kv_free", reserved - full, "")]
