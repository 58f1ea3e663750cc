"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task

from core import epochs


@shared_task(name="core.tasks.prune_changes")  # type: ignore[untyped-decorator]  # Celery publishes no types
def prune_changes() -> int:
    """Delete changes that every living reader has long applied; returns how many."""
    return epochs.prune_changes()
