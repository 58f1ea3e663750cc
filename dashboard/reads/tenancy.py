"""What the console's pages of tenants show, each with a constant number of queries."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Count, Q, QuerySet, Sum

from dashboard.charts.usage import RANGES, bucket_starts, sparkline
from dashboard.reads.limits import LimitUse, with_use, worst_first
from dashboard.selectors import PortalModel, list_portal_models, list_tenant_rows
from gpupool.models import Instance, InstanceState, Lease, Reservation
from gpupool.reads.quota_use import QuotaUse, read_quota_use
from gpupool.selectors import figure
from tenants.models import (
    AccessRequest,
    ApiKey,
    AuditEvent,
    Limit,
    Membership,
    Notice,
    RefusalMinute,
    Tenant,
    User,
)
from tenants.policies.tiers import Objectives, objectives_of
from tenants.reads.forecasts import LimitForecast, forecast_tenant
from tenants.reads.notices import list_requests
from tenants.reads.usage import UsageSums, usage_series, usage_totals

SHOWN: Final = 8
"""Rows of each panel of a tenant's page; a link leads to all."""
_MOST_LIMITS: Final = 200
_MANY: Final = 1_000
_DAY: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Requests that were refused for one reason."""

    code: str
    model: str
    metric: str
    window: str
    refusals: int


@dataclass(frozen=True, slots=True)
class PoolUse:
    """What a tenant has of the GPUs. Claimed, in use and reserved are three numbers, in bytes."""

    instances: int
    claimed: int
    used: int | None  # None: an instance does not say
    reserved_devices: int
    reserved_memory: int
    quotas: Sequence[QuotaUse]


@dataclass(frozen=True, slots=True)
class TenantPage:
    """Everything that is known about one tenant."""

    tenant: Tenant
    objectives: Objectives
    members: Sequence[Membership]
    member_count: int
    keys: Sequence[ApiKey]
    usable_keys: int
    limits: Sequence[LimitUse]
    forecasts: Mapping[str, LimitForecast]
    day: UsageSums
    bars: str
    month_days: Sequence[tuple[datetime, int, int]]  # start, requests, tokens
    models: Sequence[PortalModel]
    pool: PoolUse
    refusals: Sequence[Refusal]
    notices: Sequence[Notice]
    requests: Sequence[AccessRequest]
    audit: Sequence[AuditEvent]
    names: Mapping[UUID, str]


def tenant_table(*, search: str, state: str, tier: str) -> QuerySet[Tenant]:
    """Tenants with their number of members and usable keys; not sorted yet."""
    rows = list_tenant_rows(search=search).select_related("parent")
    if state:
        rows = rows.filter(state=state)
    return rows.filter(sla_tier=tier) if tier else rows


def read_tenant(slug: str, *, now: datetime) -> TenantPage:
    """Raises Tenant.DoesNotExist."""
    tenant = Tenant.objects.select_related("parent").get(slug=slug)
    starts = bucket_starts(RANGES["30d"], now=now, zone=ZoneInfo(tenant.time_zone))
    requests, tokens = [0] * len(starts), [0] * len(starts)
    for point in usage_series(tenant.pk, starts=starts, until=now):
        requests[point.bucket] += point.requests
        tokens[point.bucket] += point.input_tokens + point.output_tokens
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    members = Membership.objects.filter(tenant=tenant)
    keys = ApiKey.objects.filter(tenant=tenant)
    limits = Limit.objects.filter(tenant=tenant).select_related("tenant", "key")[:_MOST_LIMITS]
    audit = list(AuditEvent.objects.filter(tenant_id=tenant.pk).order_by("-pk")[:SHOWN])
    return TenantPage(
        tenant=tenant,
        objectives=objectives_of(tenant.sla_tier),
        members=list(members.select_related("user").order_by("-pk")[:SHOWN]),
        member_count=members[:_MANY].count(),
        keys=list(keys.filter(revoked_at__isnull=True).order_by("-pk")[:SHOWN]),
        usable_keys=keys.filter(alive, revoked_at__isnull=True)[:_MANY].count(),
        limits=worst_first(with_use(limits, now=now)),
        forecasts=forecast_tenant(tenant, now),
        day=usage_totals(tenant.pk, since=now - _DAY, until=now),
        bars=sparkline(tokens, width=600, height=72),
        month_days=list(zip(starts, requests, tokens, strict=True)),
        models=list_portal_models(tenant),
        pool=_pool_use(tenant, now),
        refusals=_refusals(tenant, now),
        notices=list(Notice.objects.filter(tenant=tenant).order_by("-pk")[:SHOWN]),
        requests=list(list_requests(tenant).select_related("requested_by")[:SHOWN]),
        audit=audit,
        names=names_of(event.actor_id for event in audit),
    )


def names_of(ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """Names of those of the ids that are people; one query."""
    known = {one for one in ids if one is not None}
    return {user.pk: str(user) for user in User.objects.filter(pk__in=known)} if known else {}


def _pool_use(tenant: Tenant, now: datetime) -> PoolUse:
    claimed = Lease.objects.filter(tenant_id=tenant.pk, released_at__isnull=True, device__kind="gpu")
    running = Instance.objects.exclude(state=InstanceState.STOPPED).filter(
        Q(tenant_id=tenant.pk) | Q(version__tenant_id=tenant.pk) | Q(version__model__tenant_id=tenant.pk)
    )
    # An engine with no process of ours, or on the host's memory alone, has none of a GPU to tell.
    told = running.filter(version__device_kind="gpu", pid__isnull=False).aggregate(
        all=Count("pk"), said=Count(figure("device_bytes", now)), used=Sum(figure("device_bytes", now), default=0)
    )
    kept = Reservation.objects.filter(tenant_id=tenant.pk).aggregate(
        devices=Sum("devices", default=0), memory=Sum("memory_bytes", default=0)
    )
    return PoolUse(
        instances=running.count(),
        claimed=claimed.aggregate(total=Sum("memory_bytes", default=0))["total"],
        used=told["used"] if told["said"] == told["all"] else None,
        reserved_devices=kept["devices"],
        reserved_memory=kept["memory"],
        quotas=[use for use in read_quota_use(now) if use.quota.tenants is not None and tenant.pk in use.quota.tenants],
    )


def _refusals(tenant: Tenant, now: datetime) -> list[Refusal]:
    since = (now - _DAY).replace(second=0, microsecond=0)
    rows = (
        RefusalMinute.objects.filter(tenant_id=tenant.pk, minute__gte=since)
        .values("code", "model", "metric", "window")
        .annotate(total=Sum("refusals"))
        .order_by("-total")[:SHOWN]
    )
    return [Refusal(row["code"], row["model"], row["metric"], row["window"], row["total"]) for row in rows]
