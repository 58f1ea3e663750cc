"""What counters say of the time between two readings."""

import pytest

from gateway.policies.counted import Growth, Reading, growth


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (Reading(10, 20, 5, 100.0), Reading(15, 40, 5, 100.4), Growth(False, 5, 20, 0)),
        (Reading(10, 20, None, None), Reading(15, 40, None, None), Growth(False, 5, 20, None)),
        (Reading(10, 20, None, None), Reading(4, 40, None, None), Growth(True, 4, 40, None)),
        (Reading(10, 20, None, 100.0), Reading(15, 40, None, 900.0), Growth(True, 15, 40, None)),
        (Reading(None, 20, None, None), Reading(15, 20, None, None), Growth(False, 15, 0, None)),
    ],
)
def test_growth(before: Reading, after: Reading, said: Growth) -> None:
    assert growth(before, after) == said
