"""Which sums make up a range of time: whole days where they fit, hours and minutes at its edges.

Sums are by UTC days, hours and minutes. A day of a zone that is nine hours off begins with fifteen hours, one of a
zone that is half an hour off with half an hour's minutes; a month of either is mostly days.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True, slots=True)
class Piece:
    """Sums of one unit that begin in [since, until), seconds since the epoch; all count into `bucket`."""

    unit: str
    since: int
    until: int
    bucket: int


def tile(starts: Sequence[float], until: float) -> list[Piece]:
    """Pieces without gap or overlap; bucket i reaches from starts[i] to the next start, the last one to `until`.

    A minute belongs to the bucket that it begins in. Raises ValueError when starts do not rise.
    """
    edges = [*starts, until]
    pieces: list[Piece] = []
    for bucket, (begin, end) in enumerate(pairwise(edges)):
        if end < begin:
            raise ValueError("buckets follow each other")
        pieces += _cut(_up(begin, 60), _up(end, 60), bucket, 0)
    return pieces


def _cut(since: int, until: int, bucket: int, depth: int) -> list[Piece]:
    if since >= until:
        return []
    unit, seconds = _UNITS[depth]
    first, last = _up(since, seconds), until // seconds * seconds
    if first >= last:
        return _cut(since, until, bucket, depth + 1)
    whole = [Piece(unit, first, last, bucket)]
    return [*_cut(since, first, bucket, depth + 1), *whole, *_cut(last, until, bucket, depth + 1)]


def _up(moment: float, seconds: int) -> int:
    """The first multiple of `seconds` that is not before `moment`."""
    return int(-(-moment // seconds) * seconds)
