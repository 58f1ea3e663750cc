"""The ledger: a row is written once however often it comes, and sums and marks follow the rows."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import DataError, connection
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.actor import SYSTEM
from tenants.models import (
    LedgerMark,
    PlatformMinute,
    TenantDay,
    TenantHour,
    UsageDay,
    UsageHour,
    UsageMinute,
    UsageRecord,
)
from tenants.selectors import platform_rates
from tenants.services import create_api_key, create_tenant
from tenants.services.ledger import MARK_RETENTION, Progress, prune_marks, record_usage, touch_keys
from tenants.usage import UsageRow
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db

PROCESS = uuid4()
IDS = [UUID(int=n) for n in range(1, 9)]

counts = st.one_of(st.none(), st.integers(0, 2**40))
rows = st.builds(
    usage_row,
    st.just(PROCESS),
    st.integers(1, 50),
    id=st.sampled_from(IDS),
    tenant_id=st.sampled_from(IDS[:2]),
    key_id=st.one_of(st.none(), st.sampled_from(IDS[:2])),
    model=st.sampled_from(["a", "b"]),
    started_at=st.one_of(
        st.integers(1_760_000_000, 1_760_000_180),
        st.integers(1_760_050_000, 1_760_060_000),  # over a midnight
    ).map(float),
    outcome=st.sampled_from(["success", "cancelled", "truncated", "failed", "lost"]),
    input_tokens=counts,
    cached_tokens=counts,
    output_tokens=counts,
    cost_micros=st.integers(0, 2**40),
    duration_ms=st.one_of(st.none(), st.integers(0, 10**6).map(float)),
    ttft_ms=st.one_of(st.none(), st.integers(0, 10**6).map(float)),
)


_SUMS_OF_ROWS = """
SELECT tenant_id, key_id, model, date_trunc('{unit}', started_at, 'UTC'), count(*),
    count(*) FILTER (WHERE outcome IN ('failed', 'truncated', 'lost')), count(*) FILTER (WHERE outcome = 'cancelled'),
    coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0),
    coalesce(sum(duration_ms), 0), coalesce(sum(ttft_ms), 0), count(ttft_ms), sum(cost_micros)
FROM tenants_usagerecord GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""
_SUMS = """
SELECT tenant_id, key_id, model, {unit}, requests, failures, cancelled, input_tokens, cached_tokens, output_tokens,
    duration_ms, ttft_ms, ttft_count, cost_micros
FROM tenants_usage{unit} ORDER BY 1, 2, 3, 4
"""
_UNITS: dict[str, Any] = {"minute": UsageMinute, "hour": UsageHour, "day": UsageDay}
_WHOLE: dict[str, Any] = {"hour": TenantHour, "day": TenantDay}
"""Whatever the key."""


def _without_keys(query: str) -> str:
    without = query.replace(" key_id,", "").replace("1, 2, 3, 4", "1, 2, 3")
    return without.replace("tenants_usage{unit}", "tenants_tenant{unit}")


_ENDED_ROWS = """
SELECT date_trunc('minute', started_at + coalesce(duration_ms, 0) * interval '1 ms'), count(*),
    count(*) FILTER (WHERE outcome IN ('failed', 'truncated', 'lost')),
    sum(coalesce(input_tokens, 0) + coalesce(output_tokens, 0))
FROM tenants_usagerecord GROUP BY 1 ORDER BY 1
"""
_PLATFORM = "SELECT minute, requests, failures, tokens FROM tenants_platformminute ORDER BY 1"


def _select(query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(rows, max_size=6), max_size=5))
def test_sums_are_those_of_the_rows_whatever_comes_twice(batches: Sequence[Sequence[UsageRow]]) -> None:
    UsageRecord.objects.all().delete()
    for sums in (*_UNITS.values(), *_WHOLE.values()):
        sums.objects.all().delete()
    PlatformMinute.objects.all().delete()
    inserted = sum(record_usage(batch).inserted for batch in batches)
    assert inserted == UsageRecord.objects.count() == len({row.id for batch in batches for row in batch})
    for unit in _UNITS:
        assert _select(_SUMS.format(unit=unit)) == _select(_SUMS_OF_ROWS.format(unit=unit))
    for unit in _WHOLE:
        kept, made = _without_keys(_SUMS), _without_keys(_SUMS_OF_ROWS)
        assert _select(kept.format(unit=unit)) == _select(made.format(unit=unit))
    assert _select(_PLATFORM) == _select(_ENDED_ROWS)


