"""What a tenant may have of the pool's GPUs, what is claimed for it, and what its processes use."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
    Value,
)
from django.db.models.functions import Cast, Coalesce, Concat

from gpupool.models import Instance, InstanceState, Lease, Reservation
from gpupool.policies.simulated import PREFIX as SIMULATED
from gpupool.reads.quota_use import QuotaUse, read_quota_use
from gpupool.selectors import with_figures
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Quota:
    """One that counts the tenant, perhaps with others: `own` where it counts nobody else.

    Of one that counts others too it is told what they claimed, never what they use.
    """

    use: QuotaUse
    own: bool


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of the tenant's own instances. `in_use` None: one of them does not say how much it uses.

    Of the instances `made_up` are simulated: what they claim and use is made up, too.
    """

    quotas: Sequence[Quota]
    reservations: Sequence[Reservation]
    instances: int
    made_up: int
    gpus: int
    claimed: int
    in_use: int | None

    @property
    def reserved_gpus(self) -> int:
        return sum(one.devices for one in self.reservations)

    @property
    def reserved_bytes(self) -> int:
        return sum(one.memory_bytes for one in self.reservations)

    @property
    def used_share(self) -> float | None:
        """Of what is claimed; None where it is not known, or nothing is claimed."""
        return self.in_use / self.claimed if self.in_use is not None and self.claimed else None


def own_instances(tenant: Tenant, now: datetime | None = None) -> "QuerySet[Instance]":
    """Those that serve this tenant and no other: bound to it, or of a version or model of its own.

    Rows carry `made_up`, as gpupool.selectors.is_made_up says it, and what its `with_figures` adds.
    """
    mine = (
        Q(tenant_id=tenant.pk)
        | Q(tenant_id__isnull=True, version__tenant_id=tenant.pk)
        | Q(tenant_id__isnull=True, version__tenant_id__isnull=True, version__model__tenant_id=tenant.pk)
    )
    made_up = Q(node__simulated=True) | Q(node=None, version__artefact_uri__startswith=SIMULATED)
    rows: QuerySet[Instance] = with_figures(Instance.objects.filter(mine), now)
    return rows.annotate(made_up=ExpressionWrapper(made_up, output_field=BooleanField()))


def list_own_instances(tenant: Tenant, *, stopped: bool, search: str) -> "QuerySet[Any]":
    """With `gpus` and `claimed` (bytes) that leases hold for each."""
    rows = (
        own_instances(tenant)
        .select_related("version__model")
        .defer("version__manifest", "version__card", "version__checks")
    )
    if not stopped:
        rows = rows.exclude(state=InstanceState.STOPPED)
    if search:
        rows = rows.filter(version__model__name__icontains=search)
    return rows.annotate(gpus=_leased(Count("pk")), claimed=_leased(Sum("memory_bytes")))


def read_capacity(tenant: Tenant, now: datetime) -> Capacity:
    """A constant number of queries."""
    running = own_instances(tenant, now).exclude(state=InstanceState.STOPPED)
    rows = list(
        running.annotate(gpus=_leased(Count("pk")), claimed=_leased(Sum("memory_bytes"))).values_list(
            "gpus", "claimed", "device_bytes_now", "pid", "made_up"
        )
    )
    used = [device_bytes for gpus, _, device_bytes, pid, _ in rows if gpus and pid is not None]
    return Capacity(
        quotas=[Quota(one, one.quota.tenants == frozenset({tenant.pk})) for one in _quotas_of(tenant, now)],
        reservations=list(Reservation.objects.filter(tenant_id=tenant.pk).order_by("gpu_tag")),
        instances=len(rows),
        made_up=sum(bool(made_up) for *_, made_up in rows),
        gpus=sum(gpus for gpus, *_ in rows),
        claimed=sum(claimed for _, claimed, *_ in rows),
        in_use=None if None in used else sum(one for one in used if one is not None),
    )


def _quotas_of(tenant: Tenant, now: datetime) -> list[QuotaUse]:
    return [one for one in read_quota_use(now) if one.quota.tenants is not None and tenant.pk in one.quota.tenants]


def _leased(what: Count | Sum) -> Coalesce:
    """Over the leases on GPUs that name the instance."""
    holder = Concat(Value("instance:"), Cast(OuterRef("pk"), TextField()), output_field=TextField())
    leases = Lease.objects.filter(holder=holder, released_at__isnull=True, device__kind="gpu")
    return Coalesce(Subquery(leases.order_by().values("holder").annotate(n=what).values("n")), Value(0))
