"""How far an instance's weights are from serving. Pure.

Four tiers: cold on a disk, staged in the page cache of its node, asleep in host memory beside a process that keeps all
else, awake on its devices.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpupool.policies.instance import State

STAGED_SHARE: Final = 0.9
"""Of its weights in the page cache, from which on a start counts as one from there."""


class Tier(StrEnum):
    COLD = "cold"
    STAGED = "staged"
    ASLEEP = "asleep"
    AWAKE = "awake"


def tier_of(state: State, *, has_process: bool) -> Tier:
    """The tier of an instance, by its state. One that is on its way counts as where it comes from: cold."""
    if state in (State.READY, State.DRAINING):
        return Tier.AWAKE
    if state == State.ASLEEP:
        return Tier.ASLEEP if has_process else Tier.STAGED
    return Tier.COLD


def started_from(cached_share: float | None) -> Tier:
    """Where the weights were when its process started; not known is cold, which promises nothing."""
    return Tier.STAGED if cached_share is not None and cached_share >= STAGED_SHARE else Tier.COLD


@dataclass(frozen=True, slots=True)
class Timed:
    """What one instance took, the last time each; None where it never did."""

    load_seconds: float | None
    started_from: str  # cold, staged; empty: not told
    wake_seconds: float | None


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds until requests are served, over what was measured; all None where nothing was."""

    measured: int = 0
    median: float | None = None
    longest: float | None = None


def wake_latency(timed: Iterable[Timed]) -> Mapping[Tier, Latency]:
    """How long it takes to serve from each tier. From awake it takes nothing."""
    seconds: dict[Tier, list[float]] = {Tier.COLD: [], Tier.STAGED: [], Tier.ASLEEP: []}
    for one in timed:
        if one.load_seconds is not None and one.started_from in (Tier.COLD, Tier.STAGED):
            seconds[Tier(one.started_from)].append(one.load_seconds)
        if one.wake_seconds is not None:
            seconds[Tier.ASLEEP].append(one.wake_seconds)
    return {tier: _latency(values) for tier, values in seconds.items()} | {Tier.AWAKE: Latency(0, 0.0, 0.0)}


def _latency(values: list[float]) -> Latency:
    if not values:
        return Latency()
    ordered, middle = sorted(values), len(values) // 2
    median = ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Latency(len(values), median, ordered[-1])


_LEAST_BYTES: Final = 1 << 20
"""A claim is never nothing: it is what keeps the place."""

_MARGIN: Final = 1.05


def awake_bytes(memory_bytes: int, host_memory_bytes: int, device_kind: str) -> int:
    """What an instance claims of one of its devices to be awake: on the host's own, what it has beside it there too."""
    return memory_bytes + (host_memory_bytes if device_kind == "cpu" else 0)


def asleep_bytes(*, claimed: int, used: int | None, has_process: bool, least: int = 0) -> int:
    """What a sleeping instance still claims of a device that it had `claimed` bytes of.

    Its process keeps a context there and says how much (`used`, of all its devices). Where nobody says, all of it:
    unknown is not zero. Without a process it has nothing there. `least` stays in any case.
    """
    least = max(_LEAST_BYTES, least)
    if not has_process:
        return min(claimed, least)
    if used is None:
        return claimed
    return min(claimed, max(least, int(used * _MARGIN)))
