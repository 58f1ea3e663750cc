"""Deletes stored responses whose time is over, by themselves or because their tenant keeps them for less now."""

from datetime import datetime
from typing import Final

from django.db import connection

BATCH: Final = 500
MOST_BATCHES: Final = 100

_DELETE: Final = """
DELETE FROM gateway_storedresponse WHERE id IN (
    SELECT id FROM gateway_storedresponse WHERE expires_at <= %(now)s LIMIT %(batch)s FOR UPDATE SKIP LOCKED
)
"""
_DELETE_SHORTENED: Final = """
DELETE FROM gateway_storedresponse WHERE id IN (
    SELECT stored.id FROM tenants_tenant AS tenant JOIN gateway_storedresponse AS stored ON stored.tenant_id = tenant.id
    WHERE stored.created_at <= %(now)s - make_interval(days => tenant.response_retention_days)
    LIMIT %(batch)s FOR UPDATE OF stored SKIP LOCKED
)
"""


def delete_expired_responses(*, now: datetime, batch: int = BATCH, most_batches: int = MOST_BATCHES) -> int:
    """Delete what may not be kept any more; returns how many. Safe to run twice, and at the same time.

    Each batch is a transaction of its own; what `most_batches` do not reach, the next run does. Not audited: it is
    what the tenant's setting says, and that is.
    """
    deleted = 0
    with connection.cursor() as cursor:
        for statement in (_DELETE, _DELETE_SHORTENED):
            for _ in range(most_batches):
                cursor.execute(statement, {"now": now, "batch": batch})
                deleted += cursor.rowcount
                if cursor.rowcount < batch:
                    break
    return deleted
