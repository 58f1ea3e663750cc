"""Instances that tenants acquire, and those that wait asleep for them. Pure.

Reuse before waking, waking before starting: an instance that the tenant had is woken, else one that nobody has been
bound to yet, else one is started. When more sleep on a device than it should hold, the least recently used end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.policies.instance import COMING_OR_UP, State

_NEAREST = (
    State.READY, State.WARMING, State.LOADING, State.STAGING, State.ASLEEP, State.PLACING, State.REQUESTED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pooled:
    """One instance of the pool; times in seconds since the epoch."""

    instance_id: UUID
    tenant_id: UUID | None
    state: State
    has_process: bool = False
    priority: int = 0
    used_at: float = 0.0  # when it last had a request, or else when it came to be
    running_requests: int | None = None
    device_ids: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class Reuse:
    """Take this one; `bind` says whether the tenant's name is still to be put on it."""

    instance_id: UUID
    bind: bool


@dataclass(frozen=True, slots=True)
class StartAnother:
    """None of the pool can be the tenant's."""


def choose(pooled: Iterable[Pooled], tenant_id: UUID) -> Reuse | StartAnother:
    """Which instance of a version the tenant gets: its own, the nearest to serving; else an unbound one that sleeps.

    Never one of another tenant, whatever its state.
    """
    usable = [one for one in pooled if one.state in COMING_OR_UP]
    own = [one for one in usable if one.tenant_id == tenant_id]
    if own:
        return Reuse(min(own, key=_distance).instance_id, bind=False)
    # One that is awake may have served others: what they asked is still in its cache.
    free = [one for one in usable if one.tenant_id is None and one.state == State.ASLEEP]
    return Reuse(min(free, key=_distance).instance_id, bind=True) if free else StartAnother()


def idle(pooled: Iterable[Pooled], *, now: float, idle_seconds: float) -> list[UUID]:
    """Those that serve, have no request and had none for `idle_seconds`; 0 or less: none is ever idle.

    Whoever does not say how many requests it has is not idle.
    """
    if idle_seconds <= 0:
        return []
    return [
        one.instance_id
        for one in pooled
        if one.state == State.READY and one.running_requests == 0 and now - one.used_at >= idle_seconds
    ]


def evicted(asleep: Sequence[Pooled], *, most: int) -> list[UUID]:
    """Of those that sleep on one device, the ones beyond `most`: low priority first, then the least recently used."""
    return [one.instance_id for one in sorted(asleep, key=_worth)[: max(0, len(asleep) - most)]]


def make_room(pooled: Iterable[Pooled], *, now: float, rest_seconds: float) -> UUID | None:
    """Which of a device's idle instances should sleep so that another can wake there; None when all are in use.

    One that was used within `rest_seconds` stays: two tenants that take turns must not push each other out each time.
    """
    idle_ones = [one for one in pooled if one.state == State.READY and one.running_requests == 0]
    ready = [one for one in idle_ones if now - one.used_at >= rest_seconds]
    return min(ready, key=_worth).instance_id if ready else None


def reuse_ratio(*, acquisitions: int, reuses: int) -> float | None:
    """Share of acquisitions that found an instance there; None before the first."""
    return reuses / acquisitions if acquisitions > 0 else None


def _distance(one: Pooled) -> tuple[int, bool, float, UUID]:
    order = _NEAREST.index(one.state)
    return order, not one.has_process, -one.used_at, one.instance_id


def _worth(one: Pooled) -> tuple[int, float, UUID]:
    return one.priority, one.used_at, one.instance_id
