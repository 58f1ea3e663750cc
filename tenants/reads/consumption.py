"""How much of a limit's metric was used, from the rollups: what alerts and forecasts are made of.

Not what limits are held by: those are live counters. Rollups are a few seconds behind, count whole minutes, and do
not know what requests that were lost had reserved.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib.postgres.fields import ArrayField
from django.db import connection
from django.db.models import DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, Value

from tenants.models import Limit, Metric, Tenant, TenantHour, UsageHour, UsageMinute
from tenants.policies.periods import Period, last_days, period_at
from tenants.reads.keys import keys_under_limits_of

_HOUR: Final = timedelta(hours=1)
_SUMMED: Final = {
    Metric.REQUESTS: F("requests"),
    Metric.TOKENS: F("input_tokens") + F("output_tokens"),
    Metric.INPUT_TOKENS: F("input_tokens"),
    Metric.OUTPUT_TOKENS: F("output_tokens"),
    Metric.MONEY: F("cost_micros"),
}
_FAMILY: Final = """
WITH RECURSIVE family AS (
    SELECT id FROM tenants_tenant WHERE id = %s
    UNION
    SELECT child.id FROM tenants_tenant AS child JOIN family ON child.parent_id = family.id
)
SELECT id FROM family
"""


def family_of(tenant_id: UUID) -> list[UUID]:
    """The tenant, its departments, and theirs."""
    with connection.cursor() as cursor:
        cursor.execute(_FAMILY, [tenant_id])
        return [row[0] for row in cursor.fetchall()]


def ancestors_of(tenant_ids: Sequence[UUID]) -> set[UUID]:
    """These tenants and all that they are departments of."""
    found, ask = set(tenant_ids), list(tenant_ids)
    while ask:
        parents = Tenant.objects.filter(pk__in=ask, parent__isnull=False).values_list("parent_id", flat=True)
        ask = [parent for parent in set(parents) if parent not in found]
        found.update(ask)
    return found


def zone_of(limit: Limit) -> str:
    """The zone whose calendar the limit's windows follow."""
    return limit.tenant.time_zone if limit.tenant else "UTC"


def period_of(limit: Limit, now: datetime) -> Period:
    """The day or month of a calendar limit that `now` lies in. Raises ValueError for another window."""
    return period_at(limit.window, zone_of(limit), now.timestamp())


def used_since(limit: Limit, since: datetime, until: datetime | None = None) -> int:
    """Units of the limit's metric, of everything that it takes in, from `since` on (the next whole minute).

    Nothing of metrics that do not add up over time.
    """
    minute = _ceil(since, timedelta(minutes=1))
    hour = _ceil(minute, _HOUR)
    end = until or datetime.max.replace(tzinfo=UTC)
    total = _sum(_hours(limit).filter(hour__gte=hour, hour__lt=end), limit)
    if minute < hour:
        total += _sum(UsageMinute.objects.filter(minute__gte=minute, minute__lt=min(hour, end)), limit)
    return total


def used_in_period(limit: Limit, now: datetime) -> int:
    """The same in the running period of a calendar limit; what was used before the limit was made does not count."""
    start = datetime.fromtimestamp(period_of(limit, now).start, UTC)
    return used_since(limit, max(start, limit.counts_from))


def used_daily(limit: Limit, now: datetime, *, days: int) -> dict[date, int]:
    """Units on each of the last whole days in the limit's zone; days without use are absent.

    By hours: in a zone that is half an hour off, a day is taken to begin at the next whole hour.
    """
    zone = zone_of(limit)
    starts = last_days(zone, period_at("day", zone, now.timestamp()).start, days)
    edges = [datetime.fromtimestamp(start, UTC) for start in starts]
    bucket = Func(
        F("hour"),
        Value(edges, output_field=ArrayField(DateTimeField())),
        function="width_bucket",
        output_field=IntegerField(),
    )
    rows = (
        _hours(limit)
        .filter(_scope(limit), hour__gte=edges[0], hour__lt=edges[-1])
        .annotate(bucket=bucket)
        .values("bucket")
        .annotate(units=Sum(_SUMMED[Metric(limit.metric)]))
    )
    local = [datetime.fromtimestamp(start, ZoneInfo(zone)).date() for start in starts]
    return {local[row["bucket"] - 1]: row["units"] for row in rows}


def active_tenants(since: datetime) -> list[UUID]:
    """Tenants that used anything since then."""
    rows = UsageMinute.objects.filter(minute__gte=since).values_list("tenant_id", flat=True)
    return list(rows.order_by().distinct())


def _hours(limit: Limit) -> QuerySet[Any]:
    """Sums by the hour: whatever the key, where the limit counts all of them. A tenant may have thousands."""
    return TenantHour.objects.all() if limit.key is None else UsageHour.objects.all()


def _sum(rows: QuerySet[Any], limit: Limit) -> int:
    summed = _SUMMED.get(Metric(limit.metric))
    if summed is None:
        return 0
    total: int = rows.filter(_scope(limit)).aggregate(units=Sum(summed, default=0))["units"]
    return int(total)


def _scope(limit: Limit) -> Q:
    """Whose rows the limit counts."""
    scope = Q()
    if limit.tenant_id is not None and limit.subtree:
        scope &= Q(tenant_id__in=family_of(limit.tenant_id))
    elif limit.tenant_id is not None:
        scope &= Q(tenant_id=limit.tenant_id)
    if limit.key is not None:
        scope &= keys_under_limits_of(limit.key)  # those it was rotated into, too
    if limit.model:
        scope &= Q(model=limit.model)
    return scope


def _ceil(moment: datetime, step: timedelta) -> datetime:
    over = moment.timestamp() % step.total_seconds()
    return moment if not over else moment + step - timedelta(seconds=over)
