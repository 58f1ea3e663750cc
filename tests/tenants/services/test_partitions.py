"""The ledger's partitions: made ahead, once, and rows that came early move in."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import connection

from core.ids import uuid7_from
from tenants.models import UsageRecord
from tenants.services import ensure_partitions

pytestmark = pytest.mark.django_db


def row(at: datetime) -> UsageRecord:
    return UsageRecord(
        id=uuid7_from(int(at.timestamp() * 1000), random_bits=7),
        tenant_id=UUID(int=1),
        model="m",
        door="relay",
        api="chat",
        streamed=False,
        outcome="success",
        status=200,
        usage_source="engine",
        started_at=at,
        process_id=UUID(int=2),
        sequence=1,
    )


def partition_of(record: UsageRecord) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableoid::regclass::text FROM tenants_usagerecord WHERE id = %s", [record.pk])
        return str(cursor.fetchone()[0])


def test_partitions_are_made_once() -> None:
    now = datetime(2031, 11, 15, tzinfo=UTC)
    assert ensure_partitions(now=now, months_ahead=2) == [
        "tenants_usagerecord_203111",
        "tenants_usagerecord_203112",
        "tenants_usagerecord_203201",
    ]
    assert ensure_partitions(now=now, months_ahead=2) == []


def test_rows_that_came_before_their_partition_move_into_it() -> None:
    last_moment = row(datetime(2031, 3, 31, 23, 59, 59, 999000, tzinfo=UTC))
    next_month = row(datetime(2031, 4, 1, tzinfo=UTC))
    UsageRecord.objects.bulk_create([last_moment, next_month])
    assert partition_of(last_moment) == "tenants_usagerecord_default"
    ensure_partitions(now=datetime(2031, 3, 2, tzinfo=UTC), months_ahead=0)
    assert partition_of(last_moment) == "tenants_usagerecord_203103"
    assert partition_of(next_month) == "tenants_usagerecord_default"
    assert UsageRecord.objects.count() == 2


def test_the_plan_reads_one_partition_for_one_id() -> None:
    ensure_partitions(now=datetime(2031, 3, 2, tzinfo=UTC), months_ahead=1)
    wanted = row(datetime(2031, 3, 10, tzinfo=UTC)).pk
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN SELECT * FROM tenants_usagerecord WHERE id = %s", [wanted])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "tenants_usagerecord_203103" in plan
    assert "203104" not in plan
