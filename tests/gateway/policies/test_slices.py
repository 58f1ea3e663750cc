"""How much of a limit a process keeps for itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.slices import NEAR_RESERVATIONS, alone_share, is_near, kept, largest_after, wished

NUMBERS = st.integers(0, 10**15)


@pytest.mark.parametrize(("left", "largest", "near"), [(199, 10, True), (200, 10, False), (-5, 1, True)])
def test_near_is_less_than_twenty_of_the_largest_reservations(left: int, largest: int, near: bool) -> None:
    assert is_near(left, largest) is near


def test_near_a_limit_or_idle_nothing_is_kept() -> None:
    assert kept(50, asked=100, left=NEAR_RESERVATIONS * 10 - 1, largest=10, live=1) == 0
    assert kept(50, asked=0, left=1_000_000, largest=10, live=1) == 0


@given(free=NUMBERS, asked=NUMBERS, left=NUMBERS, largest=st.integers(1, 10**9), live=st.integers(1, 100))
def test_no_more_is_kept_than_a_second_takes_or_a_part_of_what_is_left(
    free: int, asked: int, left: int, largest: int, live: int
) -> None:
    keep = kept(free, asked=asked, left=left, largest=largest, live=live)
    assert 0 <= keep <= min(free, asked)
    assert keep <= (left + free) / 20 / live + 1


def test_what_is_wished_for_follows_use() -> None:
    assert wished(recent=100, asked=3) == 100
    assert wished(recent=100, asked=300) == 300


def test_the_largest_reservation_fades() -> None:
    largest, rotations = 1_000, 0
    while largest > 10:
        largest, rotations = largest_after(largest), rotations + 1
    assert 30 < rotations < 60
    assert largest_after(1) == 1


@pytest.mark.parametrize(("amount", "live", "share"), [(12, 3, 4), (2, 3, 1), (10, 0, 10)])
def test_alone_each_process_admits_its_part(amount: int, live: int, share: int) -> None:
    assert alone_share(amount, live) == share
