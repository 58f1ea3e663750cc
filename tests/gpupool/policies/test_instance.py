"""The table of states: what an agent sees always leads somewhere, and nothing but the end is a dead end."""

import pytest

from gpupool.models import InstanceState
from gpupool.policies.instance import (
    ALLOWED,
    COMING_OR_UP,
    IllegalTransition,
    State,
    check_transition,
    observed_target,
    steps_to,
)

S = State


def test_the_plain_words_are_the_databases() -> None:
    assert {state.value for state in State} == set(InstanceState.values)
    assert set(ALLOWED) == set(State)


def _reachable(start: State) -> set[State]:
    found, queue = {start}, [start]
    while queue:
        for following in ALLOWED[queue.pop()]:
            if following not in found:
                found.add(following)
                queue.append(following)
    return found


@pytest.mark.shows("P15")
@pytest.mark.parametrize("state", [state for state in State if state != State.STOPPED])
def test_every_state_has_a_way_back_to_serving_or_a_way_out(state: State) -> None:
    ways = _reachable(state)
    assert State.STOPPED in ways
    assert State.READY in ways or state == State.DRAINING


def test_stopped_is_the_end() -> None:
    assert ALLOWED[State.STOPPED] == frozenset()


@pytest.mark.parametrize(
    ("current", "seen", "steps"),
    [
        (S.STAGING, S.READY, (S.LOADING, S.WARMING, S.READY)),
        (S.READY, S.STAGING, (S.FAILED, S.STAGING)),
        (S.READY, S.LOADING, (S.FAILED, S.STAGING, S.LOADING)),
        (S.FAILED, S.READY, (S.WARMING, S.READY)),
        (S.UNKNOWN, S.READY, (S.READY,)),
        (S.READY, S.READY, ()),
    ],
)
def test_steps_between_two_samples_are_filled_in(current: State, seen: State, steps: tuple[State, ...]) -> None:
    assert steps_to(current, seen) == steps


@pytest.mark.parametrize("current", list(State))
@pytest.mark.parametrize("seen", list(State))
def test_filled_in_steps_are_steps_of_the_table(current: State, seen: State) -> None:
    try:
        steps = steps_to(current, seen)
    except IllegalTransition:
        return
    for before, after in zip((current, *steps), steps, strict=False):
        check_transition(before, after)


@pytest.mark.parametrize("seen", [state for state in State if state != State.STOPPED])
def test_a_stopped_instance_is_never_seen_as_anything_else(seen: State) -> None:
    with pytest.raises(IllegalTransition):
        steps_to(State.STOPPED, seen)


@pytest.mark.parametrize(
    ("seen", "has_process", "means"),
    [
        (S.READY, True, S.DRAINING),
        (S.LOADING, True, S.DRAINING),
        (S.FAILED, False, S.STOPPED),
        (S.FAILED, True, S.DRAINING),
        (S.STOPPED, False, S.STOPPED),
    ],
)
def test_an_instance_that_shall_stop_drains_until_its_process_is_gone(
    seen: State, has_process: bool, means: State
) -> None:
    assert observed_target(seen, wanted_running=False, has_process=has_process) == means
    assert observed_target(seen, wanted_running=True, has_process=has_process) == seen


def test_a_failed_or_unknown_instance_is_not_on_its_way() -> None:
    assert not COMING_OR_UP & {S.FAILED, S.UNKNOWN, S.DRAINING, S.STOPPED}
