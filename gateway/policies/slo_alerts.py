"""The life of an alert about an objective: when it opens, whom it is told to again, and when it is over.

Times are seconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    PAGE = "page"  # somebody gets up
    TICKET = "ticket"  # somebody looks within days


class AlertState(StrEnum):
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"  # somebody is at it: it is told no more
    RESOLVED = "resolved"


ALLOWED: Final[Mapping[AlertState, frozenset[AlertState]]] = {
    AlertState.FIRING: frozenset({AlertState.ACKNOWLEDGED, AlertState.RESOLVED}),
    AlertState.ACKNOWLEDGED: frozenset({AlertState.RESOLVED}),
    AlertState.RESOLVED: frozenset(),  # what burns again is another alert
}

CALM_SECONDS: Final = 300.0
"""So long a pair must burn below its threshold before its alert is over: one that flaps would tell all night."""

REPEAT_SECONDS: Final[Mapping[Severity, float]] = {Severity.PAGE: 3_600.0, Severity.TICKET: 86_400.0}
"""After so long an alert that nobody acknowledged is told again."""


class NotAllowed(ValueError):
    """The table has no such change of state."""


def moved(state: AlertState, to: AlertState) -> AlertState:
    """`to`, if the table allows it. Raises NotAllowed."""
    if to not in ALLOWED[state]:
        raise NotAllowed(f"An alert that is {state.value} cannot become {to.value}.")
    return to


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert as it stands; `calm_since` and `told_at` are None where that has not happened.

    A silence over an alert that fires forgets `told_at`, so that it is told as the silence ends; `told`, whether
    anybody ever was, stays.
    """

    severity: Severity
    state: AlertState = AlertState.FIRING
    calm_since: float | None = None
    told_at: float | None = None
    told: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of an alert at one look, and whether it is told now. `over`: it ended at this look."""

    alert: Alert | None
    tell: bool = False
    over: bool = False


def step(alert: Alert | None, *, burns: bool | None, severity: Severity, silenced: bool, now: float) -> Step:
    """One look at one pair of windows.

    `alert`: the open one, None where there is none. `burns`: both windows burn above the pair's threshold; None where
    nothing is known of them, and then nothing begins and nothing ends.
    """
    if alert is None:
        if not burns:
            return Step(None)
        return Step(Alert(severity, told_at=None if silenced else now, told=not silenced), tell=not silenced)
    if burns is None:
        return Step(alert)
    if not burns:
        since = now if alert.calm_since is None else alert.calm_since
        if now - since < CALM_SECONDS:
            return Step(replace(alert, calm_since=since))
        ended = replace(alert, state=moved(alert.state, AlertState.RESOLVED), calm_since=since)
        # Who was told that it burns is told that it does not, unless they want no word of it.
        return Step(ended, tell=alert.told and not silenced, over=True)
    burning = replace(alert, calm_since=None)
    if alert.state is not AlertState.FIRING:
        return Step(burning)
    if silenced:
        return Step(replace(burning, told_at=None))
    if alert.told_at is None or now - alert.told_at >= REPEAT_SECONDS[alert.severity]:
        return Step(replace(burning, told_at=now, told=True), tell=True)
    return Step(burning)
