"""Where time went, by stage: quantiles of each model, and the slowest percent beside all."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from config.house_settings import HouseSettings
from core.ids import uuid7_from
from tenants.reads.latency import all_models, busiest_tenants, latency_by_model
from tenants.reads.stages import STAGES, latency_flame, stage_table
from tenants.services.latency import prune_latency
from tenants.services.ledger import record_usage
from tenants.usage import UsageRow
from tests.tenants.usage_rows import TENANT, usage_row

pytestmark = pytest.mark.django_db
PROCESS = uuid4()
DAY = datetime(2026, 11, 10, tzinfo=UTC)
SPAN: dict[str, Any] = {"since": DAY, "until": DAY + timedelta(hours=1)}
_numbers = iter(range(1, 1_000_000))


def _row(second: float, **more: Any) -> UsageRow:
    number, at = next(_numbers), DAY + timedelta(seconds=second)
    identity = uuid7_from(int(at.timestamp() * 1000), number % 4096, number)
    times = {"queue_ms": 10.0, "tokenise_ms": 4.0, "connect_ms": 2.0, "ttft_ms": 112.0, "first_decode_ms": 20.0}
    return usage_row(PROCESS, number, id=identity, started_at=at.timestamp(), **{**times, "duration_ms": 632.0, **more})


@pytest.mark.shows("R91")
def test_each_stage_of_each_model_has_its_quantiles_and_stages_add_up_to_the_request() -> None:
    record_usage([_row(index, connect_ms=float(index)) for index in range(101)])
    record_usage(
        [_row(index, model="other", ttft_ms=None, first_decode_ms=None, tokenise_ms=None) for index in range(3)]
    )
    tiny, other = stage_table(**SPAN, models=["tiny", "other"])
    assert (tiny.model, tiny.sampled, tiny.since) == ("tiny", 101, DAY)
    found = dict(tiny.stages)
    assert list(found) == list(STAGES)
    assert (found["connect"].p50, found["connect"].p90, found["connect"].p99) == (50.0, 90.0, 99.0)
    assert (found["tokenise"].p50, found["queue"].p50, found["first_decode"].p50) == (4.0, 6.0, 20.0)
    assert (found["prefill"].p50, found["decode"].p50) == (112.0 - 10.0 - 50.0, 632.0 - 112.0 - 20.0)
    whole = dict(other.stages)
    assert (whole["queue"].p50, whole["queue"].known) == (10.0, 3)
    assert (whole["prefill"].p50, whole["prefill"].known, whole["decode"].known) == (None, 0, 0)


def test_only_the_newest_of_each_model_are_looked_at_and_of_a_tenant_only_its_own() -> None:
    record_usage([_row(index) for index in range(20)])
    record_usage([_row(30, tenant_id=uuid4())])
    assert [row.sampled for row in stage_table(**SPAN, models=["tiny"], most=5)] == [5]
    assert [row.sampled for row in stage_table(**SPAN, models=[], tenant_id=TENANT)] == [20]


def test_the_slowest_percent_is_shown_by_stage_beside_all() -> None:
    record_usage([_row(index) for index in range(198)])
    record_usage([_row(300 + index, duration_ms=10_632.0, ttft_ms=10_112.0) for index in range(2)])
    flame = latency_flame(**SPAN, models=["tiny"])
    assert flame is not None
    assert (flame.requests, flame.slowest, flame.from_ms) == (200, 2, 10_632.0)
    assert dict(flame.slow_ms)["prefill"] == 10_100.0
    assert sum(ms for _, ms in flame.slow_ms) == pytest.approx(10_632.0)
    assert sum(ms for _, ms in flame.all_ms) == pytest.approx(732.0)
    assert latency_flame(**SPAN, models=["none"]) is None


@pytest.mark.parametrize(
    ("since", "until", "n"),
    [(0, 300, 300), (1, 299, 298), (61, 119, 58), (60, 120, 60), (59, 121, 62), (0, 0, 0), (30, 30.5, 1)],
)
def test_a_range_is_summed_to_the_minute_out_of_whole_hours_and_their_edges(since: float, until: float, n: int) -> None:
    begin = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(days=2)
    rows = []
    for minute in range(300):
        at = begin + timedelta(minutes=minute)
        number = next(_numbers)
        identity = uuid7_from(int(at.timestamp() * 1000), number % 4096, number)
        rows.append(usage_row(PROCESS, number, id=identity, started_at=at.timestamp()))
    record_usage(rows)
    span: dict[str, Any] = {"since": begin + timedelta(minutes=since), "until": begin + timedelta(minutes=until)}
    assert sum(one.requests for one in latency_by_model(**span, of=())) == n
    assert sum(one.requests for one in latency_by_model(**span, of=("ttft",), tenant_id=TENANT)) == n


def test_counts_and_quantiles_of_models_come_from_the_histograms() -> None:
    record_usage([_row(index, ttft_ms=150.0) for index in range(10)])
    record_usage([_row(index, model="other", outcome="failed", status=502, tenant_id=uuid4()) for index in range(3)])
    tiny, other = latency_by_model(**SPAN)
    assert (tiny.model, tiny.requests, other.model, other.faults) == ("tiny", 10, "other", 3)
    assert tiny.quantile_ms("ttft", 0.5) == pytest.approx(125.0)
    assert [one.requests for one in latency_by_model(**SPAN, tenant_id=TENANT)] == [10]
    assert [one.requests for one in latency_by_model(since=DAY - timedelta(days=3), until=SPAN["until"])] == [10, 3]
    whole = all_models([tiny, other])
    assert (whole.requests, whole.failures, sum(whole.ttft)) == (13, 3, 13)
    assert busiest_tenants(until=SPAN["until"], most=1) == [(TENANT, 10)]


def test_what_the_shortest_keeping_of_minutes_has_pruned_is_summed_in_whole_hours() -> None:
    then = (timezone.now() - timedelta(days=45)).replace(minute=0, second=0, microsecond=0)
    record_usage([_row((then - DAY).total_seconds() + 60 * minute) for minute in (10, 40)])
    least = next(one for one in fields(HouseSettings) if one.name == "minutes_kept_days").metadata["minimum"]
    prune_latency(now=timezone.now(), minutes_kept=timedelta(days=least))
    since, until = then + timedelta(minutes=20), then + timedelta(hours=2)
    assert [one.requests for one in latency_by_model(since=since, until=until)] == [2]
