"""What a calendar period will come to, from what was used on each day before.

Two ways, both told: by the line through what was used so far in the period, and by the days' own rhythm, as the
trailing mean of each weekday. Offices do not work at weekends, so that the line is wrong by much early in a month.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

TRAILING_DAYS: Final = 28
_ENOUGH_DAYS: Final = 14
_LEAST_SHARE: Final = 0.1
"""Of a period that must have passed before a line is drawn through it: three days of a month."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Amounts in the metric's units. `expected` is the better of the two ways; None: nothing can be said yet."""

    used: int
    linear: int | None
    weekdays: int | None
    reached_on: date | None = None  # the day on which an amount is reached; None: not in this period

    @property
    def expected(self) -> int | None:
        return self.linear if self.weekdays is None else self.weekdays


@dataclass(frozen=True, slots=True)
class Course:
    """A period as it goes: its days in the tenant's zone, and how much of today is over (0 to 1)."""

    days: Sequence[date]
    today: date
    today_passed: float

    @property
    def passed(self) -> float:
        """Days that are over, today's part included."""
        return sum(day < self.today for day in self.days) + self.today_passed

    def days_ahead(self) -> list[tuple[date, float]]:
        """Days to come, each with how much of it is still to come."""
        return [(self.today, 1 - self.today_passed)] + [(day, 1.0) for day in self.days if day > self.today]


def days_of(first: date, after: date) -> list[date]:
    """The days from `first` to the one before `after`."""
    return [first + timedelta(days=number) for number in range((after - first).days)]


def forecast(course: Course, *, used: int, daily: Mapping[date, int], amount: int | None = None) -> Forecast:
    """`used` in the period so far; `daily`: sums of whole days before today, also of earlier periods.

    Days that `daily` lacks since its first one count as zero. `amount` is what `reached_on` is about.
    """
    passed = course.passed
    slope = used / passed if passed >= _LEAST_SHARE * len(course.days) else None
    linear = None if slope is None else round(used + slope * (len(course.days) - passed))
    means = _weekday_means(course.today, daily)
    weekdays = None
    if means is not None:
        weekdays = round(used + sum(means[day.weekday()] * share for day, share in course.days_ahead()))
    reached_on = None
    if amount is not None and (means is not None or slope is not None):
        reached_on = _reached(course, used, amount, means, slope)
    return Forecast(used, linear, weekdays, reached_on)


def _reached(
    course: Course, used: float, amount: int, means: Sequence[float] | None, slope: float | None
) -> date | None:
    total = used
    for day, share in course.days_ahead():
        rate = means[day.weekday()] if means is not None else slope
        assert rate is not None
        total += rate * share
        if total >= amount:
            return day
    return None


def _weekday_means(today: date, daily: Mapping[date, int]) -> list[float] | None:
    """Of each weekday, Monday first, over the trailing days; None where too few days are known."""
    known = [day for day in daily if day < today]
    if not known:
        return None
    first = max(min(known), today - timedelta(days=TRAILING_DAYS))
    days = days_of(first, today)
    if len(days) < _ENOUGH_DAYS:
        return None
    sums, counts = [0] * 7, [0] * 7
    for day in days:
        sums[day.weekday()] += daily.get(day, 0)
        counts[day.weekday()] += 1
    return [total / count for total, count in zip(sums, counts, strict=True)]
