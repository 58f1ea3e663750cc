"""How deliveries go on, by table and by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.alerts import KEY_DAYS, days_to_tell, share_to_tell
from tenants.policies.deliveries import (
    ALLOWED,
    GIVE_UP_SECONDS,
    LONGEST_RETRY_SECONDS,
    DeliveryState,
    may_become,
    next_attempt,
    retry_delay,
    signing_versions,
)

_JITTER = st.floats(min_value=0, max_value=1, exclude_max=True)


def test_what_has_ended_stays_so() -> None:
    assert set(ALLOWED) == set(DeliveryState)
    assert may_become(DeliveryState.PENDING, DeliveryState.FAILED)
    assert not may_become(DeliveryState.DELIVERED, DeliveryState.PENDING)


@given(attempts=st.integers(1, 1000), jitter=_JITTER)
def test_waits_grow_to_a_bound(attempts: int, jitter: float) -> None:
    delay = retry_delay(attempts, jitter=jitter)
    assert 5 <= delay <= LONGEST_RETRY_SECONDS
    assert retry_delay(attempts + 1, jitter=jitter) >= delay


@given(attempts=st.integers(1, 1000), jitter=_JITTER, age=st.floats(0, 2 * GIVE_UP_SECONDS))
def test_nothing_is_tried_after_a_day(attempts: int, jitter: float, age: float) -> None:
    at = next_attempt(attempts, created_at=1000.0, now=1000.0 + age, jitter=jitter)
    if at is None:
        assert age > GIVE_UP_SECONDS - LONGEST_RETRY_SECONDS
    else:
        assert 1000.0 + age < at <= 1000.0 + GIVE_UP_SECONDS


def test_the_secret_before_signs_for_a_day() -> None:
    assert signing_versions(1, rotated_at=None, now=0) == (1,)
    assert signing_versions(3, rotated_at=0, now=86_399) == (3, 2)
    assert signing_versions(3, rotated_at=0, now=86_400) == (3,)


@pytest.mark.parametrize(
    ("used", "shares", "told"),
    [
        (49, (), None), (50, (), 50), (79, (), 50), (80, (), 80), (100, (), 100), (250, (), 100), (0, (), None),
        (5, (10, 90), None), (10, (10, 90), 10), (95, (10, 90), 90),
    ],
)  # fmt: skip
def test_the_highest_share_that_is_reached_is_told(used: int, shares: tuple[int, ...], told: int | None) -> None:
    assert share_to_tell(used, 100, shares) == told


@pytest.mark.parametrize(
    ("left_days", "life_days", "told"),
    [(15, 60, None), (14, 60, 14), (3.1, 60, 14), (3, 60, 3), (0.5, 60, 1), (0, 60, None), (5, 10, None), (2, 10, 3),
     (0.5, 0.9, None), (0.5, 1.5, 1)],
)  # fmt: skip
def test_an_end_is_told_of_in_good_time(left_days: float, life_days: float, told: int | None) -> None:
    day = 86_400
    assert days_to_tell(life_days * day, began_at=0, now=(life_days - left_days) * day, days=KEY_DAYS) == told
