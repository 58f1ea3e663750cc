"""Instances that tenants acquire, and those that wait asleep for them. Pure.

Reuse before waking, waking before starting: an instance that the tenant had is woken, else one that nobody has been
bound to yet, else one is started. When more sleep on a device than it should hold, those of low priority end first,
and of these the least recently used.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    wanted: bool = False  # it is to serve, or asked to wake
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """One that was asked to wake and gave back what it needs to; or one that is new and finds no place."""

    instance_id: UUID
    device_ids: frozenset[UUID]  # of one that is new, all that it could be on
    since: float
    new: bool = False


@dataclass(frozen=True, slots=True)
class PoolRules:
    """`rest_seconds`: how long one that was just used keeps its place before another may take it."""

    asleep_per_device: int = 16
    rest_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class LetSleep:
    instance_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimAgain:
    """Try; where it does not fit, `victim` shall sleep."""

    instance_id: UUID
    victim: UUID | None


@dataclass(frozen=True, slots=True)
class End:
    instance_id: UUID
    reason: str


PoolAction = LetSleep | ClaimAgain | End


def keep_pool(
    pooled: Sequence[Pooled],
    waiting: Iterable[Waiting],
    *,
    idle_seconds: Mapping[UUID, float],
    now: float,
    rules: PoolRules,
) -> list[PoolAction]:
    """What to do about the pool now. `idle_seconds` is by instance, the time without requests until it sleeps."""
    actions: list[PoolAction] = []
    resting: set[UUID] = set()
    for one in pooled:
        if idle([one], now=now, idle_seconds=idle_seconds.get(one.instance_id, 0.0)):
            resting.add(one.instance_id)
            actions.append(LetSleep(one.instance_id, "It had no request for a while."))
    for asked in sorted(waiting, key=lambda one: (one.since, one.instance_id)):
        beside = [one for one in pooled if one.device_ids & asked.device_ids and one.instance_id not in resting]
        victim = make_room(
            (one for one in beside if one.instance_id != asked.instance_id), now=now, rest_seconds=rules.rest_seconds
        )
        if victim is not None:
            resting.add(victim)
        if not asked.new:
            actions.append(ClaimAgain(asked.instance_id, victim))
        elif victim is not None:
            actions.append(LetSleep(victim, "It was idle, and another tenant's instance finds no place."))
    by_device: dict[UUID, list[Pooled]] = {}
    for one in pooled:
        for device in one.device_ids if one.state == State.ASLEEP and not one.wanted else ():
            by_device.setdefault(device, []).append(one)
    most = rules.asleep_per_device
    ended = {pk for asleep in by_device.values() for pk in evicted(asleep, most=most)}
    reason = f"More than {most} slept on its device, and of the least important it was used the longest ago."
    return actions + [End(one.instance_id, reason) for one in pooled if one.instance_id in ended]
