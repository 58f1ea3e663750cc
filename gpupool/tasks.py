"""Periodic work of this app."""

from celery import shared_task
from django.utils import timezone

from gpupool import services


@shared_task  # type: ignore[untyped-decorator]  # Celery publishes no types
def compact_lease_store() -> int:
    """Drop old events of the lease store; safe to run twice."""
    return services.compact_store_events(now=timezone.now())
