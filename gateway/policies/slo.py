"""Objectives in figures: what was attained, how much of the error budget is left, and how fast it burns.

An objective allows so many bad requests: its error budget is (1 - target) x requests over its window. The burn rate is
how fast that goes: at 1 the budget lasts exactly the window, at 14.4 a 30-day budget lasts 50 hours. An alert wants two
windows to burn at once, a long one so that a moment's trouble wakes nobody, and a short one so that it ends soon after
the trouble does. Source: Google, The Site Reliability Workbook, chapter 5 (multiwindow, multi-burn-rate alerts).

Where there was no traffic nothing is attained, and nothing missed: figures are None then, never 100 %.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from core.telemetry import buckets
from gateway.policies.slo_alerts import Severity
from tenants.policies.tiers import OBJECTIVES

MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400
MOST_WINDOW_DAYS: Final = 90
_NOISE: Final = 1e-9


class Kind(StrEnum):
    AVAILABILITY = "availability"  # the share of requests that do not fail for our reasons
    TTFT = "ttft"  # time to first token
    TPOT = "tpot"  # time per output token
    QUEUE_WAIT = "queue_wait"  # until it was handed to an endpoint


BOUNDS: Final[Mapping[Kind, tuple[float, ...]]] = {
    Kind.AVAILABILITY: buckets.TTFT,  # counts no threshold; shown beside
    Kind.TTFT: buckets.TTFT,
    Kind.TPOT: buckets.TPOT,
    Kind.QUEUE_WAIT: buckets.QUEUE,
}
"""Upper bounds of the histogram that a kind counts with, in seconds."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two windows, in seconds, that must both burn faster than `burn`."""

    name: str
    long_seconds: int
    short_seconds: int
    burn: float
    severity: Severity


PAIRS: Final = (
    Pair("1h-5m", HOUR, 5 * MINUTE, 14.4, Severity.PAGE),
    Pair("6h-30m", 6 * HOUR, 30 * MINUTE, 6.0, Severity.PAGE),
    Pair("3d-6h", 3 * DAY, 6 * HOUR, 1.0, Severity.TICKET),
)
WINDOWS: Final = tuple(sorted({window for pair in PAIRS for window in (pair.long_seconds, pair.short_seconds)}))
"""Every window that a burn rate is looked at in: 5 m, 30 m, 1 h, 6 h, 3 d."""


class BadThreshold(ValueError):
    """Requests are counted by the buckets of a histogram: between two bounds nobody knows how many were faster."""


def place_of(kind: Kind, seconds: float) -> int:
    """How many buckets hold the good ones: those up to the bound `seconds`. Raises BadThreshold naming neighbours."""
    bounds = BOUNDS[kind]
    place = bisect_left(bounds, seconds * (1 - 1e-9))
    if place < len(bounds) and abs(bounds[place] - seconds) <= 1e-9 * max(1.0, seconds):
        return place + 1
    near = [*bounds[max(0, place - 1) : place], *bounds[place : place + 1]]
    raise BadThreshold(
        f"{seconds:g} s is no bound of the histogram, so it cannot be counted exactly. "
        f"Take {' or '.join(f'{bound:g} s' for bound in near)}."
    )


def bound_of(kind: Kind, seconds: float) -> float:
    """The bound of the histogram that is meant, exactly: 0.30000000000000004 is 0.3. Raises BadThreshold."""
    return BOUNDS[kind][place_of(kind, seconds) - 1]


@dataclass(frozen=True, slots=True)
class Counted:
    """Requests of some time, and how many of them were good."""

    total: int = 0
    good: int = 0

    @property
    def bad(self) -> int:
        return self.total - self.good

    @property
    def attained(self) -> float | None:
        """The share that was good; None where there were none."""
        return self.good / self.total if self.total else None

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(self.total + other.total, self.good + other.good)


def burn_rate(counted: Counted, target: float) -> float | None:
    """How many times faster than allowed the budget goes; None without requests."""
    return (counted.bad / counted.total) / (1 - target) if counted.total else None


