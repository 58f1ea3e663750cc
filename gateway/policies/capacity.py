"""What a request for more would mean for a model: what it has, what is used of it, what is promised already."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

_SECONDS: Final = {"minute": 60.0, "day": 86_400.0, "month": 30 * 86_400.0}
"""Of a window, for a rate. A month's is a mean one: this is an estimate."""


class Verdict(StrEnum):
    FITS = "fits"  # all that is promised could be used at once
    FITS_AS_USED = "fits_as_used"  # more is promised than there is, but what is used leaves room
    EXCEEDS = "exceeds"  # with what is used now there is no room
    NO_CAPACITY = "no_capacity"  # no instance is ready
    UNKNOWN = "unknown"  # an instance does not say how much it takes


@dataclass(frozen=True, slots=True)
class Load:
    """Of one model, lately. `slots`: requests at once that its ready instances take; None: one does not say."""

    model: str
    instances: int
    slots: int | None
    peak_concurrency: float  # the mean of the busiest minute of a day, or the busiest hour of a week
    peak_tokens_per_second: float  # the same
    mean_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Promise:
    """What one tenant may use of a model. None: no limit holds it back."""

    concurrency: int | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class Promised:
    """What all tenants together may use; those without a limit are only counted."""

    concurrency: int
    without_concurrency: int
    tokens_per_second: float
    without_tokens: int


@dataclass(frozen=True, slots=True)
class Impact:
    """A model before and after a request is approved."""

    load: Load
    before: Promised
    after: Promised
    verdict: Verdict


def rate_of(metric: str, window: str, amount: int, refill_per_second: float | None = None) -> float | None:
    """Tokens a second that a limit lets through over time; None for one that is not about tokens as a whole."""
    if metric != "tokens":
        return None
    if window == "bucket":
        return refill_per_second
    seconds = _SECONDS.get(window)
    return None if seconds is None else amount / seconds


def tightest(promises: Iterable[Promise]) -> Promise:
    """What several limits of one tenant leave together."""
    concurrency: int | None = None
    tokens: float | None = None
    for promise in promises:
        if promise.concurrency is not None:
            concurrency = promise.concurrency if concurrency is None else min(concurrency, promise.concurrency)
        if promise.tokens_per_second is not None:
            tokens = promise.tokens_per_second if tokens is None else min(tokens, promise.tokens_per_second)
    return Promise(concurrency, tokens)


def sum_promises(promises: Iterable[Promise]) -> Promised:
    """Of several tenants."""
    total = Promised(0, 0, 0.0, 0)
    for promise in promises:
        if promise.concurrency is None:
            total = replace(total, without_concurrency=total.without_concurrency + 1)
        else:
            total = replace(total, concurrency=total.concurrency + promise.concurrency)
        if promise.tokens_per_second is None:
            total = replace(total, without_tokens=total.without_tokens + 1)
        else:
            total = replace(total, tokens_per_second=total.tokens_per_second + promise.tokens_per_second)
    return total


def impact(load: Load, *, others: Iterable[Promise], now: Promise | None, then: Promise) -> Impact:
    """`now` is what the tenant that asks may use already, None: nothing; `then` what it may if it is approved."""
    others = list(others)
    before = sum_promises([*others, *([now] if now is not None else [])])
    after = sum_promises([*others, then])
    return Impact(load, before, after, _verdict(load, after, now, then))


def _verdict(load: Load, after: Promised, now: Promise | None, then: Promise) -> Verdict:
    if not load.instances:
        return Verdict.NO_CAPACITY
    if load.slots is None:
        return Verdict.UNKNOWN
    if not after.without_concurrency and after.concurrency <= load.slots:
        return Verdict.FITS
    more = _more(now, then, load)
    return Verdict.FITS_AS_USED if load.peak_concurrency + more <= load.slots else Verdict.EXCEEDS


def _more(now: Promise | None, then: Promise, load: Load) -> float:
    """Requests at once that may come on top of what there is at the peak; a guess where nothing bounds them."""
    if then.concurrency is not None:
        return max(0, then.concurrency - ((now.concurrency or 0) if now is not None else 0))
    if now is not None and then.tokens_per_second is not None and load.peak_tokens_per_second > 0:
        # As many more requests as there are more tokens, by what a request at once made of them at the peak.
        more = then.tokens_per_second - (now.tokens_per_second or 0.0)
        return max(0.0, more * load.peak_concurrency / load.peak_tokens_per_second)
    return 1.0
