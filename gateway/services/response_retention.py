"""Deletes stored responses and conversations whose time is over, or whose tenant keeps them for less now."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection

from core.ids import uuid7_from
from tenants.models import Tenant

BATCH: Final = 500
MOST_BATCHES: Final = 100

_DELETE: Final = """
DELETE FROM {table} WHERE id IN (
    SELECT id FROM {table} WHERE expires_at <= %(now)s LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)
"""
# Ids are in the order of time, and of a tenant's there is an index; of `created_at` there is none.
_DELETE_SHORTENED: Final = """
DELETE FROM {table} WHERE id IN (
    SELECT id FROM {table}
    WHERE tenant_id = %(tenant)s AND id < %(first)s AND created_at <= %(since)s
    LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)
"""


def delete_expired_responses(*, now: datetime, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """Delete what may not be kept any more; returns how many. Safe to run twice, and at the same time.

    Each batch is a transaction of its own; what `most_batches` (for each tenant) do not reach, the next run does. Not
    audited: it is what the tenant's setting says, and that is.
    """
    return _delete_expired("gateway_storedresponse", "response_retention_days", now, batch, most_batches)


def delete_expired_conversations(*, now: datetime, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """The same of conversations."""
    return _delete_expired("gateway_storedconversation", "conversation_retention_days", now, batch, most_batches)


def _delete_expired(table: str, setting: str, now: datetime, batch: int, most_batches: int) -> int:
    deleted = _delete(_DELETE.format(table=table), {"now": now}, batch, most_batches)
    shortened = _DELETE_SHORTENED.format(table=table)
    for tenant_id, days in Tenant.objects.values_list("pk", setting):
        since = now - timedelta(days=days)
        first = uuid7_from(int(since.timestamp() * 1000) + 1)
        deleted += _delete(shortened, {"tenant": tenant_id, "first": first, "since": since}, batch, most_batches)
    return deleted


def _delete(statement: str, members: Mapping[str, Any], batch: int, most_batches: int) -> int:
    deleted = 0
    with connection.cursor() as cursor:
        for _ in range(most_batches):
            cursor.execute(statement, {**members, "batch": batch})
            deleted += cursor.rowcount
            if cursor.rowcount < batch:
                break
    return deleted
