"""The UsageStore over PostgreSQL: one small lane, because nobody asks for their usage often."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection

from core.ids import uuid7_from
from gateway.relay.own_usage import UsageAsk, UsageRead, UsageRow, UsageUnavailable
from gateway.services.lanes import DatabaseLanes
from tenants.models import Installation
from tenants.policies.periods import period_at
from tenants.reads.usage import sum_usage

DEADLINE_SECONDS: Final = 3.0
_RETRY_SECONDS: Final = 5.0
_SUMS: Final = ("requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "cost_micros")
_SLACK_MS: Final = 3_600_000
"""An id may be that much older or newer than its request's start: ids never go back with a clock."""

_OF_SUBJECT: Final = """
SELECT width_bucket(started_at, %(starts)s::timestamptz[]) - 1, model, count(*),
    count(*) FILTER (WHERE outcome IN ('failed', 'truncated', 'lost')),
    coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(cached_tokens), 0)::bigint,
    coalesce(sum(output_tokens), 0)::bigint, sum(cost_micros)::bigint
FROM tenants_usagerecord
WHERE subject_id = %(subject)s AND tenant_id = %(tenant)s AND id >= %(first)s AND id < %(last)s
    AND started_at >= %(since)s AND started_at < %(until)s
GROUP BY 1, 2
"""


class DatabaseUsageStore:
    """See gateway.relay.own_usage.UsageStore; used on one event loop."""

    def __init__(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._lanes = DatabaseLanes("usage", count=1, deadline_seconds=deadline_seconds, unavailable=_unavailable)

    async def read(self, ask: UsageAsk) -> UsageRead:
        return await self._lanes.call(lambda: _read(ask), read_only=True)

    async def aclose(self) -> None:
        """End all calls and give the connection up."""
        await self._lanes.aclose()


def _unavailable() -> UsageUnavailable:
    return UsageUnavailable(retry_after_seconds=_RETRY_SECONDS)


def _read(ask: UsageAsk) -> UsageRead:
    days = list(_days(ask)) if ask.by_day else [(None, ask.since)]
    starts = [datetime.fromtimestamp(start, UTC) for _, start in days]
    until = datetime.fromtimestamp(ask.until, UTC)
    found: Iterable[tuple[Any, ...]]
    if ask.key_id is not None:
        found = _of_key(ask.tenant_id, ask.key_id, starts, until)
    else:
        assert ask.subject_id is not None
        found = _of_subject(ask.tenant_id, ask.subject_id, starts, until)
    sums: dict[tuple[int, str | None], list[int]] = {}
    for bucket, model, *values in found:
        place = sums.setdefault((bucket, model if ask.by_model else None), [0] * len(_SUMS))
        for index, value in enumerate(values):
            place[index] += value
    rows = [
        UsageRow(
            day=day.isoformat() if (day := days[bucket][0]) is not None else None,
            model=model,
            **dict(zip(_SUMS, values, strict=True)),
        )
        for (bucket, model), values in sorted(sums.items(), key=lambda item: (item[0][0], item[0][1] or ""))
    ]
    return UsageRead(Installation.objects.values_list("currency", flat=True).first() or "", rows)


def _days(ask: UsageAsk) -> Iterator[tuple[date, int]]:
    """Days of the tenant's zone, the first and last cut to what was asked for."""
    zone, start = ZoneInfo(ask.time_zone), float(ask.since)
    while start < ask.until:
        yield datetime.fromtimestamp(start, zone).date(), int(start)
        start = period_at("day", ask.time_zone, start).end


def _of_key(tenant_id: UUID, key_id: UUID, starts: list[datetime], until: datetime) -> Iterator[tuple[Any, ...]]:
    rows = sum_usage([tenant_id], starts=starts, until=until, by=["bucket", "model"], sums=_SUMS, key_ids=[key_id])
    for row in rows:
        yield row["bucket"], row["model"], *(row[name] for name in _SUMS)


def _of_subject(tenant_id: UUID, subject_id: UUID, starts: list[datetime], until: datetime) -> list[tuple[Any, ...]]:
    """Out of the ledger itself: rollups do not know subjects."""
    values: dict[str, Any] = {
        "starts": starts,
        "subject": subject_id,
        "tenant": tenant_id,
        "since": starts[0],
        "until": until,
        "first": uuid7_from(max(0, int(starts[0].timestamp() * 1000) - _SLACK_MS)),
        "last": uuid7_from(int(until.timestamp() * 1000) + _SLACK_MS),
    }
    with connection.cursor() as cursor:
        cursor.execute(_OF_SUBJECT, values)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows
