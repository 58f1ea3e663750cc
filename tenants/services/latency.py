"""Histograms of latency in the ledger: added to with the rows, made anew from them, and thinned out.

The counts are of the same buckets as Prometheus's (core.telemetry.buckets), and of the same requests. Locks are taken
after those of the sums, in one order: by tenant before over all, minutes before hours, each sorted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connection, transaction

from core.telemetry import buckets
from tenants.models import LatencyHour, LatencyMinute, ModelLatencyHour, ModelLatencyMinute
from tenants.models.latency import COUNTS, HISTOGRAMS
from tenants.services.thinning import MOST, delete_before
from tenants.usage import FAILURES, UsageRow

HOURS_KEPT: Final = timedelta(days=400)

_SECONDS: Final = {
    "ttft": "ttft_ms / 1000.0",
    "tpot": "CASE WHEN output_tokens >= 2 AND duration_ms IS NOT NULL AND ttft_ms IS NOT NULL THEN "
    "greatest(0, duration_ms / 1000.0 - ttft_ms / 1000.0) / (output_tokens - 1) END",
    "queue": "queue_ms / 1000.0",
    "duration": "duration_ms / 1000.0",
}
"""The same times as `_places` takes, as expressions over a row of the ledger."""


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    unit: str
    seconds: int
    by_tenant: bool

    @property
    def keys(self) -> dict[str, str]:
        own = {"tenant_id": "uuid"} if self.by_tenant else {}
        return own | {"model": "text", "version_id": "uuid", self.unit: "timestamptz"}


_TABLES: Final = (
    _Table(LatencyMinute._meta.db_table, "minute", 60, by_tenant=True),
    _Table(LatencyHour._meta.db_table, "hour", 3600, by_tenant=True),
    _Table(ModelLatencyMinute._meta.db_table, "minute", 60, by_tenant=False),
    _Table(ModelLatencyHour._meta.db_table, "hour", 3600, by_tenant=False),
)
TABLES: Final = tuple(table.name for table in _TABLES)
_LOCK: Final = f"LOCK TABLE {', '.join(TABLES)} IN SHARE ROW EXCLUSIVE MODE"


def _adding(table: _Table) -> str:
    columns = table.keys | dict.fromkeys(COUNTS, "bigint") | dict.fromkeys(HISTOGRAMS, "text")
    picked = [f"{name}::bigint[]" if name in HISTOGRAMS else name for name in columns]
    added = [f"{name} = {table.name}.{name} + EXCLUDED.{name}" for name in COUNTS]
    added += [
        f"{name} = ARRAY(SELECT coalesce(mine, 0) + coalesce(theirs, 0) "  # noqa: S608  # names of our own
        f"FROM unnest({table.name}.{name}, "
        f"EXCLUDED.{name}) WITH ORDINALITY AS pair(mine, theirs, place) ORDER BY place)"
        for name in HISTOGRAMS
    ]
    return (
        f"INSERT INTO {table.name} ({', '.join(columns)}) SELECT {', '.join(picked)} "  # noqa: S608  # our own names
        f"FROM unnest({', '.join(f'%s::{kind}[]' for kind in columns.values())}) AS added({', '.join(columns)}) "
        f"ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {', '.join(added)}"
    )


def _making(table: _Table) -> str:
    """Of the rows of a day. Buckets as bisect_left finds them: how many bounds are below, by counting those that are
    not, since width_bucket puts what is on a bound above it."""
    sides = {
        name: f"{len(bounds)} - width_bucket(-({_SECONDS[name]}), "
        f"ARRAY[{', '.join(str(-bound) for bound in reversed(bounds))}]::float8[])"
        for name, bounds in HISTOGRAMS.items()
    }
    own = "tenant_id, " if table.by_tenant else ""
    counted = ", ".join(
        "ARRAY[" + ", ".join(f"count(*) FILTER (WHERE {name} = {place})" for place in range(len(bounds) + 1)) + "]"
        for name, bounds in HISTOGRAMS.items()
    )
    failed = "outcome IN ('failed', 'truncated', 'lost')"
    return (
        f"INSERT INTO {table.name} ({', '.join([*table.keys, *COUNTS, *HISTOGRAMS])}) "  # noqa: S608  # our own names
        f"SELECT {own}model, version_id, at, count(*), count(*) FILTER (WHERE {failed}), "
        f"count(*) FILTER (WHERE {failed} AND (outcome <> 'failed' OR status >= 500)), "
        f"count(*) FILTER (WHERE outcome = 'cancelled'), {counted} FROM ("
        f"SELECT {own}model, version_id, outcome, status, date_trunc('{table.unit}', started_at, 'UTC') AS at, "
        f"{', '.join(f'{side} AS {name}' for name, side in sides.items())} FROM tenants_usagerecord "
        "WHERE id >= %s AND id < %s AND started_at >= %s AND started_at < %s"
        f") AS found GROUP BY {own}model, version_id, at"
    )


_ADD: Final = {table.name: _adding(table) for table in _TABLES}


def _counter(bounds: buckets.Bounds) -> Callable[[], list[int]]:
    return lambda: [0] * (len(bounds) + 1)


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    failures: int = 0
    faults: int = 0
    cancelled: int = 0
    ttft: list[int] = field(default_factory=_counter(buckets.TTFT))
    tpot: list[int] = field(default_factory=_counter(buckets.TPOT))
    queue: list[int] = field(default_factory=_counter(buckets.QUEUE))
    duration: list[int] = field(default_factory=_counter(buckets.DURATION))

    def add(self, row: UsageRow, places: "_Places") -> None:
        failed = row.outcome in FAILURES
        self.requests += 1
        self.failures += failed
        self.faults += failed and (row.outcome != "failed" or row.status >= 500)
        self.cancelled += row.outcome == "cancelled"
        ttft, tpot, queue, duration = places
        if ttft is not None:
            self.ttft[ttft] += 1
        if tpot is not None:
            self.tpot[tpot] += 1
        if queue is not None:
            self.queue[queue] += 1
        if duration is not None:
            self.duration[duration] += 1


_Places = tuple[int | None, int | None, int | None, int | None]
"""The bucket of each histogram that a row is counted in; None: not measured."""


def _places(row: UsageRow) -> _Places:
    seconds = None if row.duration_ms is None else row.duration_ms / 1000
    first = None if row.ttft_ms is None else row.ttft_ms / 1000
    each = None
    if seconds is not None and first is not None:
        each = buckets.time_per_output_token(seconds, first, row.output_tokens)
    return (
        None if first is None else buckets.bucket_of(buckets.TTFT, first),
        None if each is None else buckets.bucket_of(buckets.TPOT, each),
        None if row.queue_ms is None else buckets.bucket_of(buckets.QUEUE, row.queue_ms / 1000),
        None if seconds is None else buckets.bucket_of(buckets.DURATION, seconds),
    )


def add_to_latency(rows: Sequence[UsageRow]) -> None:
    """Count rows that were inserted in this transaction, each once."""
    placed = [(row, _places(row)) for row in rows]
    for table in _TABLES:
        _add(table, placed)


def _literal(counts: Sequence[int]) -> str:
    """As PostgreSQL writes an array: arrays of arrays come out of unnest as one."""
    return "{" + ",".join(map(str, counts)) + "}"


def _add(table: _Table, rows: Sequence[tuple[UsageRow, _Places]]) -> None:
    sums: dict[tuple[UUID | None, str, UUID | None, int], _Sums] = {}
    for row, places in rows:
        at = int(row.started_at // table.seconds) * table.seconds
        key = (row.tenant_id if table.by_tenant else None, row.model, row.version_id, at)
        found = sums.get(key)
        if found is None:
            found = sums[key] = _Sums()
        found.add(row, places)
    if not sums:
        return
    ordered = sorted(sums, key=lambda key: (str(key[0]), key[1], str(key[2]), key[3]))  # one lock order for all drains
    columns: list[list[Any]] = [[key[0] for key in ordered]] if table.by_tenant else []
    columns += [
        [key[1] for key in ordered],
        [key[2] for key in ordered],
        [datetime.fromtimestamp(key[3], UTC) for key in ordered],
        *([getattr(sums[key], name) for key in ordered] for name in COUNTS),
        *([_literal(getattr(sums[key], name)) for key in ordered] for name in HISTOGRAMS),
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ADD[table.name], columns)


@transaction.atomic
def remake_latency(since: datetime, until: datetime, ids: tuple[UUID, UUID]) -> None:
    """Make the histograms between two moments (whole hours) anew, of rows with ids in a range around them.

    Drains wait meanwhile: one that has put rows in has added them here or waits to. Safe to run twice.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(_LOCK)
        for table in _TABLES:
            cursor.execute(
                f"DELETE FROM {table.name} WHERE {table.unit} >= %s AND {table.unit} < %s",  # noqa: S608  # our names
                [since, until],
            )
            cursor.execute(_making(table), [*ids, since, until])


def prune_latency(*, now: datetime, minutes_kept: timedelta, most: int = MOST) -> int:
    """Delete minutes and hours that no page and no objective reads any more; returns how many. Safe to run twice."""
    kept = {"minute": minutes_kept, "hour": HOURS_KEPT}
    return sum(delete_before(table.name, table.unit, now - kept[table.unit], most=most) for table in _TABLES)
