"""Models and versions as the console shows them: of the catalogue, with what runs of them and who may call them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from uuid import UUID

from django.db.models import (
    BooleanField,
    Case,
    Count,
    Exists,
    F,
    Func,
    IntegerField,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
    Window,
)
from django.db.models.functions import Coalesce, Replace, RowNumber
from django.utils import timezone

from gpupool import selectors as pool
from gpupool.models import (
    Adapter,
    Instance,
    InstanceDesire,
    InstanceState,
    Model,
    ModelAlias,
    ModelVersion,
    VersionState,
)
from gpupool.models.catalog import PAPERS
from gpupool.policies.manifest import BadManifest, Manifest, digest, read_manifest
from gpupool.policies.simulated import PREFIX as SIMULATED
from tenants.models import Grant, GrantEffect, Tenant

MOST_GRANTS: Final = 50
MOST_OFFERED: Final = 200
MOST_ROUTES: Final = 25
"""Endpoints of one model that are shown on the page of all; those first that take requests."""


def list_models(filters: Mapping[str, str], *, search: str = "") -> "QuerySet[Model]":
    """Models in no order, with numbers of what they have. `filters`: serves (yes, no), owner (a slug, or "none")."""
    versions = ModelVersion.objects.filter(model=OuterRef("pk")).order_by()
    instances = Instance.objects.filter(version__model=OuterRef("pk"), state=InstanceState.READY).order_by()
    aliases = ModelAlias.objects.filter(model=OuterRef("pk")).order_by()
    serving = versions.filter(state=VersionState.SERVING)
    rows = Model.objects.annotate(
        version_count=_count(versions, "model"),
        serving_count=_count(serving, "model"),
        ready_count=_count(instances, "version__model"),
        alias_count=_count(aliases, "model"),
        made_up=Exists(serving.filter(artefact_uri__startswith=SIMULATED)),
        owner=Coalesce(
            Subquery(Tenant.objects.filter(pk=OuterRef("tenant_id")).values("slug")[:1]),
            Value(""),
            output_field=TextField(),
        ),
    )
    if filters.get("serves"):
        rows = rows.filter(serving_count__gt=0) if filters["serves"] == "yes" else rows.filter(serving_count=0)
    if filters.get("owner"):
        rows = rows.filter(tenant_id=None) if filters["owner"] == "none" else rows.exclude(tenant_id=None)
    if search:
        found = Q(name__icontains=search) | Q(description__icontains=search)
        rows = rows.filter(found | Exists(aliases.filter(name__icontains=search)))
    return rows


def _count(rows: "QuerySet[ModelVersion] | QuerySet[Instance] | QuerySet[ModelAlias]", by: str) -> Coalesce:
    number = rows.values(by).annotate(number=Count("pk")).values("number")
    return Coalesce(Subquery(number, output_field=IntegerField()), 0)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A version with its instances that have not stopped."""

    version: ModelVersion
    ready: int
    running: int
    owner: Tenant | None

    @property
    def simulated(self) -> bool:
        return self.version.artefact_uri.startswith(SIMULATED)


@dataclass(frozen=True, slots=True)
class Grants:
    """Who may call a model: grants whose patterns match its name, those first that name it."""

    rows: Sequence[Grant]
    more: bool


def versions_of(model: Model) -> list[VersionRow]:
    """The newest first. Two queries, and one for tenants."""
    live = ~Q(instances__state=InstanceState.STOPPED)
    rows = list(
        model.versions.defer(*PAPERS)
        .annotate(
            ready=Count("instances", filter=Q(instances__state=InstanceState.READY)),
            running=Count("instances", filter=live),
        )
        .order_by("-pk")[:200]
    )
    tenants = {one.pk: one for one in Tenant.objects.filter(pk__in={row.tenant_id for row in rows if row.tenant_id})}
    for row in rows:
        row.model = model
    return [
        VersionRow(row, row.ready, row.running, tenants.get(row.tenant_id) if row.tenant_id else None) for row in rows
    ]


def grants_of(model_name: str) -> Grants:
    """Patterns are compared by the database as far as it can, and then as relays do."""
    # The name is compared with each pattern: the other way round than lookups do.
    signs = (("\\", "\\\\"), ("%", "\\%"), ("_", "\\_"), ("*", "%"), ("?", "_"))
    like: F | Replace = F("model_pattern")
    for sign, means in signs:
        like = Replace(like, Value(sign), Value(means))
    name = Value(model_name, output_field=TextField())
    matches = Func(name, like, template="(%(expressions)s)", arg_joiner=" LIKE ", output_field=BooleanField())
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    rows = Grant.objects.filter(alive).select_related("tenant").annotate(matches=matches)
    rows = rows.filter(Q(matches=True) | Q(model_pattern__contains="["))
    exact_first = rows.annotate(named=Q(model_pattern=model_name)).order_by("-named", "tenant__slug", "pk")
    found = [one for one in exact_first[: 4 * MOST_GRANTS] if fnmatchcase(model_name, one.model_pattern)]
    return Grants(found[:MOST_GRANTS], len(found) > MOST_GRANTS)


def offered_tenants() -> list[tuple[str, str]]:
    """Slugs and names that a form offers; others are typed."""
    return list(Tenant.objects.order_by("slug").values_list("slug", "name")[:MOST_OFFERED])


@dataclass(frozen=True, slots=True)
class Files:
    """What a manifest comes to."""

    sha256: str
    files: int
    total_bytes: int
    first: list[tuple[str, int, str]]  # path, bytes, sha256
    fault: str = ""


