"""The pool reports how long instances held their claims, and makes up for hours that nobody reported."""

from datetime import UTC, datetime, timedelta

import pytest

from gpupool.models import Instance, Lease
from gpupool.services.showback import report_instance_hours
from tenants.models import GpuShare
from tests.dashboard.people import pool

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 10, 9, 30, tzinfo=UTC)


def _held(since: datetime, *, until: datetime | None = None, ready: datetime | None = None) -> Instance:
    instance = pool().instance
    Lease.objects.update(claimed_at=since, released_at=until)
    instance.ready_at = ready
    instance.save()
    return instance


def _hours() -> list[tuple[int, int, int]]:
    """Hour of the day, seconds of warm-up, idle seconds."""
    shares = GpuShare.objects.order_by("hour")
    return [(share.hour.hour, share.warm_ms // 1000, share.idle_ms // 1000) for share in shares]


def test_hours_run_from_the_claim_to_its_release() -> None:
    instance = _held(NOW.replace(hour=6, minute=45), until=NOW.replace(minute=10), ready=NOW.replace(hour=7, minute=5))
    assert report_instance_hours(now=NOW) == 4
    assert _hours() == [(6, 900, 0), (7, 300, 3300), (8, 0, 3600), (9, 0, 600)]
    share = GpuShare.objects.order_by("hour")[0]
    assert (share.instance_id, share.model, share.gpus, share.tenant_id) == (instance.pk, "qwen3-8b", 1, None)


def test_the_running_hour_grows_and_is_never_counted_twice() -> None:
    _held(NOW.replace(minute=0), ready=NOW.replace(minute=0))
    for minute in (30, 30, 45):
        report_instance_hours(now=NOW.replace(minute=minute))
        assert _hours() == [(9, 0, 60 * minute)]
    report_instance_hours(now=NOW + timedelta(hours=1))
    assert _hours() == [(9, 0, 3600), (10, 0, 1800)]


def test_attached_engines_and_cpus_hold_no_gpu() -> None:
    made = pool()
    made.device.kind = "cpu"
    made.device.save()
    Lease.objects.update(claimed_at=NOW - timedelta(minutes=10))
    report_instance_hours(now=NOW)
    assert GpuShare.objects.get().gpus == 0
    GpuShare.objects.all().delete()
    Lease.objects.all().delete()
    assert report_instance_hours(now=NOW) == 0
