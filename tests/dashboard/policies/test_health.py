"""When a part of the installation is fine."""

import pytest

from dashboard.policies.health import (
    PartState,
    batch_state,
    connections_state,
    ledger_state,
    partitions_state,
    worst,
)

FINE, WARNING, BROKEN, UNKNOWN = PartState.FINE, PartState.WARNING, PartState.BROKEN, PartState.UNKNOWN


@pytest.mark.parametrize(
    ("lag", "letters", "state"),
    [(0.0, 0, FINE), (9.9, 0, FINE), (10.0, 0, WARNING), (120.0, 0, BROKEN), (0.0, 1, WARNING), (None, 0, UNKNOWN)],
)
def test_a_ledger_that_is_behind_or_lost_rows_is_not_fine(lag: float | None, letters: int, state: PartState) -> None:
    assert ledger_state(lag, letters) is state


@pytest.mark.parametrize(("age", "state"), [(29.0, FINE), (120.0, WARNING), (900.0, BROKEN), (None, UNKNOWN)])
def test_batch_work_that_is_silent_is_told(age: float | None, state: PartState) -> None:
    assert batch_state(age) is state


@pytest.mark.parametrize(("months", "state"), [(2, FINE), (1, FINE), (0, WARNING), (-1, BROKEN)])
def test_partitions_are_made_ahead(months: int, state: PartState) -> None:
    assert partitions_state(months) is state


def test_few_connections_left_are_told_and_an_unknown_number_is_not_guessed() -> None:
    assert connections_state(90, 100) is WARNING
    assert connections_state(50, 100) is FINE
    assert connections_state(5, 0) is FINE


def test_the_worst_of_several() -> None:
    assert worst([]) is FINE
    assert worst([FINE, UNKNOWN]) is UNKNOWN
    assert worst([BROKEN, WARNING, UNKNOWN]) is BROKEN
