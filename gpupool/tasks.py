"""Periodic work of this app."""

from celery import shared_task
from django.utils import timezone

from gpupool import services
from gpupool.services import showback


@shared_task  # type: ignore[untyped-decorator]  # Celery publishes no types
def compact_lease_store() -> int:
    """Drop old events of the lease store; safe to run twice."""
    return services.compact_store_events(now=timezone.now())


@shared_task(name="gpupool.tasks.report_instance_hours")  # type: ignore[untyped-decorator]  # Celery has no types
def report_instance_hours() -> int:
    """Share the pool's time out to tenants, hour by hour; returns how many shares there are."""
    return showback.report_instance_hours(now=timezone.now())