def test_what_a_row_says_is_what_is_kept() -> None:
    row = usage_row(
        PROCESS, 1, key_id=uuid4(), version_id=uuid4(), instance_id=uuid4(), engine_request_id="cmpl-1",
        cached_tokens=0, error_code="upstream_error", attempts=2, streamed=True, subject_id=uuid4(), cost_micros=12,
        price_id=uuid4(), reserved_input=5, reserved_output=6, reserved_micros=7,
    )  # fmt: skip
    record_usage([row])
    kept = UsageRecord.objects.get()
    for name in row.__struct_fields__:
        if name != "started_at":
            assert getattr(kept, name) == getattr(row, name), name
    assert kept.started_at == datetime.fromtimestamp(row.started_at, UTC)


def test_the_first_of_two_rows_with_one_id_counts() -> None:
    first = usage_row(PROCESS, 1)
    second = usage_row(PROCESS, 2, id=first.id, output_tokens=1000)
    assert record_usage([first, second]).inserted == 1
    assert record_usage([second]).inserted == 0
    assert UsageRecord.objects.get().output_tokens == 4
    assert UsageMinute.objects.get().output_tokens == 4


def test_a_request_longer_than_a_minute_is_in_the_rates_of_the_minute_it_ended_in() -> None:
    now = datetime(2026, 11, 29, 10, 17, 30, tzinfo=UTC)
    began = now - timedelta(seconds=150)
    row = usage_row(
        PROCESS, 1, started_at=began.timestamp(), duration_ms=149_000.0, outcome="failed", output_tokens=597
    )
    record_usage([row])
    rates = platform_rates(now)
    assert (rates.requests, rates.failures, rates.tokens_per_second) == (1.0, 1.0, 10.0)
    assert UsageMinute.objects.get().minute == began.replace(second=0)


def _done(*sequences: int, through: int = 0) -> Progress:
    return Progress(through, set(sequences))


def test_marks_stop_at_a_gap_and_catch_up() -> None:
    other = uuid4()
    assert record_usage([], progress={PROCESS: _done(1, 2, 4), other: _done(2)}).marks == {PROCESS: 2, other: 0}
    assert record_usage([], progress={PROCESS: _done(4)}).marks == {PROCESS: 2}
    assert record_usage([], progress={PROCESS: _done(3, 4)}).marks == {PROCESS: 4}
    assert record_usage([], progress={PROCESS: _done(1)}).marks == {PROCESS: 4}
    assert LedgerMark.objects.get(pk=PROCESS).sequence == 4


def test_a_mark_that_was_pruned_or_set_back_goes_on_where_its_process_says() -> None:
    record_usage([], progress={PROCESS: _done(1, 2, 3)})
    assert prune_marks(now=timezone.now()) == 0
    assert prune_marks(now=timezone.now() + MARK_RETENTION + timedelta(seconds=1)) == 1
    assert record_usage([], progress={PROCESS: _done(4, 5, through=3)}).marks == {PROCESS: 5}


def test_a_row_that_cannot_be_stored_takes_its_batch_back() -> None:
    with pytest.raises(DataError):
        record_usage([usage_row(PROCESS, 1), usage_row(PROCESS, 2, status=100_000)], progress={PROCESS: _done(1, 2)})


@pytest.mark.django_db(transaction=True)
def test_nothing_of_a_refused_batch_stays() -> None:
    with pytest.raises(DataError):
        record_usage([usage_row(PROCESS, 1), usage_row(PROCESS, 2, model="m" * 300)], progress={PROCESS: _done(1, 2)})
    assert not UsageRecord.objects.exists()
    assert not UsageMinute.objects.exists()
    assert not LedgerMark.objects.exists()


def test_last_use_is_kept_to_the_minute_and_never_goes_back() -> None:
    key = create_api_key(create_tenant(slug="acme", name="Acme", actor=SYSTEM), name="k", actor=SYSTEM).key
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for offset, shown in ((0, 0), (59, 0), (60, 60), (-3600, 60), (121, 121)):
        touch_keys({key.pk: (noon + timedelta(seconds=offset)).timestamp()})
        key.refresh_from_db()
        assert key.last_used_at == noon + timedelta(seconds=shown), offset
    touch_keys({uuid4(): noon.timestamp()})  # a key that is gone
