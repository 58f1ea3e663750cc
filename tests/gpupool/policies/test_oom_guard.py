"""Use beyond a lease: three samples, signal or shed, then the lowest priority goes; and no number wraps."""

from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.oom_guard import (
    SAMPLES,
    Evict,
    GuardState,
    Look,
    Rules,
    Sample,
    Shed,
    Signal,
    Unshed,
    Watch,
    clamped,
    look,
    measured_share,
)

ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)
LEASE: Final = 10_000_000_000
RULES: Final = Rules()


def a_sample(share: float, instance_id: UUID = ONE, **more: Any) -> Sample:
    return Sample(instance_id, more.pop("device_id", "gpu-0"), LEASE, round(LEASE * share), **more)


class Guard:
    """Looks second by second."""

    def __init__(self) -> None:
        self.watches: dict[tuple[UUID, str], Watch] = {}

    def look(self, *samples: Sample) -> Look:
        seen = look(samples, self.watches, RULES)
        self.watches = seen.watches
        return seen

    def steps(self, *samples: Sample) -> list[type]:
        return [type(step) for step in self.look(*samples).steps]


@pytest.mark.shows("R152")
def test_three_samples_at_92_percent_signal_who_listens_and_shed_who_does_not() -> None:
    for listens, step in ((True, Signal), (False, Shed)):
        guard = Guard()
        assert guard.steps(a_sample(0.92, listens=listens)) == []
        assert guard.steps(a_sample(0.95, listens=listens)) == []
        assert guard.steps(a_sample(0.92, listens=listens)) == [step]


def test_a_sample_below_the_line_begins_anew() -> None:
    guard = Guard()
    for share in (0.95, 0.95, 0.919, 0.95, 0.95):
        assert guard.steps(a_sample(share)) == []
    assert guard.look(a_sample(0.5)).uses[0].state is GuardState.WELL


def test_who_was_signalled_in_vain_gets_fewer_requests_until_it_is_calm() -> None:
    guard = Guard()
    seen = [guard.steps(a_sample(0.95, listens=True)) for _ in range(20)]
    told = [step for steps in seen for step in steps]
    assert told == [Signal, Shed]
    assert seen[2] == [Signal]
    calm = [guard.steps(a_sample(0.5, listens=True)) for _ in range(RULES.calm_samples)]
    assert calm[-1] == [Unshed]
    assert calm[:-1] == [[]] * (RULES.calm_samples - 1)


@pytest.mark.shows("R102")
def test_98_percent_and_growth_over_500_mb_in_three_samples_ends_the_lowest_priority() -> None:
    for shares, evicts in (
        ((0.92, 0.95, 0.97, 0.985), True),  # 650 MB
        ((0.95, 0.96, 0.97, 0.985), False),  # 350 MB
        ((0.90, 0.93, 0.95, 0.97), False),  # below 98 %
    ):
        guard = Guard()
        for share in shares:
            seen = guard.look(a_sample(share, priority=1), a_sample(0.4, TWO, priority=-1), a_sample(0.2, THREE))
        victims = [step for step in seen.steps if isinstance(step, Evict)]
        assert [victim.instance_id for victim in victims] == ([TWO] if evicts else [])
        if evicts:
            assert victims[0].for_whom == ONE
            assert "lowest priority" in victims[0].reason
            assert {use.instance_id: use.state for use in seen.uses}[TWO] is GuardState.EVICTED


def test_one_overload_ends_one_instance_and_the_next_goes_only_if_it_grows_on() -> None:
    guard, ended = Guard(), []
    for share in (0.92, 0.95, 0.97, 0.99, 0.99, 0.99, 0.99):  # 700 MB once
        beside = [a_sample(0.1, TWO, priority=-2), a_sample(0.1, THREE, priority=-1)]  # they take their time to end
        ended += [s.instance_id for s in guard.look(a_sample(share), *beside).steps if isinstance(s, Evict)]
    assert ended == [TWO]
    for share in (1.02, 1.06, 1.1, 1.14):  # and 500 MB more, with the first one gone
        seen = guard.look(a_sample(share), a_sample(0.1, THREE, priority=-1))
        ended += [s.instance_id for s in seen.steps if isinstance(s, Evict)]
    assert ended == [TWO, THREE]


