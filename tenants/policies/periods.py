"""Calendar periods in a tenant's zone, as moments: a day may have 23, 24 or 25 hours, or begin at one o'clock."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_HOUR_SECONDS: Final = 3_600
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS
_WEEK_SECONDS: Final = 7 * _DAY_SECONDS


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) in seconds since the epoch."""

    start: float
    end: float

    def holds(self, now: float) -> bool:
        return self.start <= now < self.end


def period_at(window: str, zone: str, now: float) -> Period:
    """The `day` or `month` of `zone` that `now` (seconds since the epoch) lies in.

    Raises ValueError for another window, ZoneInfoNotFoundError for an unknown zone.
    """
    local = datetime.fromtimestamp(now, ZoneInfo(zone))
    if window == "day":
        first = datetime(local.year, local.month, local.day)  # noqa: DTZ001  # a wall clock's, of whatever zone
        return Period(_moment(first, zone), _moment(first + timedelta(days=1), zone))
    if window == "month":
        years, month = divmod(local.year * 12 + local.month, 12)
        first = datetime(local.year, local.month, 1)  # noqa: DTZ001
        return Period(_moment(first, zone), _moment(datetime(years, month + 1, 1), zone))  # noqa: DTZ001
    raise ValueError(f"{window} is not a calendar period")


def _moment(wall: datetime, zone: str) -> float:
    """When a wall clock first shows `wall` or later: midnight itself may be skipped, or come twice."""
    at = wall.replace(tzinfo=ZoneInfo(zone), fold=0)
    seconds = at.astimezone(UTC).timestamp()
    if datetime.fromtimestamp(seconds, ZoneInfo(zone)).replace(tzinfo=None) == wall:
        return seconds
    # Skipped, so that `seconds` lies behind the gap, by no more than its length: look for its end.
    after = wall.replace(tzinfo=ZoneInfo(zone), fold=1).utcoffset()
    before = at.utcoffset()
    assert before is not None
    assert after is not None
    low, high = seconds - (after - before).total_seconds(), seconds
    while high - low > 1:  # the offset changes exactly once in between
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, ZoneInfo(zone)).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high


def month_of(zone: str, now: float) -> str:
    """The calendar month of `zone` at `now` (seconds since the epoch), such as 2026-11."""
    return f"{datetime.fromtimestamp(now, ZoneInfo(zone)):%Y-%m}"


def month_period(zone: str, month: str) -> Period:
    """The moments of a month such as 2026-11 in `zone`. Raises ValueError for what is no month of this century."""
    years, _, number = month.partition("-")
    if not (len(month) == 7 and years.isascii() and years.isdigit() and number.isascii() and number.isdigit()):
        raise ValueError("A month is written like 2026-11.")
    if not 2000 <= int(years) < 2100 or not 1 <= int(number) <= 12:
        raise ValueError("A month is one of this century, written like 2026-11.")
    # The middle of a month is in it wherever one is.
    return period_at("month", zone, datetime(int(years), int(number), 15, tzinfo=UTC).timestamp())


@lru_cache(maxsize=1024)  # asked for each budget anew, of few zones
def last_days(zone: str, today: float, days: int) -> tuple[float, ...]:
    """When each of the `days` days before the one that begins at `today` began, and `today`; oldest first."""
    starts = [today]
    for _ in range(days):
        starts.append(period_at("day", zone, starts[-1] - 1).start)
    return tuple(reversed(starts))


def hours_that_days_share(zone: str, now: float) -> set[int]:
    """Hours of the UTC day, 0 to 23, in the middle of which a day of `zone` begins; none where it is whole hours off.

    By the clocks of the two years before `now`, summer and winter.
    """
    starts = (period_at("day", zone, now - weeks * _WEEK_SECONDS).start for weeks in range(104))
    return {int(start % _DAY_SECONDS // _HOUR_SECONDS) for start in starts if start % _HOUR_SECONDS}
