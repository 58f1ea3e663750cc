"""Sums of the ledger by minute, hour and day: added to with the rows, made anew from them, and thinned out.

Every drain takes the locks of sums in one order (minutes, hours, days, hours and days whatever the key, platform; each
sorted, then the histograms of latency), after its rows. Two drains that sum for the same tenants wait for each other,
as they do at the platform's one row a minute, and never deadlock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from core.ids import uuid7_from
from tenants.models import Tenant
from tenants.policies.periods import hours_that_days_share
from tenants.services import latency
from tenants.usage import FAILURES, UsageRow

_LONGEST_SECONDS: Final = 86_400.0
"""No request is longer: a duration beyond it is a broken clock's."""
ID_MARGIN: Final = timedelta(hours=1)
"""A row's id is of the request's arrival, which is at most this far from `started_at`."""

_SUM_COLUMNS: Final = {
    "requests": "bigint",
    "failures": "bigint",
    "cancelled": "bigint",
    "input_tokens": "bigint",
    "cached_tokens": "bigint",
    "output_tokens": "bigint",
    "duration_ms": "float8",
    "ttft_ms": "float8",
    "ttft_count": "bigint",
    "cost_micros": "bigint",
}
_UNITS: Final = {"minute": 60, "hour": 3600, "day": 86_400}
"""Tables of sums, finest first, and their seconds; all begin at the epoch, in UTC."""


_WHOLE_UNITS: Final = ("hour", "day")
"""Of a tenant and model, whatever the key; minutes are but the edges of a span, and are few."""


def _adding(table: str, keys: Sequence[str], unit: str) -> str:
    columns = {"tenant_id": "uuid"} | dict.fromkeys(keys, "uuid") | {"model": "text", unit: "timestamptz"}
    columns |= _SUM_COLUMNS
    return (
        f"INSERT INTO {table} ({', '.join(columns)}) "  # noqa: S608  # names of our own
        f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in columns.values())}) "
        f"ON CONFLICT ({', '.join(['tenant_id', *keys, 'model', unit])}) DO UPDATE SET "
        + ", ".join(f"{name} = {table}.{name} + EXCLUDED.{name}" for name in _SUM_COLUMNS)
    )


_ADD: Final = {unit: _adding(f"tenants_usage{unit}", ["key_id"], unit) for unit in _UNITS}
_ADD_WHOLE: Final = {unit: _adding(f"tenants_tenant{unit}", [], unit) for unit in _WHOLE_UNITS}

_PLATFORM_COLUMNS: Final = {"minute": "timestamptz", "requests": "bigint", "failures": "bigint", "tokens": "bigint"}
_ADD_TO_PLATFORM: Final = (
    f"INSERT INTO tenants_platformminute ({', '.join(_PLATFORM_COLUMNS)}) "  # noqa: S608  # names of our own
    f"SELECT * FROM unnest({', '.join(f'%s::{kind}[]' for kind in _PLATFORM_COLUMNS.values())}) "
    "ON CONFLICT (minute) DO UPDATE SET "
    + ", ".join(f"{name} = tenants_platformminute.{name} + EXCLUDED.{name}" for name in list(_PLATFORM_COLUMNS)[1:])
)


@dataclass(slots=True)
class _Sums:
    requests: int = 0
    failures: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    duration_ms: float = 0.0
    ttft_ms: float = 0.0
    ttft_count: int = 0
    cost_micros: int = 0

    def add(self, row: UsageRow) -> None:
        self.requests += 1
        self.failures += row.outcome in FAILURES
        self.cancelled += row.outcome == "cancelled"
        self.input_tokens += row.input_tokens or 0
        self.cached_tokens += row.cached_tokens or 0
        self.output_tokens += row.output_tokens or 0
        self.duration_ms += row.duration_ms or 0.0
        if row.ttft_ms is not None:
            self.ttft_ms += row.ttft_ms
            self.ttft_count += 1
        self.cost_micros += row.cost_micros


