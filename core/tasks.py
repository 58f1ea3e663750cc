"""Celery's view of this app: one service each, safe to run twice."""

from celery import shared_task

from core import epochs
from core.api import idempotency


@shared_task(name="core.tasks.prune_changes")
def prune_changes() -> int:
    """Delete changes that every living reader has long applied; returns how many."""
    return epochs.prune_changes()


@shared_task(name="core.tasks.prune_idempotency_records")
def prune_idempotency_records() -> int:
    """Delete answers that are kept for repeated requests no longer; returns how many."""
    return idempotency.prune_idempotency_records()
