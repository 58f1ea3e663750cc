"""Tokens only grow: over an exchange of stores, a restore from a backup, and a leader who is late."""

import pytest

from gpupool.policies.fencing_base import KnownBase, base_above, is_still_good

KNOWN = KnownBase("store-1", 100, 50)


@pytest.mark.parametrize(
    ("known", "store_id", "revision", "good"),
    [
        (KNOWN, "store-1", 50, True),
        (KNOWN, "store-1", 51, True),
        (KNOWN, "store-1", 49, False),  # restored from a backup
        (KNOWN, "store-2", 90, False),  # another store, or the same one wiped
        (None, "store-1", 90, False),
    ],
)
@pytest.mark.shows("P11")
def test_a_base_is_good_for_the_store_it_was_made_for_as_long_as_that_does_not_go_back(
    known: KnownBase | None, store_id: str, revision: int, good: bool
) -> None:
    assert is_still_good(known, store_id=store_id, revision=revision) is good


@pytest.mark.parametrize("highest", [0, 1, 10**15])
def test_the_first_token_over_a_new_base_is_above_every_earlier_one(highest: int) -> None:
    assert base_above(highest) + 1 > highest