def add_to_rollups(rows: Sequence[UsageRow]) -> None:
    """Count rows that were inserted in this transaction, each once."""
    for unit in _UNITS:
        _add(rows, unit, by_key=True)
    for unit in _WHOLE_UNITS:
        _add(rows, unit, by_key=False)
    _add_to_platform(rows)
    latency.add_to_latency(rows)


def _add(rows: Sequence[UsageRow], unit: str, *, by_key: bool) -> None:
    seconds = _UNITS[unit]
    sums: dict[tuple[UUID, UUID | None, str, int], _Sums] = {}
    for row in rows:
        key_id = row.key_id if by_key else None
        key = (row.tenant_id, key_id, row.model, int(row.started_at // seconds) * seconds)
        sums.setdefault(key, _Sums()).add(row)
    if not sums:
        return
    ordered = sorted(sums, key=lambda key: (key[0], str(key[1]), key[2], key[3]))  # one lock order for all drains
    keys: list[list[object]] = [[key[1] for key in ordered]] if by_key else []
    columns: list[list[object]] = [
        [key[0] for key in ordered],
        *keys,
        [key[2] for key in ordered],
        [datetime.fromtimestamp(key[3], UTC) for key in ordered],
        *([getattr(sums[key], name) for key in ordered] for name in _SUM_COLUMNS),
    ]
    with connection.cursor() as cursor:
        cursor.execute((_ADD if by_key else _ADD_WHOLE)[unit], columns)


def _add_to_platform(rows: Sequence[UsageRow]) -> None:
    sums: dict[int, _Sums] = {}
    for row in rows:
        ended_at = row.started_at + min((row.duration_ms or 0.0) / 1000, _LONGEST_SECONDS)
        sums.setdefault(int(ended_at // 60) * 60, _Sums()).add(row)
    if not sums:
        return
    minutes = sorted(sums)  # one lock order for all drains
    columns: list[list[object]] = [
        [datetime.fromtimestamp(minute, UTC) for minute in minutes],
        [sums[minute].requests for minute in minutes],
        [sums[minute].failures for minute in minutes],
        [sums[minute].input_tokens + sums[minute].output_tokens for minute in minutes],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_ADD_TO_PLATFORM, columns)


_LOCK: Final = (
    "LOCK TABLE tenants_usageminute, tenants_usagehour, tenants_usageday, tenants_tenanthour, tenants_tenantday "
    "IN SHARE ROW EXCLUSIVE MODE"
)
_FROM_ROWS: Final = (
    "SELECT tenant_id, key_id, model, date_trunc('{unit}', started_at, 'UTC'), count(*), "
    "count(*) FILTER (WHERE outcome IN ('failed', 'truncated', 'lost')), "
    "count(*) FILTER (WHERE outcome = 'cancelled'), coalesce(sum(input_tokens), 0), coalesce(sum(cached_tokens), 0), "
    "coalesce(sum(output_tokens), 0), coalesce(sum(duration_ms), 0), coalesce(sum(ttft_ms), 0), count(ttft_ms), "
    "sum(cost_micros) FROM tenants_usagerecord "
    "WHERE id >= %s AND id < %s AND started_at >= %s AND started_at < %s GROUP BY 1, 2, 3, 4"
)


def rebuild_day(day: datetime) -> int:
    """Make the sums of one day (UTC) anew from the ledger's rows; returns of how many. Safe to run twice.

    Drains wait meanwhile: one that has put rows in has added them to all sums or waits to, so that no row is
    counted twice or not at all. Histograms are many times dearer: they are made anew by the hour, and drains get their
    turn in between.
    """
    since = day.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    made = _rebuild_sums(since, since + timedelta(days=1))
    for hour in range(24):
        first = since + timedelta(hours=hour)
        until = first + timedelta(hours=1)
        latency.remake_latency(first, until, (_first_id(first - ID_MARGIN), _first_id(until + ID_MARGIN)))
    return made


@transaction.atomic
def _rebuild_sums(since: datetime, until: datetime) -> int:
    ids = _first_id(since - ID_MARGIN), _first_id(until + ID_MARGIN)
    bounds: tuple[UUID | datetime, ...] = (*ids, since, until)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(_LOCK)
        for unit in _UNITS:
            columns = ", ".join(["tenant_id", "key_id", "model", unit, *_SUM_COLUMNS])
            table = f"tenants_usage{unit}"
            cursor.execute(f"DELETE FROM {table} WHERE {unit} >= %s AND {unit} < %s", [since, until])  # noqa: S608
            cursor.execute(f"INSERT INTO {table} ({columns}) {_FROM_ROWS.format(unit=unit)}", bounds)
        for unit in _WHOLE_UNITS:
            sums = ", ".join(_SUM_COLUMNS)
            totals = ", ".join(f"sum({name})" for name in _SUM_COLUMNS)
            cursor.execute(f"DELETE FROM tenants_tenant{unit} WHERE {unit} >= %s AND {unit} < %s", [since, until])  # noqa: S608
            cursor.execute(
                f"INSERT INTO tenants_tenant{unit} (tenant_id, model, {unit}, {sums}) "  # noqa: S608
                f"SELECT tenant_id, model, {unit}, {totals} FROM tenants_usage{unit} "
                f"WHERE {unit} >= %s AND {unit} < %s GROUP BY 1, 2, 3",
                [since, until],
            )
        cursor.execute("SELECT coalesce(sum(requests), 0) FROM tenants_usageday WHERE day = %s", [since])
        return int(cursor.fetchone()[0])


def _first_id(moment: datetime) -> UUID:
    return uuid7_from(int(moment.timestamp() * 1000))


MINUTES_KEPT: Final = timedelta(days=90)
_AROUND_MONTHS: Final = (15, 13)
"""Hours before and after a month begins in UTC, in which it begins somewhere."""
_PRUNE: Final = """
DELETE FROM tenants_usageminute WHERE ctid = ANY(ARRAY(
    SELECT minutes.ctid FROM tenants_usageminute AS minutes
    WHERE minute < %(until)s
    AND NOT EXISTS (
        SELECT FROM generate_series(-1, 1) AS step,
        LATERAL (SELECT date_trunc('month', minute, 'UTC') + make_interval(months => step) AS month) AS turn
        WHERE minute >= month - make_interval(hours => %(before)s)
        AND minute < month + make_interval(hours => %(after)s)
    )
    AND NOT EXISTS (
        SELECT FROM tenants_tenant AS tenant
        JOIN unnest(%(zones)s::text[], %(hours)s::int[]) AS edge(zone, hour) ON edge.zone = tenant.time_zone
        WHERE tenant.id = minutes.tenant_id AND edge.hour = extract(hour FROM minute AT TIME ZONE 'UTC')
    )
    AND EXISTS (
        SELECT FROM tenants_usagehour AS hours
        WHERE hours.tenant_id = minutes.tenant_id AND hours.key_id IS NOT DISTINCT FROM minutes.key_id
        AND hours.model = minutes.model AND hours.hour = date_trunc('hour', minutes.minute, 'UTC')
    )
    LIMIT %(most)s
))
"""


def prune_minutes(*, now: datetime, older_than: timedelta = MINUTES_KEPT, most: int = 20_000) -> int:
    """Delete old sums by the minute whose hours there are; returns how many. Safe to run twice.

    Those around the first of a month stay for good: where a zone is not whole hours off UTC, a statement's first and
    last hour is partly another month's, and is summed out of minutes. For days of the same, tenants of such zones keep
    the minutes of the hour in which their days begin.
    """
    before, after = _AROUND_MONTHS
    zones = Tenant.objects.order_by().values_list("time_zone", flat=True).distinct()
    edges = [(zone, hour) for zone in zones for hour in hours_that_days_share(zone, now.timestamp())]
    values: dict[str, datetime | int | list[str] | list[int]] = {
        "until": now - older_than,
        "before": before,
        "after": after,
        "zones": [zone for zone, _ in edges],
        "hours": [hour for _, hour in edges],
        "most": most,
    }
    deleted = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(_PRUNE, values)  # a statement each, so that no drain waits long
            found: int = cursor.rowcount
        deleted += found
        if found < most:
            return deleted
