"""An hour of an instance is shared out by what the ledger says, as often as it is reported."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.ids import uuid7_from
from tenants.models import GpuShare, Price
from tenants.services.ledger import record_usage
from tenants.services.showback import InstanceTime, last_reported_hour, report_gpu_seconds
from tests.tenants.usage_rows import usage_row

pytestmark = pytest.mark.django_db

HOUR = datetime(2026, 11, 10, 9, tzinfo=UTC)
A, B = uuid4(), uuid4()
INSTANCE, VERSION, PROCESS = uuid4(), uuid4(), uuid4()
_numbers = iter(range(1, 1_000_000))


def _used(tenant_id: UUID, second: float, seconds: float, *, instance_id: UUID = INSTANCE) -> None:
    """A request of the tenant that began `second` seconds into the hour."""
    at, number = HOUR.timestamp() + second, next(_numbers)
    record_usage(
        [
            usage_row(
                PROCESS, number, id=uuid7_from(int(at * 1000), 0, number), tenant_id=tenant_id, started_at=at,
                duration_ms=seconds * 1000, instance_id=instance_id,
            )
        ]
    )  # fmt: skip


def _time(**more: Any) -> InstanceTime:
    values: dict[str, Any] = {
        "instance_id": INSTANCE,
        "version_id": VERSION,
        "model": "qwen",
        "owner_id": None,
        "gpus": 2,
        "since": HOUR + timedelta(minutes=10),
        "ready_at": HOUR + timedelta(minutes=20),
        "until": HOUR + timedelta(hours=3),
    }
    return InstanceTime(**{**values, **more})


def _shares() -> dict[UUID | None, tuple[int, int, int, int]]:
    return {
        share.tenant_id: (share.busy_ms, share.idle_ms, share.warm_ms, share.cost_micros)
        for share in GpuShare.objects.all()
    }


def test_time_is_busy_once_however_many_answers_run_at_once() -> None:
    _used(A, 1200, 300)
    _used(B, 1400, 100)  # within A's
    _used(A, 1900, 100)
    _used(A, 1950, 100)  # overlaps the one before by half
    _used(B, 100, 10, instance_id=uuid4())
    assert report_gpu_seconds(HOUR, [_time()]) == 2
    busy, idle, warm = 450_000, 2_400_000 - 450_000, 600_000
    assert {tenant: share[:3] for tenant, share in _shares().items()} == {
        A: (busy * 5 // 6, idle * 5 // 6, warm * 5 // 6),
        B: (busy // 6, idle // 6, warm // 6),
    }


def test_requests_count_where_they_lie_in_the_hour() -> None:
    _used(A, -1800, 3600 - 900)  # reaches 15 minutes into the hour
    _used(A, 3500, 1000)  # and this one beyond it
    report_gpu_seconds(HOUR, [_time(since=HOUR - timedelta(days=1), ready_at=HOUR - timedelta(days=1))])
    assert _shares() == {A: (1_000_000, 2_600_000, 0, 0)}
    report_gpu_seconds(HOUR + timedelta(hours=1), [_time()])
    assert GpuShare.objects.get(hour=HOUR + timedelta(hours=1)).busy_ms == 900_000


def test_reporting_again_replaces_what_was_reported() -> None:
    assert last_reported_hour() is None
    report_gpu_seconds(HOUR, [_time(until=HOUR + timedelta(minutes=30), owner_id=B)])
    assert _shares() == {B: (0, 600_000, 600_000, 0)}
    _used(A, 1300, 10)
    for _ in range(2):
        report_gpu_seconds(HOUR, [_time(owner_id=B)])
        assert _shares() == {A: (10_000, 2_390_000, 600_000, 0)}
    assert last_reported_hour() == HOUR


def test_the_hour_costs_what_a_gpu_second_cost_when_it_began() -> None:
    def price(micros: int, at: datetime, version_id: UUID | None = None) -> None:
        Price.objects.create(model="qwen", version_id=version_id, effective_from=at, gpu_second_micros=micros)

    price(5, HOUR - timedelta(days=2))
    report_gpu_seconds(HOUR, [_time()])
    assert _shares() == {None: (0, 2_400_000, 600_000, 5 * 2 * 3000)}
    price(7, HOUR - timedelta(days=1), VERSION)
    price(11, HOUR - timedelta(hours=1))
    price(13, HOUR + timedelta(minutes=1), VERSION)
    report_gpu_seconds(HOUR, [_time()])
    assert _shares()[None][3] == 7 * 2 * 3000
    report_gpu_seconds(HOUR, [_time(gpus=0)])
    assert _shares() == {None: (0, 2_400_000, 600_000, 0)}


def test_an_instance_that_was_never_ready_only_warmed_up() -> None:
    report_gpu_seconds(HOUR, [_time(ready_at=None), _time(instance_id=uuid4(), since=HOUR + timedelta(hours=2))])
    assert _shares() == {None: (0, 0, 3_000_000, 0)}
    with pytest.raises(ValueError):
        report_gpu_seconds(HOUR + timedelta(minutes=1), [])
