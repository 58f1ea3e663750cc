"""How many requests there were and how long they took, by model: from the histograms of the ledger, never from rows."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection

from core.telemetry import buckets
from tenants.models import LatencyHour, LatencyMinute, ModelLatencyHour, ModelLatencyMinute
from tenants.models.latency import COUNTS, HISTOGRAMS

_MINUTES_SURE: Final = timedelta(days=30)
"""So long the sums by the minute are there for certain: GATEHOUSE_MINUTES_KEPT_DAYS is 31 at least. What begins or ends
before is summed in whole hours."""


@dataclass(frozen=True, slots=True)
class LatencySums:
    """Of one model, or "" of all. Counts of each bucket, as in tenants.models.LatencyMinute."""

    model: str
    requests: int
    failures: int
    faults: int
    cancelled: int
    ttft: Sequence[int]
    tpot: Sequence[int]
    queue: Sequence[int]
    duration: Sequence[int]

    def quantile_ms(self, of: str, share: float) -> float | None:
        """The time that `share` of them stayed under, in milliseconds; `of` is ttft, tpot, queue or duration."""
        found = buckets.quantile(HISTOGRAMS[of], getattr(self, of), share)
        return None if found is None else found * 1000


def _summed(name: str, places: int) -> str:
    return f"ARRAY[{', '.join(f'coalesce(sum({name}[{place}]), 0)::bigint' for place in range(1, places + 1))}]"


_HOUR: Final = timedelta(hours=1)


def latency_by_model(
    *,
    since: datetime,
    until: datetime,
    tenant_id: UUID | None = None,
    of: Collection[str] = tuple(HISTOGRAMS),
) -> list[LatencySums]:
    """Each model's sums, the busiest first; of all tenants, or of one. To the minute.

    `of`: the histograms that are wanted, which is what it costs; the others are empty.
    """
    if tenant_id is None:
        minutes, hours = ModelLatencyMinute._meta.db_table, ModelLatencyHour._meta.db_table
    else:
        minutes, hours = LatencyMinute._meta.db_table, LatencyHour._meta.db_table
    names = [name for name in HISTOGRAMS if name in of]
    columns = ", ".join(["model", *COUNTS, *names])
    own = "" if tenant_id is None else "tenant_id = %(tenant)s AND "
    first, last = _hours_within(since, until)
    sums = ", ".join(
        [
            *(f"sum({name})::bigint" for name in COUNTS),
            *(
                _summed(name, len(bounds) + 1) if name in names else "ARRAY[]::bigint[]"
                for name, bounds in HISTOGRAMS.items()
            ),
        ]
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT model, {sums} FROM ("  # noqa: S608  # names of our own
            f"SELECT {columns} FROM {hours} WHERE {own}hour >= %(first)s AND hour < %(last)s UNION ALL "
            f"SELECT {columns} FROM {minutes} WHERE {own}minute >= %(since)s AND minute < least(%(first)s, %(until)s) "
            f"UNION ALL SELECT {columns} FROM {minutes} WHERE {own}minute >= greatest(%(last)s, %(first)s) "
            "AND minute < %(until)s) AS parts GROUP BY model ORDER BY 2 DESC, 1",
            {"tenant": tenant_id, "since": since.replace(second=0, microsecond=0), "until": until}
            | {"first": first, "last": last},
        )
        return [LatencySums(*row) for row in cursor.fetchall()]


def _hours_within(since: datetime, until: datetime) -> tuple[datetime, datetime]:
    """The first of the whole hours of a range, and their end; a range without one has the same moment twice."""
    floor = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    end = until.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    sure_from = datetime.now(UTC) - _MINUTES_SURE
    if until < sure_from and end < until:
        end += _HOUR
    if since < sure_from:
        return floor, max(floor, end)
    first = floor if floor == since else floor + _HOUR
    return first, max(first, end)


def all_models(sums: Sequence[LatencySums]) -> LatencySums:
    """The sums of several models as one."""

    def added(name: str) -> list[int]:
        return [sum(column) for column in zip(*(getattr(one, name) for one in sums), strict=True)]

    return LatencySums(
        "",
        sum(one.requests for one in sums),
        sum(one.failures for one in sums),
        sum(one.faults for one in sums),
        sum(one.cancelled for one in sums),
        *(added(name) for name in HISTOGRAMS),
    )


_BUSIEST: Final = """
SELECT tenant_id, sum(requests)::bigint FROM tenants_latencyminute
WHERE minute >= %s AND minute < %s GROUP BY tenant_id ORDER BY 2 DESC, 1 LIMIT %s
"""


def busiest_tenants(*, until: datetime, most: int) -> list[tuple[UUID, int]]:
    """Those with the most requests in the hour before `until`, and how many."""
    with connection.cursor() as cursor:
        cursor.execute(_BUSIEST, [until - timedelta(hours=1), until, most])
        return [(row[0], row[1]) for row in cursor.fetchall()]
