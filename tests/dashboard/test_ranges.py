"""Spans of time: what the address says, in its zone; what makes no sense there is passed over."""

import re
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from urllib.parse import parse_qs

import pytest
from django.template import engines
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.usage import buckets_between, step_of
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


@pytest.mark.shows("U9")
@pytest.mark.parametrize(("asked", "since", "until"), [
    ("from=2026-11-29T10:00&to=2026-11-29T13:00&zone=Asia/Shanghai", "2026-11-29T02:00:00Z", "2026-11-29T05:00:00Z"),
    ("from=2025-10-26T02:10%2B01:00&zone=Europe/Berlin", "2025-10-26T01:10:00Z", None),  # the second 02:10
])  # fmt: skip
def test_moments_stay_the_same_in_another_zone(asked: str, since: str, until: str | None) -> None:
    found = read(asked)
    assert (found.asked_since, found.asked_until) == (since, until)
    for zone in found.zones:
        again = read(f"from={since}&zone={zone}" + (f"&to={until}" if until else ""))
        assert (again.since, again.until, again.zone.key) == (found.since, found.until, zone)


def test_the_zones_of_the_picker_lead_to_the_same_moments() -> None:
    picker = engines["django"].get_template("components/range_picker.html")
    asked = RequestFactory().get("/?from=2026-11-29T10:00&to=2026-11-29T13:00&q=x&before=y")
    found = read_range(asked, now=NOW, home_zone="Asia/Shanghai")
    links = re.findall(r'href="\?([^"]*zone=UTC[^"]*)"', picker.render({"range": found}, asked))
    assert [parse_qs(link.replace("&amp;", "&")) for link in links] == [
        {"from": ["2026-11-29T02:00:00Z"], "to": ["2026-11-29T05:00:00Z"], "q": ["x"], "zone": ["UTC"]}
    ]
    named = read_range(RequestFactory().get("/?range=7d"), now=NOW)
    assert (named.asked_since, named.asked_until) == (None, None)


def test_a_time_that_summer_time_skips_is_as_if_the_clocks_had_not_been_put_forward() -> None:
    found = read("from=2025-03-30T02:45&to=2025-03-30T04:10&zone=Europe/Berlin")
    assert found.since.astimezone(UTC) == datetime(2025, 3, 30, 1, 45, tzinfo=UTC)
    assert found.until - found.since == timedelta(minutes=25)


@pytest.mark.parametrize(
    "query",
    [
        "from=2025-03-30T02:45&to=2025-03-30T03:10",  # 03:45 to 03:10
        "from=2025-10-26T02:10:00%2B01:00&to=2025-10-26T02:30",  # the second 02:10 to the first 02:30
    ],
)
def test_what_ends_before_it_begins_when_the_clocks_change_is_passed_over(query: str) -> None:
    assert read(f"{query}&zone=Europe/Berlin").name == "24h"


_NEAR_THE_CHANGE = st.builds(
    "{}T{}".format, st.sampled_from(["2025-03-30", "2025-03-31", "2025-10-26"]), st.times(max_value=time(5))
)


@given(_NEAR_THE_CHANGE, _NEAR_THE_CHANGE, st.sampled_from(["", "+01:00", "+02:00"]))
def test_spans_across_a_change_of_the_clocks_have_buckets_that_rise(since: str, until: str, offset: str) -> None:
    query = {"zone": "Europe/Berlin", "from": f"{since}{offset}", "to": until}
    found = read_range(RequestFactory().get("/", query), now=NOW)
    assert found.since < found.until
    starts = buckets_between(found.since, found.until, zone=found.zone)
    edges = [start.timestamp() for start in starts] + [found.until.timestamp()]
    assert all(sooner < later for sooner, later in pairwise(edges))
    assert step_of(starts) > timedelta(0)


@pytest.mark.parametrize(
    ("query", "ends"),
    [
        ("from=2026-11-29T10:00&to=2026-11-29T10:01", ("2026-11-29T10:00", "2026-11-29T10:01")),
        ("from=2026-11-29T10:00:05Z&to=2026-11-29T10:00:41Z&zone=UTC", ("2026-11-29T10:00:05", "2026-11-29T10:00:41")),
        ("range=24h&zone=UTC", ("2026-11-28T12:00", "2026-11-29T12:00")),
    ],
)
def test_the_form_of_dates_sends_back_unchanged_what_is_a_range_again(query: str, ends: tuple[str, str]) -> None:
    found = read(query)
    assert found.ends == ends
    again = read(f"from={ends[0]}&to={ends[1]}&zone={found.zone.key}")
    assert (again.since, again.until, again.name) == (found.since, found.until, "")
    picker = (
        engines["django"]
        .get_template("components/range_picker.html")
        .render({"range": found}, RequestFactory().get(f"/?{query}"))
    )
    assert (picker.count('step="1"'), [end in picker for end in ends]) == (2 * found.in_seconds, [True, True])


def test_the_form_of_dates_keeps_the_filters_and_not_the_place_in_the_list() -> None:
    kept = read("range=7d&model=a&model=b&zone=UTC&after=x&before=y&count=exact").kept
    assert kept == [("model", "a"), ("model", "b")]


@given(st.dictionaries(st.sampled_from(["range", "from", "to", "zone"]), st.text(max_size=30)))
def test_nothing_in_an_address_breaks_it(query: dict[str, str]) -> None:
    found = read_range(RequestFactory().get("/", query), now=NOW)
    assert found.since < found.until
