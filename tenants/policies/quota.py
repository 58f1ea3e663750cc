"""Which limits make sense: what can be counted over which time, for whom, and how much of it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

MOST: Final = 1 << 53
"""Largest amount: counters live where numbers are doubles, and stay exact up to here."""

MOST_ALERTS: Final = 10

_COUNTED: Final = frozenset({"minute", "bucket", "day", "month"})
WINDOWS: Final[Mapping[str, frozenset[str]]] = {
    "requests": _COUNTED,
    "tokens": _COUNTED,
    "input_tokens": _COUNTED,
    "output_tokens": _COUNTED,
    "money": frozenset({"day", "month"}),  # people budget by the calendar
    "concurrency": frozenset({"standing"}),
    "held_requests": frozenset({"standing"}),
    "gpus": frozenset({"standing"}),
    "gpu_memory": frozenset({"standing"}),
}
"""The windows of each metric."""

CALENDAR: Final = frozenset({"day", "month"})
POOLED: Final = frozenset({"gpus", "gpu_memory"})
"""Metrics that the pool counts, not the doors: it knows tenants and models, not keys."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose use counts: `tenant` False is everybody's. `model` is a name, empty for all."""

    tenant: bool
    subtree: bool
    key: bool
    model: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a limit: a field, and a sentence."""

    field: str
    message: str


def scope_fault(scope: Scope, metric: str, window: str) -> Fault | None:
    """Why such a limit cannot be: an unknown or ill-matched metric, window or scope; None when it can."""
    windows = WINDOWS.get(metric)
    if windows is None:
        return Fault("metric", f"What is limited is one of {', '.join(WINDOWS)}.")
    if window not in windows:
        return Fault("window", f"A limit of {metric} is by {', '.join(sorted(windows))}.")
    if scope.subtree and not scope.tenant:
        return Fault("subtree", "Only a tenant's limit can take in its departments.")
    if scope.key and not scope.tenant:
        return Fault("key", "A key's limit names the key's tenant too.")
    if scope.key and scope.subtree:
        return Fault("subtree", "A key has no departments.")
    if scope.key and metric in POOLED:
        return Fault("key", "GPUs are given to tenants, not to keys.")
    if len(scope.model) > 200 or not scope.model.isprintable() or scope.model != scope.model.strip():
        return Fault("model", "A model's name has at most 200 characters; leave it empty for all models.")
    return None


def amount_fault(amount: int, *, field: str = "amount") -> Fault | None:
    """Zero refuses everything, which suspension or a deny does better; a negative or absurd one is a slip."""
    if not 1 <= amount <= MOST:
        return Fault(field, f"An amount is a whole number from 1 to {MOST}.")
    return None


def refill_fault(window: str, refill_per_second: float | None) -> Fault | None:
    """A bucket, and nothing else, needs what comes back each second."""
    if window != "bucket":
        return (
            None
            if refill_per_second is None
            else Fault("refill_per_second", "Only a bucket is refilled: leave it out for other windows.")
        )
    if refill_per_second is None:
        return Fault("refill_per_second", "A bucket needs what comes back each second.")
    if not math.isfinite(refill_per_second) or not 0 < refill_per_second <= MOST:
        return Fault("refill_per_second", f"What comes back each second is above 0 and at most {MOST}.")
    return None


def alerts_fault(window: str, shares: Sequence[int]) -> Fault | None:
    """Shares (percent) of a budget at which people are told: rising, and of calendar windows only."""
    if shares and window not in CALENDAR:
        return Fault("alert_shares", "Only limits by day or month are told about in advance.")
    if len(shares) > MOST_ALERTS or any(not 1 <= share <= 100 for share in shares) or len(set(shares)) < len(shares):
        return Fault("alert_shares", f"Give at most {MOST_ALERTS} different percentages from 1 to 100.")
    return None
