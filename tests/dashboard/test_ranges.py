"""Spans of time: what the address says, in its zone; what makes no sense there is passed over."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from dashboard.ranges import TimeRange, read_range

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def read(query: str) -> TimeRange:
    return read_range(RequestFactory().get(f"/?{query}"), now=NOW, home_zone="Asia/Shanghai")


@pytest.mark.shows("U9")
@pytest.mark.parametrize(
    ("query", "hours", "zone", "name"),
    [
        ("", 24, "Asia/Shanghai", "24h"),
        ("range=7d", 168, "Asia/Shanghai", "7d"),
        ("range=7d&zone=UTC", 168, "UTC", "7d"),
        ("range=90d", 24, "Asia/Shanghai", "24h"),  # not among the choices
        ("range=%00&zone=Mars/Base", 24, "Asia/Shanghai", "24h"),
        ("from=2026-11-29T10:00&to=2026-11-29T13:00", 3, "Asia/Shanghai", ""),
        ("from=2026-11-29T10:00&zone=UTC", 2, "UTC", ""),
        ("from=2026-11-29T13:00&to=2026-11-29T10:00", 24, "Asia/Shanghai", "24h"),  # the wrong way round
    ],
)
def test_the_address_says_span_and_zone(query: str, hours: int, zone: str, name: str) -> None:
    found = read(query)
    assert (found.until - found.since, found.zone.key, found.name) == (timedelta(hours=hours), zone, name)


def test_dates_are_of_the_zone_that_is_named() -> None:
    found = read("from=2026-11-29T10:00&to=2026-11-29T13:00")
    assert found.since.astimezone(UTC) == datetime(2026, 11, 29, 2, 0, tzinfo=UTC)
    assert found.zones == ["Asia/Shanghai", "UTC"]


def test_the_form_of_dates_keeps_the_filters() -> None:
    assert read("range=7d&model=a&model=b&zone=UTC&after=x").kept == [("model", "a"), ("model", "b")]


@given(st.dictionaries(st.sampled_from(["range", "from", "to", "zone"]), st.text(max_size=30)))
def test_nothing_in_an_address_breaks_it(query: dict[str, str]) -> None:
    found = read_range(RequestFactory().get("/", query), now=NOW)
    assert found.since < found.until
