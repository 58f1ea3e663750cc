"""Limits, prices, adjustments and shares of the pool's time, as the control API lists them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from tenants.models import Adjustment, GpuShare, Limit, Price, Tenant


def list_limits(tenant: Tenant | None = None, /, **filters: Any) -> QuerySet[Limit]:
    """Newest first; of one tenant, or all. `filters`: metric, window, model, key, subtree, platform, tenant (slug)."""
    limits = Limit.objects.select_related("tenant").order_by("-id")
    if tenant is not None:
        limits = limits.filter(tenant=tenant)
    if (platform := filters.pop("platform", None)) is not None:
        limits = limits.filter(tenant__isnull=platform)
    if (slug := filters.pop("tenant", None)) is not None:
        limits = limits.filter(tenant__slug=slug)
    if (key := filters.pop("key", None)) is not None:
        limits = limits.filter(key_id=key)
    return limits.filter(**filters)


def list_prices(
    *, model: str | None = None, version_id: UUID | None = None, future: bool | None = None
) -> QuerySet[Price]:
    """The price book, newest entry first; `future`: not in effect yet."""
    prices = Price.objects.order_by("-id")
    if model is not None:
        prices = prices.filter(model=model)
    if version_id is not None:
        prices = prices.filter(version_id=version_id)
    if future is not None:
        ahead = Q(effective_from__gt=timezone.now())
        prices = prices.filter(ahead if future else ~ahead)
    return prices


def list_adjustments(tenant_id: UUID, *, month: str | None = None) -> QuerySet[Adjustment]:
    """Newest first."""
    adjustments = Adjustment.objects.filter(tenant_id=tenant_id).order_by("-id")
    return adjustments if month is None else adjustments.filter(month=month)


def gpu_shares(*, since: datetime, until: datetime, most: int) -> list[dict[str, Any]]:
    """Instance time by tenant (None: the platform), model and number of GPUs in [since, until), dearest first."""
    rows = (
        GpuShare.objects.filter(hour__gte=since, hour__lt=until)
        .values("tenant_id", "model", "gpus")
        .annotate(
            busy_ms=Sum("busy_ms"), idle_ms=Sum("idle_ms"), warm_ms=Sum("warm_ms"), cost_micros=Sum("cost_micros")
        )
        .order_by("-cost_micros", "model", "tenant_id", "gpus")[:most]
    )
    return [{**row} for row in rows]
