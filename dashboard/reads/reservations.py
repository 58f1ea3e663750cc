"""Reservations with the names of their tenants, and what those claim now."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery, Sum, TextField, Value
from django.db.models.functions import Coalesce

from gpupool.models import Lease, Reservation
from tenants.models import Tenant


def list_reservations(*, search: str = "") -> "QuerySet[Reservation]":
    """In no order, with `slug` and `name` of the tenant."""
    tenant = Tenant.objects.filter(pk=OuterRef("tenant_id"))
    rows = Reservation.objects.annotate(
        slug=Coalesce(Subquery(tenant.values("slug")[:1]), Value(""), output_field=TextField()),
        name=Coalesce(Subquery(tenant.values("name")[:1]), Value(""), output_field=TextField()),
    )
    if search:
        rows = rows.filter(Q(slug__icontains=search) | Q(name__icontains=search) | Q(gpu_tag__icontains=search))
    return rows


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a tenant's instances hold of GPUs now, whatever their tags."""

    devices: int
    memory_bytes: int


def claimed_by_tenants(tenant_ids: "set[UUID]") -> Mapping[UUID, Claimed]:
    """Of a page's tenants; one query."""
    rows = Lease.objects.filter(tenant_id__in=tenant_ids, released_at__isnull=True, device__kind="gpu")
    sums = rows.order_by().values("tenant_id").annotate(n=Count("device", distinct=True), total=Sum("memory_bytes"))
    return {row["tenant_id"]: Claimed(row["n"], row["total"] or 0) for row in sums if row["tenant_id"] is not None}
