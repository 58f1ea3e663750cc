"""Instances as the console's list and pages show them: of the pool, with the names of tenants beside."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import F, Q, QuerySet, TextField, Value
from django.db.models.functions import Coalesce

from gpupool import selectors as pool
from gpupool.models import Instance, InstanceEvent, InstanceState, Lease
from gpupool.models.catalog import PAPERS_OF_VERSION
from gpupool.policies.instance import State
from gpupool.policies.lease import holder_of
from gpupool.policies.simulated import PREFIX as SIMULATED
from gpupool.policies.tiers import tier_of
from tenants.models import Tenant

MOST_EVENTS: Final = 60
MOST_OPTIONS: Final = 200
"""Of one filter; beyond them, the search finds the rest."""


def list_instances(filters: Mapping[str, str], *, search: str = "") -> "QuerySet[Instance]":
    """Instances in no order, annotated with what the table sorts by. Without a state, those that have not stopped.

    `filters`: state, engine, node, model, tenant (a slug, or "none"), simulated (yes, no); "" is all.
    """
    rows = pool.list_instances().order_by().defer(*PAPERS_OF_VERSION)
    state = filters.get("state", "")
    if state == "any":
        pass
    elif state:
        rows = rows.filter(state=state)
    elif not search:
        rows = rows.exclude(state=InstanceState.STOPPED)
    for key, column in (("engine", "engine"), ("node", "node__name"), ("model", "version__model__name")):
        if filters.get(key):
            rows = rows.filter(**{column: filters[key]})
    if filters.get("tenant") == "none":
        rows = rows.filter(tenant_id=None)
    elif filters.get("tenant"):
        rows = rows.filter(tenant_id__in=Tenant.objects.filter(slug=filters["tenant"]).values("pk"))
    made_up = Q(node__simulated=True) | Q(node=None, version__artefact_uri__startswith=SIMULATED)
    if filters.get("simulated"):
        rows = rows.filter(made_up) if filters["simulated"] == "yes" else rows.exclude(made_up)
    if search:
        rows = rows.filter(
            Q(version__model__name__icontains=search)
            | Q(version__name__icontains=search)
            | Q(engine__icontains=search)
            | Q(node__name__icontains=search)
            | Q(host__icontains=search)
        )
    return rows.annotate(
        node_name=Coalesce(F("node__name"), Value(""), output_field=TextField()),
        running=Coalesce(F("running_now"), Value(-1)),
        waiting=Coalesce(F("waiting_now"), Value(-1)),
    )


@dataclass(frozen=True, slots=True)
class Choices:
    """What the filters offer: values that an instance has which has not stopped."""

    engines: list[str]
    nodes: list[str]
    models: list[str]
    tenants: list[tuple[str, str]]  # slug, name


def read_choices() -> Choices:
    """Four small queries, whatever the number of instances."""
    live = Instance.objects.exclude(state=InstanceState.STOPPED).order_by()

    def values(column: str) -> list[str]:
        found = live.exclude(**{column: None}).values_list(column, flat=True).distinct()
        return list(found.order_by(column)[:MOST_OPTIONS])

    of_tenants = live.exclude(tenant_id=None).values("tenant_id")
    tenants = Tenant.objects.filter(pk__in=of_tenants).order_by("slug").values_list("slug", "name")
    return Choices(
        engines=values("engine"),
        nodes=values("node__name"),
        models=values("version__model__name"),
        tenants=list(tenants[:MOST_OPTIONS]),
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One step of its life, and how long it stayed so; `seconds` None: it is so now, or it is a wish."""

    event: InstanceEvent
    seconds: float | None


@dataclass(frozen=True, slots=True)
class InstancePage:
    """All that its page shows."""

    instance: Instance
    tenant: Tenant | None
    steps: list[Step]
    claims: list[Lease]
    tier: str
    simulated: bool
    switched_off: bool
    address: str

    @property
    def claimed_bytes(self) -> int:
        """Of its devices, not of the host beside them."""
        kind = self.instance.version.device_kind
        return sum(one.memory_bytes for one in self.claims if one.device.kind == kind and one.released_at is None)

    @property
    def unseen(self) -> bool:
        return pool.is_unseen(self.instance)

    @property
    def memory(self) -> list[tuple[str, int]]:
        """What is known of its devices' memory: weights, kv_used, kv_free, compute, adapters, rest; in bytes.

        Parts are the engine's own figures. `rest` is what its processes use beside them, `unused` what it claims and
        does not use; neither is told where the devices do not say what is in use.
        """
        one: Any = self.instance  # figures of now are unknown to its type
        parts: list[tuple[str, int]] = []
        if one.weights_bytes:
            parts.append(("weights", one.weights_bytes))
        if one.kv_capacity_bytes:
            used = None if one.kv_now is None else round(one.kv_capacity_bytes * one.kv_now)
            parts += (
                [("kv", one.kv_capacity_bytes)]
                if used is None
                else [("kv_used", used), ("kv_free", one.kv_capacity_bytes - used)]
            )
        for name, size in (("compute", one.compute_bytes), ("adapters", one.adapters_bytes)):
            if size:
                parts.append((name, size))
        told = sum(size for _, size in parts)
        if one.device_bytes_now is not None and one.device_bytes_now > told:
            parts.append(("rest", one.device_bytes_now - told))
        in_use = max(told, one.device_bytes_now or 0)
        if self.claimed_bytes > in_use and (told or one.device_bytes_now is not None):
            parts.append(("unused", self.claimed_bytes - in_use))
        return parts


def read_instance(instance_id: UUID) -> InstancePage:
    """Six queries at most. Raises Instance.DoesNotExist."""
    instance = pool.list_instances().defer(*PAPERS_OF_VERSION).get(pk=instance_id)
    owner = instance.owner_id
    leases = Lease.objects.filter(holder=holder_of(instance.pk)).select_related("device__node").order_by("-pk")
    return InstancePage(
        instance=instance,
        tenant=None if owner is None else Tenant.objects.filter(pk=owner).first(),
        steps=_steps(instance),
        claims=list(leases.defer(*(f"device__{name}" for name in _UNSHOWN))[:32]),
        tier=tier_of(State(instance.state), has_process=instance.pid is not None or instance.attached),
        simulated=pool.is_made_up(instance),
        switched_off=instance.engine in set(pool.switched_off_engines()),
        address=pool.engine_address(instance),
    )


_UNSHOWN: Final = ("regions", "capability", "links", "telemetry", "processes", "tags", "facts")


def _steps(instance: Instance) -> list[Step]:
    """The newest first."""
    events = list(InstanceEvent.objects.filter(instance=instance).order_by("-pk")[:MOST_EVENTS])
    steps: list[Step] = []
    later: datetime | None = None
    for event in events:
        seconds = None
        if event.kind == "state":
            seconds = None if later is None else max(0.0, (later - event.at).total_seconds())
            later = event.at
        steps.append(Step(event, seconds))
    return steps
