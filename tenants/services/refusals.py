"""Writing down how many requests were refused: sums by the minute, each batch of counts once.

These writes are made by the system and are themselves the record of what happened: no audit rows, no epoch.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from tenants.models import RefusalMinute
from tenants.refusals import RefusalBatch, RefusalCount
from tenants.services.thinning import MOST, delete_before
from tenants.usage import storable_text

_KEYS: Final = {
    "tenant_id": "uuid",
    "key_id": "uuid",
    "model": "text",
    "code": "text",
    "metric": "text",
    "window": "text",
    "minute": "timestamptz",
}
_COLUMNS: Final = _KEYS | {"status": "smallint", "refusals": "bigint"}
_NAMES: Final = ", ".join(f'"{name}"' for name in _COLUMNS)
_KEY_NAMES: Final = ", ".join(f'"{name}"' for name in _KEYS)
_ADD: Final = (
    f"INSERT INTO tenants_refusalminute ({_NAMES}) "  # noqa: S608  # names of our own
    f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in _COLUMNS.values())}) "
    f"ON CONFLICT ({_KEY_NAMES}) "
    "DO UPDATE SET refusals = tenants_refusalminute.refusals + EXCLUDED.refusals"
)
_MARK: Final = (
    "INSERT INTO tenants_ledgermark (process_id, sequence, updated_at) VALUES (%s, %s, now()) "
    "ON CONFLICT (process_id) DO UPDATE SET sequence = EXCLUDED.sequence, updated_at = now() "
    "WHERE tenants_ledgermark.sequence < EXCLUDED.sequence"
)
_LOCK: Final = 7_318_221_904
"""Of the one transaction at a time that takes batches out of the stream, in the order in which they came."""

_Key = tuple[UUID | None, UUID | None, str, str, str, str, int]


def lock_refusals() -> bool:
    """Until the end of the transaction around it: whether nobody else is writing refusals down."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        return bool(cursor.fetchone()[0])


@transaction.atomic
def record_refusals(batches: Sequence[RefusalBatch]) -> int:
    """Add the counts of batches that were not added before; returns how many were. In the order of their sequences."""
    sums: dict[_Key, tuple[int, int]] = {}
    fresh = 0
    for batch in batches:
        with connection.cursor() as cursor:
            cursor.execute(_MARK, [batch.process_id, batch.sequence])
            if not cursor.rowcount:
                continue  # it is in already
        fresh += 1
        for count in batch.counts:
            key = _key(count)
            sums[key] = (count.status, sums.get(key, (0, 0))[1] + count.refusals)
    if sums:
        ordered = sorted(sums, key=str)
        columns: list[list[object]] = [[key[place] for key in ordered] for place in range(6)]
        columns += [
            [datetime.fromtimestamp(key[6], UTC) for key in ordered],
            [sums[key][0] for key in ordered],
            [sums[key][1] for key in ordered],
        ]
        with connection.cursor() as cursor:
            cursor.execute(_ADD, columns)
    return fresh


def _key(count: RefusalCount) -> _Key:
    return (
        count.tenant_id,
        count.key_id,
        storable_text(count.model, 200),
        storable_text(count.code, 64),
        storable_text(count.metric, 32),
        storable_text(count.window, 32),
        count.minute,
    )


def prune_refusals(*, now: datetime, older_than: timedelta, most: int = MOST) -> int:
    """Delete counts of long ago; returns how many. Safe to run twice."""
    return delete_before(RefusalMinute._meta.db_table, "minute", now - older_than, most=most)
