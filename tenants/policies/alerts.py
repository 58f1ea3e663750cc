"""When people are told that something is nearly used up, or about to end."""

from collections.abc import Iterable, Sequence
from typing import Final

DEFAULT_SHARES: Final = (50, 80, 100)
KEY_DAYS: Final = (14, 3, 1)
ENDING_DAYS: Final = (3, 1)
_DAY_SECONDS: Final = 86_400.0


def share_to_tell(used: int, amount: int, shares: Iterable[int]) -> int | None:
    """The highest of the shares (percent) that is reached; None when none is.

    Those below it are passed over: whoever is told of 80 % needs no message about 50 % too.
    """
    reached = [share for share in (*shares,) or DEFAULT_SHARES if used * 100 >= share * amount]
    return max(reached, default=None)


def days_to_tell(ends_at: float, *, began_at: float, now: float, days: Sequence[int]) -> int | None:
    """Which of the warnings `days` before an end is due, None when none is; times in seconds since the epoch.

    Of several the last one. None that is longer than the whole time it was given for: who gets a key for a day does
    not need to hear at once that it ends soon.
    """
    left = ends_at - now
    if left <= 0:
        return None
    due = [day for day in days if left <= day * _DAY_SECONDS < ends_at - began_at]
    return min(due, default=None)
