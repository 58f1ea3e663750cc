"""Shares of the pool's time: what the pool reports hour by hour, shared out by the ledger.

Like the ledger's, these writes are the system's own record: no audit rows, no epoch. An hour may be reported as
often as one likes, the last report stands: rows of the ledger come late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from core.ids import uuid7_from
from tenants.models import GpuShare, Price
from tenants.policies.showback import gpu_cost_micros, share_hour
from tenants.services.rollups import ID_MARGIN

HOUR: Final = timedelta(hours=1)
_LOCK: Final = 0x6761_7475  # one reporter at a time


@dataclass(frozen=True, slots=True)
class InstanceTime:
    """How long an instance held its devices; `owner_id` is the tenant whose private model it serves.

    `gpus` is 0 on a CPU: its time is shared out, and costs nothing.
    """

    instance_id: UUID
    version_id: UUID
    model: str
    owner_id: UUID | None
    gpus: int
    since: datetime
    ready_at: datetime | None
    until: datetime  # now, while it runs


@dataclass(slots=True)
class _Use:
    """Of one instance in one hour, in milliseconds."""

    by_tenant: dict[UUID, int]
    busy_ms: int = 0


@transaction.atomic
def report_gpu_seconds(hour: datetime, times: Sequence[InstanceTime]) -> int:
    """Share the hour (UTC) of these instances out to tenants; returns how many shares there are. Safe to run twice.

    Priced at what was in effect when the hour began. Raises ValueError when `hour` is not a whole one.
    """
    if hour.timestamp() % 3600:
        raise ValueError("an hour begins at its first minute")
    end = hour + HOUR
    times = [time for time in times if time.since < end and time.until > hour]
    uses = _uses(hour, [time.instance_id for time in times])
    prices = _gpu_prices({time.model for time in times}, hour)
    shares: list[GpuShare] = []
    for time in times:
        price_id, micros = prices.get((time.model, time.version_id)) or prices.get((time.model, None)) or (None, 0)
        up_ms = _ms(min(time.until, end) - max(time.since, hour))
        ready_ms = 0 if time.ready_at is None else max(_ms(min(time.until, end) - max(time.ready_at, hour)), 0)
        ready_ms = min(ready_ms, up_ms)
        use = uses.get(time.instance_id, _Use({}))
        parts = share_hour(
            warm_ms=up_ms - ready_ms,
            ready_ms=ready_ms,
            busy_ms=use.busy_ms,
            uses=use.by_tenant,
            owner=time.owner_id,
            cost_micros=gpu_cost_micros(micros, gpus=time.gpus, time_ms=up_ms),
        )
        shares += [
            GpuShare(
                hour=hour,
                instance_id=time.instance_id,
                tenant_id=payer,
                model=time.model,
                version_id=time.version_id,
                gpus=time.gpus,
                busy_ms=part.busy_ms,
                idle_ms=part.idle_ms,
                warm_ms=part.warm_ms,
                cost_micros=part.cost_micros,
                price_id=price_id,
            )
            for payer, part in parts.items()
        ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
    GpuShare.objects.filter(hour=hour, instance_id__in=[time.instance_id for time in times]).delete()
    GpuShare.objects.bulk_create(shares)
    return len(shares)


def last_reported_hour() -> datetime | None:
    """The newest hour that there are shares of."""
    return GpuShare.objects.order_by("-hour").values_list("hour", flat=True).first()


_USES: Final = """
WITH used AS (
    SELECT instance_id, tenant_id, greatest(started_at, %(hour)s) AS began,
        least(started_at + duration_ms * interval '1 millisecond', %(hour)s + interval '1 hour') AS ended
    FROM tenants_usagerecord
    WHERE id >= %(first)s AND id < %(last)s AND instance_id = ANY(%(instances)s::uuid[])
    AND duration_ms BETWEEN 0 AND 86400000
), alone AS (
    SELECT instance_id, tenant_id, began, ended, max(ended) OVER (
        PARTITION BY instance_id ORDER BY began, ended ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS covered
    FROM used WHERE ended > began
)
SELECT instance_id, tenant_id, round(sum(extract(epoch FROM ended - began)) * 1000),
    round(sum(extract(epoch FROM greatest(ended - greatest(began, covered), interval '0'))) * 1000)
FROM alone GROUP BY 1, 2
"""
"""Each tenant's requests in the hour, and how much of them no earlier request of the instance covers: added up over
tenants, how long the instance answered anyone."""


def _uses(hour: datetime, instances: Sequence[UUID]) -> Mapping[UUID, _Use]:
    first, last = hour - HOUR - ID_MARGIN, hour + HOUR + ID_MARGIN  # a request of more than an hour is an oddity
    uses: dict[UUID, _Use] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            _USES,
            {
                "hour": hour,
                "first": uuid7_from(_ms_of(first)),
                "last": uuid7_from(_ms_of(last)),
                "instances": list(instances),
            },
        )
        for instance_id, tenant_id, length_ms, alone_ms in cursor.fetchall():
            use = uses.setdefault(instance_id, _Use({}))
            use.by_tenant[tenant_id] = int(length_ms)
            use.busy_ms += int(alone_ms)
    return uses


def _gpu_prices(models: set[str], moment: datetime) -> dict[tuple[str, UUID | None], tuple[UUID, int]]:
    """(model, version or None) -> the price in effect at the moment and its millionths a second."""
    found: dict[tuple[str, UUID | None], tuple[UUID, int]] = {}
    for price in Price.objects.filter(model__in=models, effective_from__lte=moment).order_by("effective_from"):
        found[price.model, price.version_id] = (price.pk, price.gpu_second_micros)
    return found


def _ms(length: timedelta) -> int:
    return length // timedelta(milliseconds=1)


def _ms_of(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
