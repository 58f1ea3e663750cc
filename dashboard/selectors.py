"""Reads that gather several rooms into what one page shows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from gpupool import selectors as pool
from gpupool.models import Instance, InstanceState, Model, ModelVersion, VersionState
from gpupool.policies.simulated import PREFIX as SIMULATED
from tenants.models import ApiKey, Grant, GrantEffect, Membership, PrincipalKind, Tenant


def list_instances(
    *, state: str = "", search: str = "", include_stopped: bool = False, now: datetime | None = None
) -> QuerySet[Instance]:
    """Instances with their model and node, newest first.

    `state` keeps one state; `search` matches the model, engine, node or host.
    """
    instances = pool.list_instances(now)
    if state:
        instances = instances.filter(state=state)
    elif not include_stopped:
        instances = instances.exclude(state=InstanceState.STOPPED)
    if search:
        instances = instances.filter(
            Q(version__model__name__icontains=search)
            | Q(engine__icontains=search)
            | Q(node__name__icontains=search)
            | Q(host__icontains=search)
        )
    return instances


def count_instances() -> Counter[str]:
    """How many instances are in each state."""
    return Counter(dict(Instance.objects.order_by().values_list("state").annotate(n=Count("pk"))))


@dataclass(frozen=True, slots=True)
class PortalModel:
    """A model that a tenant may call, and whether it would be answered now."""

    name: str
    description: str
    ready: int
    aliases: tuple[str, ...] = ()
    simulated: bool = False  # some of its answers may be made up


def list_portal_models(tenant: Tenant) -> list[PortalModel]:
    """Models of the catalogue that the tenant is granted to infer with, by name. Grants to single keys do not count."""
    now = timezone.now()
    grants = list(
        Grant.objects.filter(tenant=tenant, principal_kind=PrincipalKind.TENANT, principal_id=tenant.pk).filter(
            Q(expires_at__isnull=True) | Q(expires_at__gt=now)
        )
    )
    grants = [grant for grant in grants if {"infer", "*"} & set(grant.actions)]
    mine = Q(versions__tenant_id__isnull=True) | Q(versions__tenant_id=tenant.pk)
    bound = Q(versions__instances__tenant_id__isnull=True) | Q(versions__instances__tenant_id=tenant.pk)
    off = Q(versions__instances__engine__in=pool.switched_off_engines())
    serving = Q(versions__state=VersionState.SERVING)
    ready = Q(versions__instances__state=InstanceState.READY) & serving & mine & bound & ~off
    served = ModelVersion.objects.filter(model=OuterRef("pk"), state=VersionState.SERVING)
    served_to_it = served.filter(Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk))
    models = (
        Model.objects.filter(Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk))
        .filter(~Exists(served) | Exists(served_to_it))  # else it is there by others' own versions alone
        .annotate(ready=Count("versions__instances", filter=ready))
        .annotate(made_up=Exists(served_to_it.filter(artefact_uri__startswith=SIMULATED)))
        .prefetch_related("aliases")
        .order_by("name")
    )
    return [
        PortalModel(m.name, m.description, m.ready, tuple(sorted(alias.name for alias in m.aliases.all())), m.made_up)
        for m in models
        if _granted(m.name, grants)
    ]


def _granted(name: str, grants: Iterable[Grant]) -> bool:
    matching = [grant.effect for grant in grants if fnmatchcase(name, grant.model_pattern)]
    return bool(matching) and GrantEffect.DENY not in matching


def _number_of(rows: QuerySet[Membership] | QuerySet[ApiKey]) -> Coalesce:
    # A query for each, of the rows of the page alone: a join of both would multiply members by keys.
    mine = rows.filter(tenant=OuterRef("pk")).order_by().values("tenant")
    return Coalesce(Subquery(mine.annotate(number=Count("pk")).values("number")), 0)


def list_tenant_rows(*, search: str = "") -> QuerySet[Tenant]:
    """Tenants with their number of members and usable keys, by slug."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    tenants = Tenant.objects.annotate(
        members=_number_of(Membership.objects.all()),
        keys=_number_of(ApiKey.objects.filter(alive, revoked_at__isnull=True)),
    ).order_by("slug")
    if search:
        tenants = tenants.filter(Q(slug__icontains=search) | Q(name__icontains=search))
    return tenants