def is_burning(long: float | None, short: float | None, threshold: float) -> bool | None:
    """Whether both windows burn above the threshold; None where there is nothing to tell it by.

    Without requests in the short one there is no trouble now: whatever was, is over.
    """
    if long is None:
        return None
    return long > threshold and short is not None and short > threshold


def most_burn(target: float) -> float:
    """The burn rate when every request is bad: nothing burns faster."""
    return 1 / (1 - target)


def can_fire(pair: Pair, target: float) -> bool:
    """Whether the pair can alert at all: 14.4 cannot be reached at a target of 0.93, 6 cannot at 0.83."""
    return is_burning(most_burn(target), most_burn(target), pair.burn) is True


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget of one window, in requests.

    `left` is below 0 where more went wrong than is allowed, and `remaining` then too. `even_pace` is the share that
    would remain if failures had come at exactly the promised rate since the counting began: nothing after a whole
    window. Both are None where there were no requests.
    """

    allowed: float
    bad: int
    left: float
    remaining: float | None  # a share of `allowed`
    even_pace: float | None


def allowed_bad(total: int, target: float, share: float) -> float:
    """How many may go wrong in a whole window, if the rest of it brings requests as its first `share` did."""
    return (1 - target) * total / share if share > 0 else 0.0


def budget_of(counted: Counted, target: float, *, share: float = 1.0) -> Budget:
    """The budget, and what is left of it. `share`: of the window that there has been anything to count in, 0 to 1."""
    share = min(1.0, share)
    allowed = allowed_bad(counted.total, target, share)
    if not allowed:
        return Budget(0.0, counted.bad, 0.0, None, None)
    left = _left(allowed, counted.bad)
    return Budget(allowed, counted.bad, left, left / allowed, 1 - share)


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """When the budget will be used up at the present rate: `seconds` from now, None where it will not."""

    seconds: float | None
    used_up: bool = False


def exhaustion(budget: Budget, burn: float | None, *, window_seconds: float) -> Exhaustion:
    """At `burn` (of the last hours) what is left lasts so long, if as many requests come as in the window.

    Below a burn rate of 1 the window forgets old failures faster than new ones come: it lasts for ever.
    """
    if budget.remaining is None:
        return Exhaustion(None)
    if budget.remaining <= 0:
        return Exhaustion(0.0, used_up=True)
    if burn is None or burn <= 1:
        return Exhaustion(None)
    return Exhaustion(budget.remaining * window_seconds / burn)


def _left(allowed: float, bad: int) -> float:
    left = allowed - bad
    return left if abs(left) > _NOISE * allowed else 0.0  # 1 - 0.99 is a hair above 0.01


def burn_down(series: Sequence[Counted], target: float, *, share: float = 1.0) -> list[float | None]:
    """The share of the whole window's budget that was left after each part of the window; None before any requests.

    The last value is the budget's `remaining`: both are counted alike, over the same parts.
    """
    allowed = allowed_bad(sum(one.total for one in series), target, min(1.0, share))
    bad, found, begun = 0, list[float | None](), False
    for one in series:
        begun = begun or one.total > 0
        bad += one.bad
        found.append(_left(allowed, bad) / allowed if begun else None)
    return found


def rolling_burn(series: Sequence[Counted], width: int, target: float) -> list[float | None]:
    """The burn rate over the last `width` parts at each part; None without requests, or too early for it."""
    total = bad = 0
    found: list[float | None] = []
    for place, one in enumerate(series):
        total, bad = total + one.total, bad + one.bad
        if place >= width:
            total, bad = total - series[place - width].total, bad - series[place - width].bad
        found.append((bad / total) / (1 - target) if total and place + 1 >= width else None)
    return found


@dataclass(frozen=True, slots=True)
class Preset:
    """An objective that a tier has from the beginning."""

    tier: str
    kind: Kind
    target: float
    threshold_seconds: float | None


def presets() -> list[Preset]:
    """What every SLA tier promises: the P99 of the time to first token, and availability."""
    return [
        preset
        for tier, aim in OBJECTIVES.items()
        for preset in (
            Preset(tier, Kind.TTFT, 0.99, aim.ttft_p99_seconds),
            Preset(tier, Kind.AVAILABILITY, aim.availability, None),
        )
    ]
