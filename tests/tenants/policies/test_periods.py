"""Budget windows in ten zones, over every change of their clocks in 2026 and 2027: they tile time."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenants.policies.periods import Period, month_of, month_period, period_at

ZONES: Final = (
    "UTC",
    "Asia/Tokyo",
    "Asia/Kolkata",
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",  # its clocks change at midnight
    "Africa/Cairo",  # so do its
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Chatham",  # 12:45 and 13:45
    "Asia/Beirut",
)
BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
END: Final = datetime(2028, 1, 1, tzinfo=UTC).timestamp()

windows = st.sampled_from(["day", "month"])
zones = st.sampled_from(ZONES)


@cache
def changes(zone: str) -> list[int]:
    """The moments of 2026 and 2027 at which the zone's offset changes, to the second."""
    found: list[int] = []
    offsets = ZoneInfo(zone)

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, offsets).utcoffset()

    for hour in range(int(BEGIN), int(END), 3600):
        if offset(hour) != offset(hour + 3600):
            low, high = hour, hour + 3600
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(middle) == offset(hour) else (low, middle)
            found.append(high)
    return found


@cache
def tiles(window: str, zone: str) -> list[Period]:
    """All periods of the two years, each found from the end of the one before."""
    periods = [period_at(window, zone, BEGIN)]
    while periods[-1].end < END:
        periods.append(period_at(window, zone, periods[-1].end))
    return periods


def test_most_of_the_zones_change_their_clocks() -> None:
    assert [len(changes(zone)) for zone in ZONES] == [0, 0, 0, 4, 4, 4, 4, 4, 4, 4]


@pytest.mark.shows("G29")
@pytest.mark.parametrize("window", ["day", "month"])
@pytest.mark.parametrize("zone", ZONES)
def test_periods_follow_each_other_without_gap_or_overlap(window: str, zone: str) -> None:
    periods = tiles(window, zone)
    assert len(periods) in ((730, 731) if window == "day" else (24, 25))
    for period, following in pairwise(periods):
        assert period.end == following.start
    lengths = {round((period.end - period.start) / 1800) / 2 for period in periods}  # hours
    if window == "day":
        wanted = {24.0} | ({23.5, 24.5} if zone == "Australia/Lord_Howe" else {23.0, 25.0} if changes(zone) else set())
        assert lengths == wanted


@pytest.mark.shows("G29")
@pytest.mark.parametrize("zone", [zone for zone in ZONES if changes(zone)])
def test_around_each_change_every_moment_is_in_one_period_that_begins_on_the_calendar(zone: str) -> None:
    for change in changes(zone):
        for moment in range(change - 90_000, change + 90_000, 977):
            _check("day", zone, moment)
        for moment in (change - 1, change, change + 1, change + 3599, change + 3600):
            for window in ("day", "month"):
                _check(window, zone, moment)


@pytest.mark.shows("G29")
@given(windows, zones, st.floats(BEGIN, END - 1, allow_nan=False))
@example("day", "America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC).timestamp())  # midnight is skipped
@example("day", "Africa/Cairo", datetime(2026, 10, 29, 21, tzinfo=UTC).timestamp())  # and comes twice
def test_every_moment_is_in_one_period(window: str, zone: str, now: float) -> None:
    _check(window, zone, now)


def _check(window: str, zone: str, now: float) -> None:
    period = period_at(window, zone, now)
    assert period.holds(now)
    assert not period.holds(period.end)
    periods = tiles(window, zone)
    assert periods[bisect_right([one.start for one in periods], now) - 1] == period
    first, here = datetime.fromtimestamp(period.start, ZoneInfo(zone)), datetime.fromtimestamp(now, ZoneInfo(zone))
    before = datetime.fromtimestamp(period.start - 1, ZoneInfo(zone))
    if window == "day":
        assert (first.date(), before.date()) == (here.date(), here.date() - timedelta(days=1))
    else:
        assert (first.year, first.month, first.day) == (here.year, here.month, 1)
        assert (before.year, before.month) != (here.year, here.month)
        assert month_period(zone, month_of(zone, now)) == period


def test_what_is_no_period_is_refused() -> None:
    with pytest.raises(ValueError):
        period_at("minute", "UTC", BEGIN)
    for month in ("2026-00", "2026-13", "1999-01", "2100-01", "2026-1", "x", "2026-01-01"):
        with pytest.raises(ValueError):
            month_period("UTC", month)