def files_of(version: ModelVersion, *, most: int = 12) -> Files | None:
    """None for a version without a manifest."""
    if not version.manifest:
        return None
    try:
        manifest: Manifest = read_manifest(version.manifest)
    except BadManifest as error:
        return Files("", 0, 0, [], str(error))
    largest = sorted(manifest.files, key=lambda file: -file.bytes)[:most]
    return Files(
        digest(manifest),
        len(manifest.files),
        manifest.total_bytes,
        [(file.path, file.bytes, file.sha256) for file in largest],
    )


def others_to_switch_from(version: ModelVersion) -> list[ModelVersion]:
    """Versions of the same model and tenants that serve: this one could be served instead of one of them."""
    rows = ModelVersion.objects.filter(model=version.model_id, tenant_id=version.tenant_id, state=VersionState.SERVING)
    return list(rows.exclude(pk=version.pk).defer(*PAPERS).order_by("name"))


def adapters_of(model_id: UUID) -> list[Adapter]:
    """Of all its versions, the newest first."""
    return list(Adapter.objects.filter(version__model=model_id).select_related("version").order_by("-pk")[:100])


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint that requests for a model can go to, or why they cannot."""

    instance: Instance
    takes: bool
    why_not: str  # a key of `WHY_NOT`; empty where it takes requests
    cap: int | None  # requests at once that its memory allows; None: no cap
    address: str
    simulated: bool
    owner: Tenant | None  # whose requests alone it takes


@dataclass(frozen=True, slots=True)
class ModelRoutes:
    """Where requests for one model can go; of many endpoints the first MOST_ROUTES."""

    model: Model
    aliases: list[str]
    owner: Tenant | None
    routes: list[Route]
    grants: int  # that allow something and match its name
    taking: int  # endpoints that take requests, also those that are not in `routes`
    total: int


def takes_requests() -> Q:
    """Of instances: what they themselves must be to take requests; a switched off engine's do not."""
    ready = Q(state=InstanceState.READY, desire=InstanceDesire.RUNNING, version__state=VersionState.SERVING)
    return ready & Q(port__isnull=False) & ~Q(host="")


def read_routes(models: "list[Model]") -> list[ModelRoutes]:
    """Of a page's models: their endpoints as doors are told them; a constant number of queries."""
    off = set(pool.switched_off_engines())
    live = pool.list_instances().order_by().filter(version__model__in=models).exclude(state=InstanceState.STOPPED)
    takes = takes_requests() & ~Q(engine__in=off)
    numbers = {
        model_id: (taking, total)
        for model_id, taking, total in live.values("version__model")
        .annotate(taking=Count("pk", filter=takes), total=Count("pk"))
        .values_list("version__model", "taking", "total")
    }
    place = Window(RowNumber(), partition_by=F("version__model"), order_by=[Case(When(takes, then=0), default=1), "pk"])
    instances = (
        live.annotate(place=place)
        .filter(place__lte=MOST_ROUTES)
        .defer(*(f"version__{name}" for name in PAPERS), *_OF_NODES)
        .order_by("version__model__name", "place")
    )
    found: dict[UUID, list[Instance]] = {}
    for instance in instances:
        found.setdefault(instance.version.model_id, []).append(instance)
    wanted = {one.owner_id for group in found.values() for one in group} | {model.tenant_id for model in models}
    tenants = {one.pk: one for one in Tenant.objects.filter(pk__in=[pk for pk in wanted if pk is not None])}
    names: dict[UUID, list[str]] = {}
    for name, model_id in ModelAlias.objects.filter(model__in=models).order_by("name").values_list("name", "model_id"):
        names.setdefault(model_id, []).append(name)
    patterns = allowing_patterns()
    return [
        ModelRoutes(
            model,
            names.get(model.pk, []),
            tenants.get(model.tenant_id) if model.tenant_id else None,
            [_route(one, off, tenants) for one in found.get(model.pk, [])],
            sum(number for pattern, number in patterns if fnmatchcase(model.name, pattern)),
            *numbers.get(model.pk, (0, 0)),
        )
        for model in models
    ]


_OF_NODES: Final = ("node__facts", "node__capabilities", "version__request_shape", "version__isolation")
"""Not shown, and slow to read at hundreds of endpoints."""


def allowing_patterns() -> list[tuple[str, int]]:
    """Patterns of grants that allow something, each with how many there are."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    rows = Grant.objects.filter(alive, effect=GrantEffect.ALLOW).order_by().values("model_pattern")
    return list(rows.annotate(number=Count("pk")).values_list("model_pattern", "number"))


def _route(instance: Instance, off: set[str], tenants: Mapping[UUID, Tenant]) -> Route:
    why = ""
    if instance.state != InstanceState.READY:
        why = "state"
    elif instance.desire != InstanceDesire.RUNNING:
        why = "wish"
    elif instance.version.state != VersionState.SERVING:
        why = "version"
    elif instance.engine in off:
        why = "engine"
    elif not instance.host or instance.port is None:
        why = "address"
    caps = [cap for cap in (instance.concurrency_cap, instance.guard_cap) if cap is not None]
    owner = instance.owner_id
    return Route(
        instance=instance,
        takes=not why,
        why_not=why,
        cap=min(caps, default=None),
        address=pool.engine_address(instance),
        simulated=pool.is_made_up(instance),
        owner=tenants.get(owner) if owner else None,
    )
