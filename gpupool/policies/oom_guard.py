"""What is done about an instance that uses nearly all that its lease gives it, or more. Pure.

Measured is its use of a device against the lease, not against the card, and without what the engine said that it
takes at its start: an engine that fills its share with KV cache once is not about to run out of it. Looked at each
second: at 92 % three times in a row it is asked to give memory back, where it listens, or gets fewer requests; at
98 % and growing by more than 500 MB within three samples, the device's instance of the lowest priority goes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final
from uuid import UUID

SAMPLES: Final = 3
"""So many in a row count; one look a second."""


class GuardState(StrEnum):
    """The words of Instance.guard_state; empty: it is well within its lease."""

    WELL = ""
    WATCHED = "watched"  # above the line, not yet for three samples
    SIGNALLED = "signalled"  # asked to give memory back
    SHED = "shed"  # gets fewer requests
    OVER = "over"  # uses more than its lease: clamped in every sum, and told
    EVICTED = "evicted"  # goes, for this device's sake


@dataclass(frozen=True, slots=True)
class Rules:
    """Where the lines are."""

    signal_share: float = 0.92
    evict_share: float = 0.98
    growth_bytes: int = 500_000_000
    calm_samples: int = 30  # below the line so long, and its cap is lifted
    signal_every: int = 10  # samples between two signals to the same instance
    ending_samples: int = 30  # so long one that goes is waited for, before another goes in its place


@dataclass(frozen=True, slots=True)
class Sample:
    """One instance on one device, now; bytes. `used_bytes` None: the device does not say."""

    instance_id: UUID
    device_id: str
    lease_bytes: int
    used_bytes: int | None
    preallocated_bytes: int | None = None  # of them, what the engine declared and took at its start
    priority: int = 0
    listens: bool = False  # it runs under the launch shim, which handles SIGUSR1


@dataclass(frozen=True, slots=True)
class Watch:
    """What is remembered of one instance on one device."""

    above: int = 0  # samples in a row above the line
    calm: int = 0  # samples in a row below it
    history: tuple[int, ...] = ()  # the newest SAMPLES + 1 uses
    since_signal: int | None = None  # samples since it was signalled; None: it was not
    shed: bool = False
    going: int = 0  # samples for which it still counts as one that goes: its memory is waited for
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Signal:
    """Send SIGUSR1 to its processes that handle it."""

    instance_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Shed:
    """Fewer requests at once for it, until it is calm again."""

    instance_id: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Unshed:
    instance_id: UUID


@dataclass(frozen=True, slots=True)
class Evict:
    """End it: of those on its device it has the lowest priority. `for_whom` is the one that grows."""

    instance_id: UUID
    device_id: str
    for_whom: UUID
    reason: str


Step = Signal | Shed | Unshed | Evict


@dataclass(frozen=True, slots=True)
class Use:
    """How one instance stands on one device; `used_bytes` is never more than `lease_bytes`."""

    instance_id: UUID
    device_id: str
    used_bytes: int | None
    over_bytes: int  # what it uses beyond its lease
    share: float | None  # of the lease without what was declared; may be above 1
    state: GuardState


@dataclass(frozen=True, slots=True)
class Look:
    steps: tuple[Step, ...]
    uses: tuple[Use, ...]
    watches: dict[tuple[UUID, str], Watch]


def clamped(used_bytes: int, limit_bytes: int) -> tuple[int, int]:
    """(use, excess): use lies between 0 and the limit, and what is beyond is told apart. Neither ever wraps."""
    used, limit = max(0, used_bytes), max(0, limit_bytes)
    return min(used, limit), max(0, used - limit)


def measured_share(sample: Sample) -> float | None:
    """Use over lease, both without what the engine declared; None where it cannot be said.

    Who declared nearly its whole lease has next to nothing to grow in; a fiftieth of the lease is room at least, so
    that rounding is no growth. And who leaves part of his lease free is not near its end, however much he grew.
    """
    if sample.used_bytes is None or sample.lease_bytes <= 0:
        return None
    declared = max(0, sample.preallocated_bytes or 0)
    room = max(sample.lease_bytes - declared, sample.lease_bytes // 50, 1)
    return min(max(0, sample.used_bytes - declared) / room, max(0, sample.used_bytes) / sample.lease_bytes)


def look(samples: Sequence[Sample], watches: dict[tuple[UUID, str], Watch], rules: Rules) -> Look:
    """One second's look at all instances of a node; `watches` is what the last one returned."""
    kept: dict[tuple[UUID, str], Watch] = {}
    steps: list[Step] = []
    uses: list[Use] = []
    evicted: set[UUID] = set()
    present = {(sample.instance_id, sample.device_id) for sample in samples}
    for sample in samples:
        key = (sample.instance_id, sample.device_id)
        before = watches.get(key, Watch())
        share = measured_share(sample)
        if share is None or sample.used_bytes is None:
            kept[key] = replace(before, above=0, calm=0, history=(), going=max(0, before.going - 1))
            uses.append(Use(sample.instance_id, sample.device_id, None, 0, None, GuardState.WELL))
            continue
        watch = _seen(before, sample.used_bytes, share, rules)
        state, step, watch = _step(sample, watch, share, rules)
        if step is not None:
            steps.append(step)
        waited_for = any(
            w.going and device == sample.device_id and (one, device) in present for (one, device), w in watches.items()
        )
        victim = None if waited_for else _victim(sample, watch, share, samples, rules)
        if victim is not None:
            watch = replace(watch, history=())  # what it grew by has had its answer
            if victim.instance_id not in evicted:
                evicted.add(victim.instance_id)
                steps.append(victim)
        kept[key] = watch
        used, over = clamped(sample.used_bytes, sample.lease_bytes)
        uses.append(Use(sample.instance_id, sample.device_id, used, over, share, GuardState.OVER if over else state))
    kept = {
        key: replace(watch, going=rules.ending_samples, history=()) if key[0] in evicted else watch
        for key, watch in kept.items()
    }
    uses = [
        replace(use, state=GuardState.EVICTED) if kept[use.instance_id, use.device_id].going else use for use in uses
    ]
    return Look(tuple(steps), tuple(uses), kept)


