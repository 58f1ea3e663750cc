"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task

from tenants.services import partitions


@shared_task(name="tenants.tasks.ensure_partitions")  # type: ignore[untyped-decorator]  # Celery publishes no types
def ensure_partitions() -> list[str]:
    """Make the ledger's partitions ahead of time; returns the names of those made."""
    return partitions.ensure_partitions()
