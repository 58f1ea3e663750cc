"""Requests that were refused before they were forwarded: how many, whose, for what and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.db.models.functions import TruncDay, TruncHour, TruncMinute

from tenants.models import RefusalMinute

UNAVAILABLE_FROM: Final = 500
"""Statuses from here on are the installation's own failing (503 overloaded, unavailable): availability counts them."""


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


def _between(since: datetime, until: datetime, tenant_id: UUID | None) -> QuerySet[RefusalMinute]:
    found = RefusalMinute.objects.filter(minute__gte=since, minute__lt=until)
    return found if tenant_id is None else found.filter(tenant_id=tenant_id)


def refusals_by_reason(
    *, since: datetime, until: datetime, tenant_id: UUID | None = None, status: int | None = None, most: int = 100
) -> list[Refused]:
    """The most frequent reasons first. `status` 429 gives those that limits refused."""
    found = _between(since, until, tenant_id)
    if status is not None:
        found = found.filter(status=status)
    sums = (
        found.values_list("model", "key_id", "status", "code", "metric", "window")
        .annotate(n=Sum("refusals"))
        .order_by("-n", "code", "model", "metric", "window", "key_id")[:most]
    )
    return [Refused(*row) for row in sums]


def refusal_series(
    *, since: datetime, until: datetime, tenant_id: UUID | None = None, status: int = 429, by: str = "hour"
) -> list[tuple[datetime, str, str, int]]:
    """(moment, metric, window, how many) by minute, hour or day (UTC), oldest first."""
    truncate = {"minute": TruncMinute, "hour": TruncHour, "day": TruncDay}[by]
    sums = (
        _between(since, until, tenant_id)
        .filter(status=status)
        .annotate(at=truncate("minute"))
        .values_list("at", "metric", "window")
        .annotate(n=Sum("refusals"))
        .order_by("at", "metric", "window")
    )
    return list(sums)


def refused_total(
    *,
    since: datetime,
    until: datetime,
    tenant_id: UUID | None = None,
    models: Sequence[str] = (),
    least_status: int = UNAVAILABLE_FROM,
) -> int:
    """How many were refused with at least that status; of some models where they are given."""
    found = _between(since, until, tenant_id).filter(status__gte=least_status)
    if models:
        found = found.filter(model__in=models)
    return found.aggregate(n=Sum("refusals"))["n"] or 0
