"""Upper bounds of the histograms of latency, in seconds: of Prometheus's and of the rollups, so that both agree.

They begin with those of OpenTelemetry's GenAI semantic conventions, and have what people set objectives at besides:
an objective at a bound is counted exactly, one between two bounds only by interpolation. Rows of the rollups hold a
count for each bucket by its place: a bound that comes, goes or moves needs a migration that makes them anew.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

Bounds = tuple[float, ...]

TTFT: Final[Bounds] = (
    *(0.001, 0.005, 0.01, 0.02, 0.025, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.8),
    *(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0),
)
"""From a request's arrival to its first content."""

TPOT: Final[Bounds] = (
    *(0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 0.8, 1.0, 1.5, 2.5),
)
"""Between two output tokens, on average over a request."""

QUEUE: Final[Bounds] = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0),
)
"""From a request's arrival until it was handed to an endpoint."""

DURATION: Final[Bounds] = (
    *(0.01, 0.02, 0.04, 0.05, 0.08, 0.1, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.64, 0.8, 1.0, 1.28, 1.5, 2.0, 2.5, 3.0),
    *(5.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 300.0, 600.0),
)
"""From a request's arrival to its last byte."""


def time_per_output_token(seconds: float, first_token_seconds: float, output_tokens: int | None) -> float | None:
    """Between two tokens after the first, on average; None where there are not two, or nobody said."""
    if output_tokens is None or output_tokens < 2:
        return None
    return max(0.0, seconds - first_token_seconds) / (output_tokens - 1)


def bucket_of(bounds: Bounds, seconds: float) -> int:
    """The place of the bucket that counts `seconds`; the last one, of what is beyond all bounds, is len(bounds)."""
    return bisect_left(bounds, seconds)


def quantile(bounds: Bounds, counts: Sequence[int], share: float) -> float | None:
    """The time under which `share` of them stayed, interpolated as Prometheus's histogram_quantile does.

    None where nothing was counted; the last bound where it lies beyond it.
    """
    whole = sum(counts)
    if not whole:
        return None
    wanted, seen, low = share * whole, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and seen + count >= wanted:
            return low + (bound - low) * (wanted - seen) / count
        seen += count
        low = bound
    return bounds[-1]
