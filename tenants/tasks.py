"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task
from django.utils import timezone

from tenants.services import ledger, partitions


@shared_task(name="tenants.tasks.ensure_partitions")  # type: ignore[untyped-decorator]  # Celery publishes no types
def ensure_partitions() -> list[str]:
    """Make the ledger's partitions ahead of time; returns the names of those made."""
    return partitions.ensure_partitions()


@shared_task(name="tenants.tasks.prune_marks")  # type: ignore[untyped-decorator]  # Celery publishes no types
def prune_marks() -> int:
    """Delete ledger marks of processes that are long gone; returns how many."""
    return ledger.prune_marks(now=timezone.now())
