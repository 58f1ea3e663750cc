"""The life of an instance: one table of states, enforced here and nowhere else."""

from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """The same words as in the database; plain, so that decisions need no Django."""

    REQUESTED = "requested"
    PLACING = "placing"
    STAGING = "staging"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    ASLEEP = "asleep"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


S = State

ALLOWED: Final[Mapping[State, frozenset[State]]] = {
    S.REQUESTED: frozenset({S.PLACING, S.WARMING, S.STOPPED, S.FAILED}),  # warming: attached by address
    S.PLACING: frozenset({S.STAGING, S.REQUESTED, S.STOPPED, S.FAILED}),
    S.STAGING: frozenset({S.LOADING, S.ASLEEP, S.DRAINING, S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.LOADING: frozenset({S.WARMING, S.DRAINING, S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.WARMING: frozenset({S.READY, S.ASLEEP, S.DRAINING, S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.READY: frozenset({S.ASLEEP, S.DRAINING, S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.ASLEEP: frozenset({S.WARMING, S.STAGING, S.DRAINING, S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.DRAINING: frozenset({S.STOPPED, S.FAILED, S.UNKNOWN}),
    S.FAILED: frozenset({S.STAGING, S.WARMING, S.ASLEEP, S.STOPPED, S.UNKNOWN}),  # the same claim may be started again
    S.UNKNOWN: frozenset(
        {S.STAGING, S.LOADING, S.WARMING, S.READY, S.ASLEEP, S.DRAINING, S.STOPPED, S.FAILED}
    ),  # whatever its node says when it is heard again
    S.STOPPED: frozenset(),  # the end; a new start is a new instance with a claim of its own
}

HOLDS_PROCESS: Final = frozenset({S.STAGING, S.LOADING, S.WARMING, S.READY, S.ASLEEP, S.DRAINING, S.UNKNOWN})
"""States in which an engine process may exist."""

COMING_OR_UP: Final = frozenset({S.REQUESTED, S.PLACING, S.STAGING, S.LOADING, S.WARMING, S.READY, S.ASLEEP})
"""States that count as a replica that is there or on its way."""

UP: Final = frozenset({S.LOADING, S.WARMING, S.READY, S.DRAINING})
"""States in which its engine has its devices' memory, or takes it now."""

_COMING_UP: Final = frozenset({S.STAGING, S.LOADING, S.WARMING})
"""States that a sample can miss: an agent reports what it sees, not every step."""


class IllegalTransition(ValueError):
    """The table has no way from the one state to the other."""


def check_transition(current: State, target: State) -> None:
    """Raises IllegalTransition unless the table lists the step."""
    if target not in ALLOWED[current]:
        raise IllegalTransition(f"an instance does not go from {current} to {target}")


def steps_to(current: State, observed: State) -> tuple[State, ...]:
    """The legal steps from `current` to a state that an agent or a probe saw, the last being `observed`.

    Steps that fell between two samples are filled in (ready > failed > staging > loading for an engine
    that died and is loading again). Empty when nothing changed. Raises IllegalTransition without a way.
    """
    if current == observed:
        return ()
    # A failure is filled in only where nothing else explains what was seen.
    path = _shortest(current, observed, through=_COMING_UP) or _shortest(
        current, observed, through=_COMING_UP | {S.FAILED}
    )
    if path is None:
        raise IllegalTransition(f"an instance that is {current} cannot be seen {observed}")
    return path


def _shortest(start: State, end: State, *, through: frozenset[State]) -> tuple[State, ...] | None:
    queue: deque[tuple[State, ...]] = deque([(start,)])
    seen = {start}
    while queue:
        path = queue.popleft()
        for following in sorted(ALLOWED[path[-1]]):
            if following == end:
                return (*path[1:], following)
            if following in through and following not in seen:
                seen.add(following)
                queue.append((*path, following))
    return None


def held_back(observed: State, current: State, *, barrier: str) -> State:
    """What is observed, but not ready where something bars it: on its way, or unknown where it served already."""
    if observed != S.READY or not barrier:
        return observed
    return S.UNKNOWN if current in (S.READY, S.UNKNOWN) else S.WARMING


def observed_target(observed: State, *, wanted_running: bool, has_process: bool) -> State:
    """What an observation means, given what was wanted.

    An instance that shall stop and still runs is draining; one that failed and has no process has stopped.
    """
    if wanted_running:
        return observed
    if observed == S.FAILED and not has_process:
        return S.STOPPED
    if observed in HOLDS_PROCESS or observed == S.FAILED:
        return S.DRAINING
    return observed