def test_who_is_ending_is_not_ended_again_however_it_is_seen() -> None:
    guard, ended = Guard(), []
    for second in range(12):  # 300 MB each second
        going = Sample(TWO, "gpu-0", LEASE, None if second > 4 else 1, priority=-2)
        seen = guard.look(a_sample(0.92 + 0.03 * second), going, a_sample(0.1, THREE))
        ended += [s.instance_id for s in seen.steps if isinstance(s, Evict)]
    assert ended == [TWO]  # its memory has not come back yet: nobody else goes for that


def test_of_equal_priority_the_one_that_grows_goes_and_nobody_on_another_device() -> None:
    guard = Guard()
    for share in (0.92, 0.95, 0.97, 0.99):
        seen = guard.look(
            a_sample(0.1, UUID(int=0)), a_sample(share), a_sample(0.1, TWO, device_id="gpu-1", priority=-1)
        )
    assert [step.instance_id for step in seen.steps if isinstance(step, Evict)] == [ONE]


@pytest.mark.shows("R102", "R132")
def test_measured_is_the_use_of_the_lease_without_what_the_engine_took_at_its_start() -> None:
    full_by_design = a_sample(0.95, preallocated_bytes=round(LEASE * 0.95))
    assert measured_share(full_by_design) == 0
    guard = Guard()
    for _ in range(5):
        assert guard.steps(full_by_design) == []
    grown = a_sample(0.998, preallocated_bytes=round(LEASE * 0.95))
    assert measured_share(grown) == pytest.approx(0.96)
    nearly_all = a_sample(0.9999, preallocated_bytes=round(LEASE * 0.999))
    assert (measured_share(nearly_all) or 1.0) < 0.1
    much_free = a_sample(0.5, preallocated_bytes=round(LEASE * 0.1))
    assert measured_share(much_free) == pytest.approx(0.4 / 0.9)
    over_at_start = a_sample(1.02, preallocated_bytes=round(LEASE * 1.02))
    assert measured_share(over_at_start) == 0
    assert measured_share(Sample(ONE, "gpu-0", LEASE, None)) is None
    assert measured_share(Sample(ONE, "gpu-0", 0, 5)) is None


@pytest.mark.shows("P16")
def test_use_above_the_lease_is_clamped_and_flagged() -> None:
    seen = Guard().look(a_sample(1.3))
    use = seen.uses[0]
    assert (use.used_bytes, use.over_bytes, use.state) == (LEASE, round(LEASE * 0.3), GuardState.OVER)
    assert seen.watches[ONE, "gpu-0"].peak_bytes == round(LEASE * 1.3)


@pytest.mark.shows("P16")
@given(used=st.integers(-(2**64), 2**65), limit=st.integers(-(2**64), 2**65))
def test_no_number_wraps(used: int, limit: int) -> None:
    within, over = clamped(used, limit)
    assert 0 <= within <= max(0, limit)
    assert over >= 0
    assert within + over == max(0, used)


def test_unknown_use_is_no_use_and_forgets_what_went_before() -> None:
    guard = Guard()
    guard.steps(a_sample(0.95))
    guard.steps(a_sample(0.95))
    seen = guard.look(Sample(ONE, "gpu-0", LEASE, None))
    assert seen.uses[0].used_bytes is None
    assert seen.steps == ()
    assert guard.steps(a_sample(0.95)) == []


@given(shares=st.lists(st.floats(0, 1.5), min_size=SAMPLES, max_size=40), listens=st.booleans())
def test_nothing_is_done_before_three_samples_and_nothing_about_who_keeps_within(
    shares: list[float], listens: bool
) -> None:
    guard, above = Guard(), 0
    for share in shares:
        seen = guard.look(a_sample(share, listens=listens))
        above = above + 1 if share >= RULES.signal_share else 0
        if above < SAMPLES:
            assert not any(isinstance(step, Signal | Shed) for step in seen.steps)
        if share < RULES.evict_share:
            assert not any(isinstance(step, Evict) for step in seen.steps)
