"""A range of time is made of whole days, hours and minutes: each minute once, in its bucket."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.tiling import Piece, tile

_SECONDS = {"day": 86_400, "hour": 3600, "minute": 60}
edges = st.lists(st.integers(0, 400_000), min_size=2, max_size=6).map(sorted)


@given(edges)
def test_each_minute_is_in_one_piece_of_its_bucket(edges: list[int]) -> None:
    pieces = tile(edges[:-1], edges[-1])
    minutes = [(minute, piece.bucket) for piece in pieces for minute in range(piece.since, piece.until, 60)]
    wanted = [
        (minute, bucket)
        for bucket, (begin, end) in enumerate(pairwise(edges))
        for minute in range(-(-begin // 60) * 60, end, 60)
    ]
    assert minutes == wanted
    assert all(piece.since % _SECONDS[piece.unit] == piece.until % _SECONDS[piece.unit] == 0 for piece in pieces)
    assert len(pieces) <= 5 * (len(edges) - 1)


def test_a_day_of_a_zone_is_hours_and_a_month_is_mostly_days() -> None:
    shifted = 9 * 3600
    assert tile([shifted], shifted + 86_400) == [Piece("hour", shifted, shifted + 86_400, 0)]
    assert tile([shifted], shifted + 30 * 86_400) == [
        Piece("hour", shifted, 86_400, 0),
        Piece("day", 86_400, 30 * 86_400, 0),
        Piece("hour", 30 * 86_400, 30 * 86_400 + shifted, 0),
    ]


def test_buckets_that_run_backwards_are_refused() -> None:
    with pytest.raises(ValueError):
        tile([120, 60], 180)