def _seen(before: Watch, used: int, share: float, rules: Rules) -> Watch:
    above = share >= rules.signal_share
    return replace(
        before,
        above=before.above + 1 if above else 0,
        calm=0 if above else before.calm + 1,
        history=(*before.history, used)[-(SAMPLES + 1) :],
        since_signal=None if before.since_signal is None else before.since_signal + 1,
        going=max(0, before.going - 1),
        peak_bytes=max(before.peak_bytes, used),
    )


def _step(sample: Sample, watch: Watch, share: float, rules: Rules) -> tuple[GuardState, Step | None, Watch]:
    if watch.shed and watch.calm >= rules.calm_samples:
        return GuardState.WELL, Unshed(sample.instance_id), replace(watch, shed=False)
    resting = GuardState.SHED if watch.shed else GuardState.WELL
    if watch.above == 0:
        return resting, None, watch
    if watch.above < SAMPLES:
        return resting or GuardState.WATCHED, None, watch
    said = f"It uses {share:.1%} of what its lease leaves it, {SAMPLES} times in a row."
    if sample.listens and not watch.shed:
        due = watch.since_signal is None or watch.since_signal >= rules.signal_every
        if not due:
            return GuardState.SIGNALLED, None, watch
        if watch.since_signal is None or watch.above < SAMPLES + rules.signal_every:
            return GuardState.SIGNALLED, Signal(sample.instance_id, said), replace(watch, since_signal=0)
        said += " It was asked to give memory back, and that did not help."
    if watch.shed:
        return GuardState.SHED, None, watch
    return GuardState.SHED, Shed(sample.instance_id, said), replace(watch, shed=True)


def _victim(sample: Sample, watch: Watch, share: float, samples: Sequence[Sample], rules: Rules) -> Evict | None:
    """Who goes, where this instance is full and still grows."""
    if share < rules.evict_share or len(watch.history) <= SAMPLES:
        return None
    grown = watch.history[-1] - watch.history[0]
    if grown <= rules.growth_bytes:
        return None
    beside = [other for other in samples if other.device_id == sample.device_id]
    # Of equal ones the grower itself: who keeps within his lease does not go for who does not.
    lowest = min(beside, key=lambda one: (one.priority, one.instance_id != sample.instance_id, one.instance_id))
    reason = (
        f"An instance on {sample.device_id} uses {share:.1%} of what its lease leaves it and grew by "
        f"{grown / 1e6:.0f} MB in {SAMPLES} samples; of those on the device this has the lowest priority."
    )
    return Evict(lowest.instance_id, sample.device_id, sample.instance_id, reason)
