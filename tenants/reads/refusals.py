"""Requests that were refused before they were forwarded: how many, whose, for what and why."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models import Sum

from tenants.models import RefusalMinute, Tenant


@dataclass(frozen=True, slots=True)
class Refused:
    """So many for one reason; `metric` and `window` are of the limit that refused, "" where none did."""

    model: str
    key_id: UUID | None
    status: int
    code: str
    metric: str
    window: str
    refusals: int


def refusals_by_reason(
    *,
    since: datetime,
    until: datetime,
    tenant_id: UUID | None = None,
    tier: str = "",
    model: str = "",
    status: int | None = None,
    status_class: int | None = None,
    most: int = 100,
) -> list[Refused]:
    """The most frequent reasons first. `status` 429 gives those that limits refused, `status_class` 5 what we did.

    `tier`: of the tenants that are of it now.
    """
    found = RefusalMinute.objects.filter(minute__gte=since, minute__lt=until)
    if tenant_id is not None:
        found = found.filter(tenant_id=tenant_id)
    if tier:
        found = found.filter(tenant_id__in=Tenant.objects.filter(sla_tier=tier).values("pk"))
    if model:
        found = found.filter(model=model)
    if status_class is not None:
        found = found.filter(status__gte=status_class * 100, status__lt=status_class * 100 + 100)
    if status is not None:
        found = found.filter(status=status)
    sums = (
        found.values_list("model", "key_id", "status", "code", "metric", "window")
        .annotate(n=Sum("refusals"))
        .order_by("-n", "code", "model", "metric", "window", "key_id")[:most]
    )
    return [Refused(*row) for row in sums]
