"""Writing the ledger: usage rows with their sums, and how far each process's rows are in.

These writes are made by the system a few hundred at a time and are themselves the record of what
happened: they leave no audit rows and bump no epoch.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from tenants.models import DeadLetter, LedgerMark
from tenants.services.rollups import add_to_rollups
from tenants.usage import UsageRow

LAST_USED_GRANULARITY: Final = timedelta(minutes=1)
MARK_RETENTION: Final = timedelta(days=7)

_COLUMNS: Final = {
    "id": "uuid",
    "tenant_id": "uuid",
    "key_id": "uuid",
    "model": "text",
    "version_id": "uuid",
    "instance_id": "uuid",
    "engine_request_id": "text",
    "door": "text",
    "api": "text",
    "streamed": "boolean",
    "outcome": "text",
    "status": "smallint",
    "error_code": "text",
    "usage_source": "text",
    "input_tokens": "bigint",
    "cached_tokens": "bigint",
    "output_tokens": "bigint",
    "started_at": "timestamptz",
    "duration_ms": "float8",
    "ttft_ms": "float8",
    "attempts": "smallint",
    "process_id": "uuid",
    "sequence": "bigint",
    "subject_id": "uuid",
    "cost_micros": "bigint",
    "price_id": "uuid",
    "reserved_input": "bigint",
    "reserved_output": "bigint",
    "reserved_micros": "bigint",
    "queue_ms": "float8",
    "tokenise_ms": "float8",
    "connect_ms": "float8",
    "first_decode_ms": "float8",
}
_INSERT_ROWS: Final = (
    f"INSERT INTO tenants_usagerecord ({', '.join(_COLUMNS)}) "  # noqa: S608  # names of our own
    f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in _COLUMNS.values())}) "
    "ON CONFLICT DO NOTHING RETURNING id"
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What one call did. `marks`: process -> up to which sequence its rows are in without a gap."""

    inserted: int
    marks: Mapping[UUID, int]


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of one process's sequences.

    `through`: its own word that everything up to there is in the ledger; `done`: those that are in the ledger
    or in the dead letters with this transaction, or were before it.
    """

    through: int
    done: AbstractSet[int]


@dataclass(frozen=True, slots=True)
class Poison:
    """An entry that cannot become a row."""

    entry_id: str
    payload: bytes
    reason: str = field(default="")


@transaction.atomic
def record_usage(
    rows: Sequence[UsageRow],
    *,
    progress: Mapping[UUID, Progress] | None = None,
    poison: Iterable[Poison] = (),
) -> Recorded:
    """Put rows into the ledger, each id once, however often it is given; sums count inserted rows only.

    Marks advance over what `progress` says is done while there is no gap. Raises DataError, IntegrityError,
    ValueError or OverflowError when a row cannot be stored; nothing is then.
    """
    inserted = _insert(rows)
    fresh = list({row.id: row for row in reversed(rows) if row.id in inserted}.values())
    add_to_rollups(fresh)
    for letter in poison:
        DeadLetter.objects.bulk_create(
            [DeadLetter(entry_id=letter.entry_id[:64], payload=letter.payload, reason=letter.reason[:2000])],
            ignore_conflicts=True,
        )
    return Recorded(len(inserted), _advance_marks(progress or {}))


def touch_keys(last_used: Mapping[UUID, float]) -> None:
    """Note when keys were last used (seconds since the epoch), to the minute. No epoch: nothing depends on it."""
    if not last_used:
        return
    ids = sorted(last_used)
    times = [datetime.fromtimestamp(last_used[key_id], UTC) for key_id in ids]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE tenants_apikey SET last_used_at = used.at "
            "FROM unnest(%s::uuid[], %s::timestamptz[]) AS used(id, at) WHERE tenants_apikey.id = used.id "
            "AND (last_used_at IS NULL OR last_used_at <= used.at - make_interval(secs => %s))",
            [ids, times, LAST_USED_GRANULARITY.total_seconds()],
        )


def _insert(rows: Sequence[UsageRow]) -> set[UUID]:
    """The ids that were not there before. A row given twice in one call counts once."""
    unique = list({row.id: row for row in reversed(rows)}.values())
    if not unique:
        return set()
    columns = [
        [datetime.fromtimestamp(row.started_at, UTC) for row in unique]
        if name == "started_at"
        else [getattr(row, name) for row in unique]
        for name in _COLUMNS
    ]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_ROWS, columns)
        return {row[0] for row in cursor.fetchall()}


def _advance_marks(progress: Mapping[UUID, Progress]) -> dict[UUID, int]:
    if not progress:
        return {}
    processes = sorted(progress)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenants_ledgermark (process_id, sequence, updated_at) "
            "SELECT id, 0, now() FROM unnest(%s::uuid[]) AS process(id) ON CONFLICT DO NOTHING",
            [processes],
        )
        cursor.execute(
            "SELECT process_id, sequence FROM tenants_ledgermark WHERE process_id = ANY(%s::uuid[]) "
            "ORDER BY process_id FOR UPDATE",
            [processes],
        )
        marks: dict[UUID, int] = {}
        for process_id, sequence in cursor.fetchall():
            known = progress[process_id]
            mark = max(sequence, known.through)  # the ledger's own mark may have been pruned, or set back
            while mark + 1 in known.done:
                mark += 1
            marks[process_id] = mark
        cursor.execute(
            "UPDATE tenants_ledgermark SET sequence = mark.sequence, updated_at = now() "
            "FROM unnest(%s::uuid[], %s::bigint[]) AS mark(id, sequence) "
            "WHERE tenants_ledgermark.process_id = mark.id AND tenants_ledgermark.sequence < mark.sequence",
            [list(marks), list(marks.values())],
        )
    return marks


def prune_marks(*, now: datetime, older_than: timedelta = MARK_RETENTION) -> int:
    """Delete marks that did not move for long; returns how many. Safe to run twice.

    A process that still lives says itself how far it was (`Progress.through`) when it sends again.
    """
    deleted, _ = LedgerMark.objects.filter(updated_at__lt=now - older_than).delete()
    return deleted
