"""When an endpoint is left alone, and when it is tried again. Pure: time is an argument.

Two things open a breaker: half of the last twenty requests failed, or a connection was refused, which
says at once that nobody is there. Either way it is closed again by one trial that succeeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto
from typing import Final

WINDOW: Final = 20
FAILURES_TO_OPEN: Final = 10
"""Half of the window. What has not been seen yet counts as good, so that a handful of requests opens nothing."""

OPEN_SECONDS: Final = 30.0
FIRST_EJECTION_SECONDS: Final = 2.0  # after a refused connection; twice as long after each further one
LONGEST_EJECTION_SECONDS: Final = 30.0
LONELY_SECONDS: Final = 1.0
"""Between two connections to a refusing endpoint when no other can be asked: it shall be back soon, and being
refused costs nobody anything."""

_MASK: Final = (1 << WINDOW) - 1


class AttemptOutcome(Enum):
    """What one attempt says about the endpoint it was made at."""

    OK = auto()
    FAILED = auto()  # the engine was at fault
    REFUSED_CONNECTION = auto()  # nobody is there
    BACK_PRESSURE = auto()  # it is there and has enough to do (429, 503): neither success nor failure
    NEUTRAL = auto()  # nothing: the client left or was at fault


class BreakerState(StrEnum):
    CLOSED = "closed"  # routed
    OPEN = "open"  # not routed, until its time is over
    HALF_OPEN = "half_open"  # one trial is in flight, nothing else is routed


class Opened(StrEnum):
    """What opened a breaker last."""

    REFUSED = "refused"  # a connection was
    FAILED = "failed"  # half of the window
    TRIAL = "trial"  # a trial, which failed


S = BreakerState

ALLOWED: Final[Mapping[BreakerState, frozenset[BreakerState]]] = {
    S.CLOSED: frozenset({S.OPEN}),
    S.OPEN: frozenset({S.HALF_OPEN}),
    S.HALF_OPEN: frozenset({S.CLOSED, S.OPEN}),
}


class IllegalTransition(ValueError):
    """The table has no way from the one state to the other."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is remembered of one endpoint; times in seconds on the monotonic clock."""

    state: BreakerState = S.CLOSED
    window: int = 0
    """The last outcomes while closed, the newest in the lowest bit; a one is a failure."""
    opened_at: float = 0.0
    open_seconds: float = 0.0
    refusals: int = 0  # refused connections in a row
    trial_failed: bool = False  # by which it opened again

    @property
    def unblemished(self) -> bool:
        """As if nothing had ever been seen of it: it need not be remembered."""
        return self.state is S.CLOSED and not self.window

    @property
    def why(self) -> Opened:
        """Of one that is not closed."""
        if self.refusals:
            return Opened.REFUSED
        return Opened.TRIAL if self.trial_failed else Opened.FAILED


def trial_at(breaker: Breaker, *, lonely: bool = False) -> float:
    """When an open breaker admits its trial. `lonely`: no other endpoint can be asked."""
    if lonely and breaker.refusals:
        return breaker.opened_at + min(breaker.open_seconds, LONELY_SECONDS)
    return breaker.opened_at + breaker.open_seconds


def admits(breaker: Breaker, *, now: float, lonely: bool = False) -> bool:
    """Whether a request may be sent there: freely while closed, as the one trial when an open one's time is over."""
    match breaker.state:
        case S.CLOSED:
            return True
        case S.OPEN:
            return now >= trial_at(breaker, lonely=lonely)
        case S.HALF_OPEN:
            return False


def begin_trial(breaker: Breaker) -> Breaker:
    """The trial is sent. Raises IllegalTransition unless the breaker is open."""
    return _step(breaker, S.HALF_OPEN)


def after_attempt(breaker: Breaker, outcome: AttemptOutcome, *, now: float, trial: bool) -> Breaker:
    """The breaker after an attempt has ended; `trial`: it was the one that `begin_trial` let through.

    What ends while the breaker is not closed, and is not the trial, was sent before it opened: it says nothing new.
    """
    if trial:
        return _after_trial(breaker, outcome, now=now)
    if breaker.state is not S.CLOSED:
        return breaker
    match outcome:
        case AttemptOutcome.OK:
            return replace(breaker, window=breaker.window << 1 & _MASK) if breaker.window else breaker
        case AttemptOutcome.FAILED:
            window = (breaker.window << 1 | 1) & _MASK
            if window.bit_count() >= FAILURES_TO_OPEN:
                return _open(breaker, now=now, seconds=OPEN_SECONDS)
            return replace(breaker, window=window)
        case AttemptOutcome.REFUSED_CONNECTION:
            return _refused(breaker, now=now)
        case AttemptOutcome.BACK_PRESSURE | AttemptOutcome.NEUTRAL:
            return breaker


def _after_trial(breaker: Breaker, outcome: AttemptOutcome, *, now: float) -> Breaker:
    if breaker.state is not S.HALF_OPEN:
        return breaker  # it was judged before it ended (its first content had come), or is forgotten
    match outcome:
        case AttemptOutcome.OK:
            _check(breaker.state, S.CLOSED)
            return Breaker()
        case AttemptOutcome.FAILED:
            return replace(_open(breaker, now=now, seconds=OPEN_SECONDS), trial_failed=True)
        case AttemptOutcome.REFUSED_CONNECTION:
            return _refused(breaker, now=now)
        case AttemptOutcome.BACK_PRESSURE | AttemptOutcome.NEUTRAL:
            # The trial has said nothing: the next request is the next trial.
            return replace(_step(breaker, S.OPEN), opened_at=now, open_seconds=0.0)


def _refused(breaker: Breaker, *, now: float) -> Breaker:
    seconds = min(LONGEST_EJECTION_SECONDS, FIRST_EJECTION_SECONDS * 2.0 ** min(breaker.refusals, 10))
    return _open(breaker, now=now, seconds=seconds, refusals=breaker.refusals + 1)


def _open(breaker: Breaker, *, now: float, seconds: float, refusals: int = 0) -> Breaker:
    _check(breaker.state, S.OPEN)
    return Breaker(S.OPEN, opened_at=now, open_seconds=seconds, refusals=refusals)


def _step(breaker: Breaker, state: BreakerState) -> Breaker:
    _check(breaker.state, state)
    return replace(breaker, state=state)


def _check(current: BreakerState, target: BreakerState) -> None:
    if target not in ALLOWED[current]:
        raise IllegalTransition(f"a breaker does not go from {current} to {target}")
