"""The breaker's table, its window, and what no sequence of outcomes may do to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.breaker import (
    ALLOWED,
    LONELY_SECONDS,
    LONGEST_EJECTION_SECONDS,
    OPEN_SECONDS,
    AttemptOutcome,
    Breaker,
    BreakerState,
    IllegalTransition,
    Opened,
    admits,
    after_attempt,
    begin_trial,
    trial_at,
)

O = AttemptOutcome  # noqa: E741  # as the table's own S
S = BreakerState


def after(*outcomes: AttemptOutcome, now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for outcome in outcomes:
        breaker = after_attempt(breaker, outcome, now=now, trial=False)
    return breaker


@pytest.mark.shows("R46")
@pytest.mark.parametrize(("failures", "state"), [(9, "closed"), (10, "open")])
def test_breaker_opens_at_half_of_the_window(failures: int, state: str) -> None:
    good = [O.OK] * (20 - failures)
    assert after(*good, *[O.FAILED] * failures).state == state
    assert after(*[O.FAILED, O.OK] * failures).state == state


def test_failures_leave_the_window() -> None:
    breaker = after(*[O.FAILED] * 9, *[O.OK] * 20)
    assert breaker.unblemished
    breaker = after(*[O.FAILED] * 9, *[O.OK] * 19, O.FAILED)
    assert breaker.state is S.CLOSED


@pytest.mark.parametrize("outcome", [O.BACK_PRESSURE, O.NEUTRAL])
def test_what_says_nothing_about_the_engine_does_not_count(outcome: AttemptOutcome) -> None:
    assert after(*[outcome] * 100) == Breaker()
    assert after(*[O.FAILED] * 9, *[outcome] * 100, O.FAILED).state is S.OPEN


def test_an_open_breaker_admits_one_trial_after_thirty_seconds() -> None:
    breaker = after(*[O.FAILED] * 10)
    assert not admits(breaker, now=OPEN_SECONDS - 0.1)
    assert admits(breaker, now=OPEN_SECONDS)
    breaker = begin_trial(breaker)
    assert not admits(breaker, now=1e9)
    assert not admits(breaker, now=1e9, lonely=True)
    with pytest.raises(IllegalTransition):
        begin_trial(breaker)


def test_a_good_trial_closes_it_and_forgets_the_window() -> None:
    breaker = after_attempt(begin_trial(after(*[O.FAILED] * 10)), O.OK, now=31.0, trial=True)
    assert breaker == Breaker()


def test_a_bad_trial_opens_it_for_as_long_again() -> None:
    breaker = after_attempt(begin_trial(after(*[O.FAILED] * 10)), O.FAILED, now=31.0, trial=True)
    assert (breaker.state, trial_at(breaker)) == (S.OPEN, 31.0 + OPEN_SECONDS)


@pytest.mark.parametrize("outcome", [O.BACK_PRESSURE, O.NEUTRAL])
def test_a_trial_that_says_nothing_is_followed_by_the_next_at_once(outcome: AttemptOutcome) -> None:
    breaker = after_attempt(begin_trial(after(*[O.FAILED] * 10)), outcome, now=31.0, trial=True)
    assert breaker.state is S.OPEN
    assert admits(breaker, now=31.0)


def test_it_says_what_opened_it_last_and_a_trial_is_no_half_of_the_window() -> None:
    refused, failed = after(O.REFUSED_CONNECTION), after(*[O.FAILED] * 10)
    assert (refused.why, failed.why) == (Opened.REFUSED, Opened.FAILED)
    for opened in (refused, failed):
        trial = after_attempt(begin_trial(opened), O.FAILED, now=31.0, trial=True)
        assert trial.why == begin_trial(trial).why == Opened.TRIAL
        silent = after_attempt(begin_trial(trial), O.NEUTRAL, now=62.0, trial=True)
        assert silent.why is Opened.TRIAL
        assert after_attempt(begin_trial(silent), O.REFUSED_CONNECTION, now=63.0, trial=True).why is Opened.REFUSED
        assert after_attempt(begin_trial(silent), O.OK, now=63.0, trial=True) == Breaker()


def test_what_was_sent_before_it_opened_changes_nothing() -> None:
    opened = after(*[O.FAILED] * 10)
    for breaker in (opened, begin_trial(opened)):
        for outcome in O:
            assert after_attempt(breaker, outcome, now=5.0, trial=False) is breaker


def test_a_refused_connection_ejects_at_once_for_longer_each_time() -> None:
    breaker, now, waits = after(O.REFUSED_CONNECTION), 0.0, []
    for _ in range(6):
        waits.append(trial_at(breaker) - now)
        now = trial_at(breaker)
        breaker = after_attempt(begin_trial(breaker), O.REFUSED_CONNECTION, now=now, trial=True)
    assert waits == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_the_only_endpoint_is_tried_every_second_while_it_refuses() -> None:
    breaker = Breaker(S.OPEN, opened_at=10.0, open_seconds=LONGEST_EJECTION_SECONDS, refusals=9)
    assert not admits(breaker, now=11.5)
    assert admits(breaker, now=10.0 + LONELY_SECONDS, lonely=True)
    failing = Breaker(S.OPEN, opened_at=10.0, open_seconds=OPEN_SECONDS)
    assert not admits(failing, now=11.5, lonely=True)


steps = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.sampled_from(["send", "end"]), st.sampled_from(list(O)), st.integers(0, 50)),
    max_size=200,
)


@given(steps)
def test_no_sequence_has_two_trials_in_flight_or_loses_an_endpoint(
    sequence: list[tuple[float, str, AttemptOutcome, int]],
) -> None:
    breaker, now = Breaker(), 0.0
    in_flight: list[bool] = []  # whether each is a trial
    for seconds, step, outcome, which in sequence:
        now += seconds
        before = breaker.state
        if step == "send":
            if not admits(breaker, now=now):
                continue
            trial = breaker.state is S.OPEN
            if trial:
                breaker = begin_trial(breaker)
            in_flight.append(trial)
        elif in_flight:
            trial = in_flight.pop(which % len(in_flight))
            breaker = after_attempt(breaker, outcome, now=now, trial=trial)
        assert breaker.state is before or breaker.state in ALLOWED[before]
        assert sum(in_flight) == (breaker.state is S.HALF_OPEN)
    # Whatever happened, one good trial brings it back.
    if breaker.state is S.HALF_OPEN:
        breaker = after_attempt(breaker, O.NEUTRAL, now=now, trial=True)
    if breaker.state is S.OPEN:
        assert trial_at(breaker) <= now + OPEN_SECONDS
        breaker = after_attempt(begin_trial(breaker), O.OK, now=trial_at(breaker), trial=True)
    assert breaker.state is S.CLOSED
