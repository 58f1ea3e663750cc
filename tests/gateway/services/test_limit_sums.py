"""The ledger summed under limits, as relays count them."""

import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from core.ids import uuid7_from
from gateway.relay.rows import LimitRow
from gateway.services.limit_sums import Span, sum_by_limit, sum_by_second
from tenants.models import Adjustment, Tenant, UsageRecord
from tenants.services.ledger import record_usage
from tests.factories import make_tenant
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
PROCESS = uuid4()


def limit(metric: str = "requests", **more: Any) -> LimitRow:
    values: dict[str, Any] = {
        "id": uuid4(),
        "tenant_id": None,
        "subtree": False,
        "key_id": None,
        "model": "",
        "window": "day",
        "amount": 100,
        "refill_per_second": None,
        "boost_amount": None,
        "boost_until": None,
        "counts_from": 0.0,
        "time_zone": "UTC",
    }
    return LimitRow(metric=metric, **(values | more))


class Book:
    """Writes rows of one process, one after the other."""

    def __init__(self, process: UUID = PROCESS) -> None:
        self._process = process
        self._sequence = 0

    def add(self, tenant: Tenant, at: float = NOW, **more: Any) -> None:
        self._sequence += 1
        row_id = uuid7_from(int(at * 1000), 0, self._sequence << 20 | self._process.int & 0xFFFFF)
        row = usage_row(self._process, self._sequence, id=row_id, tenant_id=tenant.pk, started_at=at, **more)
        record_usage([row])


def sums(*limits: LimitRow, since: float = NOW - 100, through: dict[UUID, int] | None = None) -> list[int]:
    return sum_by_limit([Span(one, since) for one in limits], through=through or {})


def test_every_metric_is_summed_and_bounds_of_lost_requests_count() -> None:
    tenant = make_tenant()
    book = Book()
    book.add(tenant, input_tokens=10, cached_tokens=9, output_tokens=5, cost_micros=70)
    book.add(
        tenant,
        outcome="lost",
        input_tokens=None,
        output_tokens=None,
        reserved_input=100,
        reserved_output=40,
        reserved_micros=1000,
    )
    metrics = ("requests", "tokens", "input_tokens", "output_tokens", "money", "concurrency")
    assert sums(*(limit(metric, tenant_id=tenant.pk) for metric in metrics)) == [2, 155, 110, 45, 1070, 0]


def test_scopes_take_in_what_a_relay_would_count_there() -> None:
    parent, other = make_tenant(), make_tenant()
    child, grandchild = make_tenant(), make_tenant()
    Tenant.objects.filter(pk=child.pk).update(parent=parent)
    Tenant.objects.filter(pk=grandchild.pk).update(parent=child)
    key = uuid4()
    book = Book()
    book.add(parent)
    book.add(child, key_id=key)
    book.add(child, key_id=key, model="large")
    book.add(grandchild, key_id=uuid4())
    book.add(other, model="large")
    assert sums(
        limit(),
        limit(model="large"),
        limit(tenant_id=parent.pk),
        limit(tenant_id=parent.pk, subtree=True),
        limit(tenant_id=parent.pk, subtree=True, model="large"),
        limit(tenant_id=child.pk, subtree=True),
        limit(tenant_id=child.pk),
        limit(tenant_id=child.pk, key_id=key),
        limit(tenant_id=child.pk, key_id=key, model="tiny"),
        limit(tenant_id=uuid4()),
    ) == [5, 2, 1, 4, 1, 3, 2, 2, 1, 0]


def test_bounded_by_tenants_the_children_are_still_read() -> None:
    parent, child, other = make_tenant(), make_tenant(), make_tenant()
    Tenant.objects.filter(pk=child.pk).update(parent=parent)
    book = Book()
    for tenant in (parent, child, other):
        book.add(tenant)
    assert sums(limit(tenant_id=parent.pk, subtree=True)) == [2]
    assert sums(limit(tenant_id=parent.pk)) == [1]


