"""Two choices: the less loaded wins, every candidate has a chance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.pick import pick_less_loaded

fractions = st.floats(0, 1, exclude_max=True)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8), fractions, fractions)
def test_the_less_loaded_of_two_different_ones(loads: list[int], first: float, second: float) -> None:
    one = int(first * len(loads))
    chosen = pick_less_loaded(loads, first=first, second=second)
    others = [index for index in range(len(loads)) if index != one]
    assert chosen == one or (chosen in others and loads[chosen] < loads[one])


@given(st.integers(0, 50), st.integers(0, 50), fractions, fractions)
def test_of_two_the_less_loaded(a: int, b: int, first: float, second: float) -> None:
    chosen = pick_less_loaded([a, b], first=first, second=second)
    assert [a, b][chosen] == min(a, b)


@given(st.integers(1, 8))
def test_among_equals_each_can_be_chosen(count: int) -> None:
    chosen = {pick_less_loaded([1] * count, first=n / count, second=0.5) for n in range(count)}
    assert chosen == set(range(count))


def test_nothing_cannot_be_chosen_from() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        pick_less_loaded([], first=0.0, second=0.0)
