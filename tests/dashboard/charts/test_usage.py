"""Buckets and series of the usage chart."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from dashboard.charts.usage import MAX_SERIES, RANGES, bucket_starts, sparkline, token_figure, token_series
from tenants.reads.usage import UsagePoint

NOW = datetime(2026, 11, 29, 10, 17, 42, tzinfo=UTC)


@pytest.mark.parametrize("name", list(RANGES))
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "Asia/Kathmandu", "Europe/Berlin"])
def test_buckets_are_in_order_and_the_last_one_holds_now(name: str, zone: str) -> None:
    starts = bucket_starts(RANGES[name], now=NOW, zone=ZoneInfo(zone))
    assert len(starts) == RANGES[name].buckets
    assert starts == sorted(starts)
    assert starts[-1] <= NOW
    step = RANGES[name].step or timedelta(days=1)
    assert NOW - starts[-1] < step


def test_days_begin_at_local_midnight_across_summer_time() -> None:
    zone = ZoneInfo("Europe/Berlin")
    starts = bucket_starts(RANGES["30d"], now=datetime(2026, 11, 5, 12, tzinfo=UTC), zone=zone)
    assert {(start.hour, start.minute) for start in starts} == {(0, 0)}
    lengths = {(later.timestamp() - sooner.timestamp()) / 3600 for sooner, later in pairwise(starts)}
    assert lengths == {24, 25}  # the clocks went back on 25 October


def test_three_hour_buckets_begin_on_round_local_times() -> None:
    starts = bucket_starts(RANGES["7d"], now=NOW, zone=ZoneInfo("Asia/Kathmandu"))
    assert {start.minute for start in starts} == {0}
    assert {start.hour % 3 for start in starts} == {0}


def test_models_beyond_the_colours_are_summed() -> None:
    points = [UsagePoint(0, f"model-{n}", 1, 100 - n, 0) for n in range(MAX_SERIES + 3)]
    series = token_series(points, buckets=2, other="Other")
    assert [one.slot for one in series] == list(range(1, MAX_SERIES + 2))
    assert series[-1].name == "Other"
    assert sum(sum(one.tokens) for one in series) == sum(point.input_tokens for point in points)


def test_figure_writes_local_times_without_a_zone() -> None:
    starts = bucket_starts(RANGES["1h"], now=NOW, zone=ZoneInfo("Asia/Shanghai"))
    figure = token_figure(token_series([UsagePoint(59, "m", 1, 3, 4)], buckets=60, other="Other"), starts)
    assert figure["data"][0]["x"][-1] == "2026-11-29T18:17:00"
    assert figure["data"][0]["y"][-1] == 7


def test_midnight_that_comes_twice_is_the_first_one() -> None:
    zone = ZoneInfo("America/Havana")  # at 01:00 on 1 November the clocks went back to midnight
    starts = bucket_starts(RANGES["30d"], now=datetime(2026, 11, 1, 5, 30, tzinfo=UTC), zone=zone)
    assert starts[-1].astimezone(UTC) == datetime(2026, 11, 1, 4, tzinfo=UTC)


def test_names_are_no_markup_in_the_figure() -> None:
    starts = bucket_starts(RANGES["1h"], now=NOW, zone=ZoneInfo("UTC"))
    series = token_series([UsagePoint(59, '<a href="https://evil.example">m</a>', 1, 3, 4)], buckets=60, other="Other")
    assert token_figure(series, starts)["data"][0]["name"].startswith("&lt;a href=")


def test_a_long_name_does_not_cover_the_chart() -> None:
    starts = bucket_starts(RANGES["1h"], now=NOW, zone=ZoneInfo("UTC"))
    series = token_series([UsagePoint(59, "m" * 200, 1, 3, 4)], buckets=60, other="Other")
    assert token_figure(series, starts)["data"][0]["name"] == "m" * 47 + "…"
    assert series[0].name == "m" * 200


def test_sparkline_never_hides_a_value() -> None:
    assert sparkline([0, 1, 100_000], width=30, height=20) == "M10.00 20h7.20v-1.50h-7.20zM20.00 20h7.20v-20.00h-7.20z"
    assert sparkline([0, 0]) == sparkline([]) == ""