def test_each_limit_counts_from_its_own_moment() -> None:
    tenant = make_tenant()
    book = Book()
    for minutes in range(10):
        book.add(tenant, at=NOW + 60 * minutes)
    spans = [Span(limit(tenant_id=tenant.pk), NOW + offset) for offset in (-5, 0, 60, 61, 480, 601)]
    assert sum_by_limit(spans, through={}) == [10, 10, 9, 8, 2, 0]


def test_of_a_living_process_only_what_it_has_reported() -> None:
    tenant = make_tenant()
    alive, dead = uuid4(), uuid4()
    for process in (alive, dead):
        book = Book(process)
        for _ in range(4):
            book.add(tenant)
    one = limit(tenant_id=tenant.pk)
    assert sums(one) == [8]
    assert sums(one, through={alive: 3}) == [7]
    assert sums(one, through={alive: 0, dead: 1}) == [1]


def test_a_correction_of_a_row_counts_as_if_the_row_had_cost_that() -> None:
    tenant = make_tenant()
    Book().add(tenant, cost_micros=70)
    row = UsageRecord.objects.get(tenant_id=tenant.pk)
    values: dict[str, Any] = {"tenant_id": tenant.pk, "month": "2026-11", "reason": "Counted twice."}
    Adjustment.objects.create(kind="correction", amount_micros=-30, usage_record_id=row.pk, **values)
    Adjustment.objects.create(kind="correction", amount_micros=-5, **values)
    Adjustment.objects.create(kind="credit", amount_micros=-9, usage_record_id=row.pk, **values)
    assert sums(limit("money"), limit("tokens")) == [40, 7]
    assert sums(limit("money"), through={PROCESS: 0}) == [0]


def test_minutes_are_told_by_the_second() -> None:
    tenant = make_tenant()
    book = Book()
    for offset in (-61.0, -30.4, -30.1, -2.0, 0.5):
        book.add(tenant, at=NOW + offset)
    [found] = sum_by_second([limit("tokens", tenant_id=tenant.pk)], NOW - 60, through={})
    assert found == {NOW - 31: 14, NOW - 2: 7, NOW: 7}


def test_one_query_reads_the_ledger_whatever_the_number_of_limits() -> None:
    tenant = make_tenant()
    Book().add(tenant)
    many = [limit(tenant_id=tenant.pk) for _ in range(50)]
    few = many[:1]
    with CaptureQueriesContext(connection) as asked:
        sums(*few)
        sums(*many)
    assert len(asked) == 2


@pytest.mark.drill
@pytest.mark.shows("G5")
def test_a_thousand_limits_over_a_million_rows_take_seconds() -> None:
    tenants = [make_tenant() for _ in range(100)]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            """
            INSERT INTO tenants_usagerecord (id, tenant_id, key_id, model, door, api, streamed, outcome, status,
                error_code, engine_request_id, usage_source, input_tokens, output_tokens, started_at, attempts,
                process_id, sequence, cost_micros)
            SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7000' || '8000'
                    || lpad(to_hex(n), 12, '0'))::uuid,
                   (%s::uuid[])[1 + n %% 100], gen_random_uuid(), 'model-' || n %% 5, 'relay', 'chat', false, 'success',
                   200, '', '', 'engine', 100, 50, at, 1, %s, n, 7
            FROM (SELECT n, to_timestamp(%s) + make_interval(secs => n) AS at FROM generate_series(1, 1000000) AS n)
            """,
            [[tenant.pk for tenant in tenants], PROCESS, NOW],
        )
        cursor.execute("ANALYZE tenants_usagerecord")
    spans = [
        Span(
            limit("tokens", tenant_id=tenants[number % 100].pk, model=f"model-{number % 5}" if number % 2 else ""),
            NOW + 1000 * (number % 30),
        )
        for number in range(1_000)
    ]
    begun = time.perf_counter()
    totals = sum_by_limit(spans, through={PROCESS: 999_000})
    took = time.perf_counter() - begun
    print(f"1,000 limits over 1,000,000 rows: {took:.2f} s")
    assert max(totals) > 0
    assert took < 20
