"""Health probes: how many bad ones take an engine out, and that one good one brings it back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.instance import State, steps_to
from gpupool.policies.probe import SLOW_SECONDS, Health, ProbeResult, after_probe, probed_state, slow_or

GOOD, SLOW, FAILED = ProbeResult.GOOD, ProbeResult.SLOW, ProbeResult.FAILED


def after(*results: ProbeResult) -> Health:
    health = Health()
    for result in results:
        health = after_probe(health, result)
    return health


@pytest.mark.parametrize(
    ("results", "ejected"),
    [
        ([SLOW] * 4, False),
        ([SLOW] * 5, True),
        ([FAILED] * 2, False),
        ([FAILED] * 3, True),
        ([SLOW, SLOW, FAILED, FAILED], False),
        ([FAILED, FAILED, SLOW, FAILED], False),
        ([FAILED, FAILED, SLOW, FAILED, FAILED], True),
        ([*[SLOW] * 4, GOOD, *[SLOW] * 4], False),
        ([*[SLOW] * 50, GOOD], False),
    ],
)
def test_bad_probes_in_a_row_eject(results: list[ProbeResult], ejected: bool) -> None:
    assert after(*results).ejected is ejected


@pytest.mark.shows("R63")
def test_more_than_three_seconds_are_too_slow() -> None:
    assert slow_or(GOOD, seconds=SLOW_SECONDS) is GOOD
    assert slow_or(GOOD, seconds=SLOW_SECONDS + 0.01) is SLOW
    assert slow_or(FAILED, seconds=SLOW_SECONDS + 0.01) is SLOW


def test_one_that_is_not_in_yet_does_not_get_in_by_being_slow() -> None:
    assert probed_state(State.WARMING, SLOW, after(SLOW)) is State.FAILED
    assert probed_state(State.FAILED, SLOW, after(SLOW)) is None
    assert probed_state(State.FAILED, GOOD, Health()) is State.READY


@given(st.lists(st.sampled_from(list(ProbeResult))))
def test_every_step_is_a_legal_one_and_a_good_probe_always_brings_it_back(results: list[ProbeResult]) -> None:
    state, health = State.WARMING, Health()
    for result in [*results, GOOD]:
        health = after_probe(health, result)
        following = probed_state(state, result, health)
        if following is not None:
            assert steps_to(state, following)
            state = following
    assert state is State.READY
