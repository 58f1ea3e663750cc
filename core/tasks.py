"""Celery's view of this app: one service each, safe to run twice."""

import time
from typing import Final

from celery import shared_task
from django.core.cache import cache

from core import epochs
from core.api import idempotency

BATCH_MARK: Final = "batch:alive"
"""Where it stands in the cache when beat last sent, and a worker did, a task (seconds since the epoch)."""


@shared_task(name="core.tasks.mark_batch")
def mark_batch() -> None:
    """Leave word that batch work is done: both beat and a worker are needed for it.

    For as long as the cache lives: how long ago it was is of use most where it was long ago.
    """
    cache.set(BATCH_MARK, time.time(), timeout=None)


@shared_task(name="core.tasks.prune_changes")
def prune_changes() -> int:
    """Delete changes that every living reader has long applied; returns how many."""
    return epochs.prune_changes()


@shared_task(name="core.tasks.prune_idempotency_records")
def prune_idempotency_records() -> int:
    """Delete answers that are kept for repeated requests no longer; returns how many."""
    return idempotency.prune_idempotency_records()
