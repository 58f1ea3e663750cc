"""How many requests there were and how long they took, by model: from the histograms of the ledger, never from rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection

from core.telemetry import buckets
from tenants.models import LatencyHour, LatencyMinute, ModelLatencyHour, ModelLatencyMinute

_BY_MINUTE: Final = timedelta(hours=24)
"""Longest range that is summed from minutes; a longer one is from whole hours."""

_HISTOGRAMS: Final = {
    "ttft": buckets.TTFT, "tpot": buckets.TPOT, "queue": buckets.QUEUE, "duration": buckets.DURATION,
}  # fmt: skip


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
        found = buckets.quantile(_HISTOGRAMS[of], getattr(self, of), share)
        return None if found is None else found * 1000


def _summed(name: str, places: int) -> str:
    return f"ARRAY[{', '.join(f'coalesce(sum({name}[{place}]), 0)::bigint' for place in range(1, places + 1))}]"


_SUMS: Final = ", ".join(
    [
        *(f"sum({name})::bigint" for name in ("requests", "failures", "faults", "cancelled")),
        *(_summed(name, len(bounds) + 1) for name, bounds in _HISTOGRAMS.items()),
    ]
)


def latency_by_model(*, since: datetime, until: datetime, tenant_id: UUID | None = None) -> list[LatencySums]:
    """Each model's sums, the busiest first; of all tenants, or of one. Over a day it is of whole hours."""
    fine = until - since <= _BY_MINUTE
    unit = "minute" if fine else "hour"
    if tenant_id is None:
        table = (ModelLatencyMinute if fine else ModelLatencyHour)._meta.db_table
    else:
        table = (LatencyMinute if fine else LatencyHour)._meta.db_table
    own = "" if tenant_id is None else "tenant_id = %(tenant)s AND "
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT model, {_SUMS} FROM {table} WHERE {own}{unit} >= %(since)s AND {unit} < %(until)s "  # noqa: S608
            "GROUP BY model ORDER BY 2 DESC, 1",
            {"tenant": tenant_id, "since": _floor(since, unit), "until": until},
        )
        return [LatencySums(*row) for row in cursor.fetchall()]


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
        *(added(name) for name in _HISTOGRAMS),
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


def _floor(moment: datetime, unit: str) -> datetime:
    found = moment.astimezone(UTC).replace(second=0, microsecond=0)
    return found if unit == "minute" else found.replace(minute=0)
