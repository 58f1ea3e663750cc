"""Celery's view of this app: safe to run twice."""

from celery import shared_task
from django.utils import timezone

from dashboard.exporting import write_next_export
from dashboard.services.exports import prune_exports as prune


@shared_task(name="dashboard.tasks.write_exports")
def write_exports() -> int:
    """Write the export that has waited longest; returns how many."""
    return write_next_export()


@shared_task(name="dashboard.tasks.prune_exports")
def prune_exports() -> int:
    """Delete exports that nobody fetches any more; returns how many rows."""
    return prune(now=timezone.now())
