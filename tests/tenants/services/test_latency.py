"""Histograms of latency: of the same buckets as Prometheus's, counted once, and made anew as they were."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from core.ids import uuid7_from
from core.telemetry import buckets
from tenants.models import LatencyHour, LatencyMinute, ModelLatencyHour, ModelLatencyMinute
from tenants.services.latency import HOURS_KEPT, prune_latency
from tenants.services.ledger import record_usage
from tenants.services.rollups import rebuild_day
from tenants.usage import UsageRow
from tests.tenants.usage_rows import usage_row

PROCESS = uuid4()
DAY = datetime(2026, 11, 10, tzinfo=UTC)
VERSION = uuid4()
TABLES = (LatencyMinute, LatencyHour, ModelLatencyMinute, ModelLatencyHour)
_numbers = iter(range(1, 1_000_000))


def _row(at: datetime, **more: Any) -> UsageRow:
    number, seconds = next(_numbers), at.timestamp()
    identity = uuid7_from(int(seconds * 1000), number % 4096, number)
    return usage_row(PROCESS, number, id=identity, started_at=seconds, **more)


def _all() -> list[list[tuple[Any, ...]]]:
    return [
        sorted(
            (tuple(getattr(row, f.name) for f in table._meta.fields if f.name != "id") for row in table.objects.all()),
            key=str,
        )
        for table in TABLES
    ]


def test_a_time_on_a_bound_is_within_it_and_one_beyond_all_is_counted_last() -> None:
    assert buckets.bucket_of((0.1, 0.2), 0.2) == 1
    assert buckets.bucket_of((0.1, 0.2), 0.3) == 2
    for bounds in (buckets.TTFT, buckets.TPOT, buckets.QUEUE, buckets.DURATION):
        assert list(bounds) == sorted(set(bounds))


def test_a_quantile_lies_where_prometheus_puts_it() -> None:
    bounds, counts = (1.0, 2.0, 4.0), [10, 80, 10, 0]
    assert buckets.quantile(bounds, counts, 0.5) == 1.5
    assert buckets.quantile(bounds, counts, 0.99) == 3.8
    assert buckets.quantile(bounds, [0, 0, 0, 5], 0.5) == 4.0
    assert buckets.quantile(bounds, [0, 0, 0, 0], 0.5) is None


def test_time_per_output_token_is_unknown_without_two_tokens() -> None:
    assert buckets.time_per_output_token(1.1, 0.1, 11) == pytest.approx(0.1)
    assert buckets.time_per_output_token(1.1, 0.1, 1) is None
    assert buckets.time_per_output_token(1.1, 0.1, None) is None


@pytest.mark.django_db
def test_rows_are_counted_by_tenant_model_version_and_minute_each_once() -> None:
    row = _row(DAY, version_id=VERSION, ttft_ms=200.0, duration_ms=1200.0, output_tokens=11, queue_ms=0.4)
    other = _row(
        DAY, version_id=VERSION, tenant_id=uuid4(), ttft_ms=None, duration_ms=50.0, outcome="failed", status=502
    )
    record_usage([row, row, other])
    record_usage([row])
    assert LatencyMinute.objects.count() == LatencyHour.objects.count() == 2
    both = ModelLatencyMinute.objects.get()
    assert (both.requests, both.failures, both.faults, both.cancelled) == (2, 1, 1, 0)
    assert both.version_id == VERSION
    assert sum(both.ttft) == both.ttft[buckets.TTFT.index(0.2)] == 1
    assert sum(both.tpot) == both.tpot[buckets.TPOT.index(0.1)] == 1
    assert sum(both.queue) == both.queue[0] == 1
    assert sum(both.duration) == 2
    assert len(both.ttft) == len(buckets.TTFT) + 1


@pytest.mark.django_db
def test_a_callers_own_mistake_is_a_failure_and_no_fault() -> None:
    record_usage(
        [_row(DAY, outcome="failed", status=400), _row(DAY, outcome="lost", status=0), _row(DAY, outcome="truncated")]
    )
    row = LatencyMinute.objects.get()
    assert (row.failures, row.faults) == (3, 2)


@pytest.mark.django_db
def test_a_day_made_anew_is_what_it_was() -> None:
    edges = sorted({*buckets.TTFT, *buckets.QUEUE, *buckets.DURATION, *buckets.TPOT, 0.00033, 0.0777, 700.0})
    rows = [
        _row(
            DAY + timedelta(minutes=index),
            ttft_ms=None if index % 7 == 0 else edge * 1000,
            queue_ms=None if index % 5 == 0 else edge * 1000,
            duration_ms=edge * 1000 * (1 + index % 3),
            output_tokens=index % 4,
            outcome="success" if index % 6 else "failed",
            status=200 if index % 6 else 400 + 100 * (index % 2),
            model=f"m{index % 2}",
        )
        for index, edge in enumerate(edges)
    ]
    record_usage(rows[:30])
    record_usage(rows[30:])
    record_usage([_row(DAY - timedelta(seconds=1)), _row(DAY + timedelta(days=1))])
    before = _all()
    LatencyMinute.objects.filter(minute__gte=DAY, minute__lt=DAY + timedelta(hours=1)).update(requests=7)
    ModelLatencyHour.objects.filter(hour=DAY).update(ttft=[1])
    LatencyHour.objects.filter(hour=DAY).delete()
    rebuild_day(DAY)
    for table, made, was in zip(TABLES, _all(), before, strict=True):
        assert made == was, table


@pytest.mark.django_db
def test_old_minutes_and_hours_go() -> None:
    record_usage([_row(DAY), _row(DAY + timedelta(days=50))])
    assert prune_latency(now=DAY + timedelta(days=91), minutes_kept=timedelta(days=90), most=1) == 2
    assert LatencyMinute.objects.count() == ModelLatencyMinute.objects.count() == 1
    assert LatencyHour.objects.count() == 2
    assert prune_latency(now=DAY + HOURS_KEPT + timedelta(hours=1), minutes_kept=timedelta(days=90)) == 4
