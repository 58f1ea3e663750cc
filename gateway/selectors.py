"""Reads of this app."""

from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from gateway.models import EngineDrift


def list_drift(*, since: datetime | None = None, **filters: Any) -> QuerySet[EngineDrift]:
    """The ledger beside engines' counters, newest first. `filters`: instance_id, engine, model, restarted."""
    windows = EngineDrift.objects.order_by("-id").filter(**filters)
    return windows if since is None else windows.filter(until__gte=since)
