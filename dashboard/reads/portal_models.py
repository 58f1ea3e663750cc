"""The catalogue as one tenant sees it: what it may call, what it may ask for, and nothing of what is others' own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from gpupool import selectors as pool
from gpupool.models import Instance, InstanceState, Model, ModelVersion, VersionState
from gpupool.policies.simulated import PREFIX as SIMULATED
from tenants.models import AccessRequest, Grant, GrantEffect, Price, PrincipalKind, RequestKind, Tenant
from tenants.policies.requests import RequestState

STARTING: Final = (
    InstanceState.REQUESTED, InstanceState.PLACING, InstanceState.STAGING, InstanceState.LOADING, InstanceState.WARMING,
)  # fmt: skip
USABLE: Final = frozenset({"infer", "embed"})


@dataclass(frozen=True, slots=True)
class Access:
    """What a tenant's own grants say of one model; keys may have less, or grants of their own.

    `denied`: something is, of which `actions` is what is left.
    """

    actions: tuple[str, ...] = ()
    until: datetime | None = None  # the last of them ends; None: never
    denied: bool = False

    @property
    def granted(self) -> bool:
        return bool(self.actions)


def read_grants(tenant: Tenant, now: datetime) -> list[Grant]:
    """The tenant's own, in force."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    return list(Grant.objects.filter(alive, tenant=tenant, principal_kind=PrincipalKind.TENANT, principal_id=tenant.pk))


def access_to(name: str, grants: Sequence[Grant]) -> Access:
    """To the model of that name; deny wins."""
    allowed: set[str] = set()
    denied: set[str] = set()
    ends: list[datetime | None] = []
    for grant in grants:
        if fnmatchcase(name, grant.model_pattern):
            actions = USABLE if "*" in grant.actions else USABLE & set(grant.actions)
            if grant.effect == GrantEffect.DENY:
                denied |= actions
            elif actions:
                allowed |= actions
                ends.append(grant.expires_at)
    until = None if None in ends else max((end for end in ends if end is not None), default=None)
    return Access(tuple(sorted(allowed - denied)), until, denied=bool(denied))


def list_models(tenant: Tenant, now: datetime) -> "tuple[QuerySet[Any], Mapping[UUID, Access]]":
    """Models that the tenant may call or ask for, and its access to each.

    Rows carry `ready`, `asleep`, `starting` (instances that would answer it), `made_up`, and the prices in effect.
    Others' private models, and those that are there by others' own versions alone, are not told. Neither is one that
    no version serves yet, nor one that the tenant is denied.
    """
    mine = Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk)
    serving = ModelVersion.objects.filter(mine, model=OuterRef("pk"), state=VersionState.SERVING)
    models = Model.objects.filter(mine).filter(Exists(serving))
    grants = read_grants(tenant, now)
    found = {pk: access_to(name, grants) for pk, name in models.values_list("pk", "name")}
    told = {pk: access for pk, access in found.items() if access.granted or not access.denied}
    rows = Model.objects.filter(pk__in=list(told)).annotate(
        ready=_instances(tenant, (InstanceState.READY,)),
        asleep=_instances(tenant, (InstanceState.ASLEEP,)),
        starting=_instances(tenant, STARTING),
        made_up=Exists(serving.filter(artefact_uri__startswith=SIMULATED)),
        input_micros=_price("input_micros", now),
        cached_micros=_price("cached_input_micros", now),
        output_micros=_price("output_micros", now),
        request_micros=_price("request_micros", now),
    )
    return rows.prefetch_related("aliases"), told


def contexts_of(rows: Sequence[Any], tenant: Tenant) -> dict[UUID, int | None]:
    """Tokens of a request, prompt and answer together, by model: the least of what serves the tenant."""
    found: dict[UUID, int | None] = {}
    for entry in pool.get_models([row.pk for row in rows]):
        own = {one: shortest for one, shortest, _ in entry.own_contexts}
        found[entry.id] = own.get(tenant.pk, entry.shortest_context_tokens)
    return found


def asked_for(tenant: Tenant) -> set[str]:
    """Names and patterns that the tenant asked for and nobody decided yet."""
    open_ones = AccessRequest.objects.filter(tenant=tenant, kind=RequestKind.MODEL, state=RequestState.OPEN.value)
    return {str(what.get("model", "")) for what in open_ones.values_list("what", flat=True)}


def versions_priced(names: Sequence[str], tenant: Tenant, now: datetime) -> list[str]:
    """Models where a version that serves the tenant has prices of its own: which one answers is known once it has."""
    mine = Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk)
    serving = ModelVersion.objects.filter(mine, model__name__in=names, state=VersionState.SERVING)
    prices = Price.objects.filter(version_id__in=serving.values("pk"), effective_from__lte=now)
    return sorted(prices.order_by().values_list("model", flat=True).distinct())


def state_of(row: Any) -> str:
    """ready, asleep (requests get 503: an operator wakes it), starting, or off."""
    return "ready" if row.ready else "asleep" if row.asleep else "starting" if row.starting else "off"


def _instances(tenant: Tenant, states: Sequence[str]) -> Coalesce:
    rows = (
        Instance.objects.filter(version__model=OuterRef("pk"), version__state=VersionState.SERVING, state__in=states)
        .filter(Q(tenant_id__isnull=True) | Q(tenant_id=tenant.pk))
        .filter(Q(version__tenant_id__isnull=True) | Q(version__tenant_id=tenant.pk))
        .exclude(engine__in=pool.switched_off_engines())
    )
    counted = rows.order_by().values("version__model").annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(counted), Value(0))


def _price(column: str, now: datetime) -> Subquery:
    prices = Price.objects.filter(model=OuterRef("name"), version_id__isnull=True, effective_from__lte=now)
    return Subquery(prices.order_by("-effective_from").annotate(found=F(column)).values("found")[:1])
