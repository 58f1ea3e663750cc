"""Which of several endpoints gets a request: the less loaded of two random ones."""

from collections.abc import Sequence


def pick_less_loaded(loads: Sequence[int], *, first: float, second: float) -> int:
    """Index of the less loaded of two candidates; `loads` are requests in flight, `first` and `second` in [0, 1).

    Two choices keep the worst load near the best without every process running after the same one.
    Source: Mitzenmacher 2001, The Power of Two Choices. Raises ValueError when there is no candidate.
    """
    count = len(loads)
    if count == 0:
        raise ValueError("no candidate")
    one = int(first * count)
    if count == 1:
        return one
    other = (one + 1 + int(second * (count - 1))) % count
    return one if loads[one] <= loads[other] else other
