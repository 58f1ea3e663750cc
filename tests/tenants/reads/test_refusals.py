"""Refusals by reason, a tenant's own."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenants.reads.refusals import Refused, refusals_by_reason
from tenants.refusals import RefusalBatch, RefusalCount
from tenants.services.refusals import record_refusals

pytestmark = pytest.mark.django_db
TENANT, KEY = uuid4(), uuid4()
HOUR = datetime(2026, 11, 10, 12, tzinfo=UTC)
SPAN: dict[str, Any] = {"since": HOUR, "until": HOUR + timedelta(hours=2)}


def _count(minute: int, refusals: int, tenant_id: UUID = TENANT, *, status: int = 429) -> RefusalCount:
    at = int((HOUR + timedelta(minutes=minute)).timestamp())
    code, metric = ("rate_limit_exceeded", "tokens") if status == 429 else ("no_ready_instance", "")
    return RefusalCount(tenant_id, KEY, "tiny", code, status, metric, "minute" if metric else "", at, refusals)


def test_refusals_are_told_by_reason_to_their_own_tenant() -> None:
    counts = [
        _count(0, 3),
        _count(1, 4),
        _count(61, 5),
        _count(5, 2, status=503),
        _count(5, 100, uuid4()),
        _count(-1, 9),
    ]
    record_refusals([RefusalBatch(uuid4(), 1, counts)])
    assert refusals_by_reason(**SPAN, tenant_id=TENANT) == [
        Refused("tiny", KEY, 429, "rate_limit_exceeded", "tokens", "minute", 12),
        Refused("tiny", KEY, 503, "no_ready_instance", "", "", 2),
    ]
    assert [one.refusals for one in refusals_by_reason(**SPAN, status=429, most=1)] == [112]
