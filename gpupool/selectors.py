"""Reads of this app, as plain data for those above."""

import os
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.db.models import Case, Exists, F, OuterRef, Q, QuerySet, Sum, When
from django.utils import timezone

from gpupool.engines.base import Capability, EngineArgs, EngineArgumentsRefused
from gpupool.engines.registry import UnknownEngine, get_engine, rooms
from gpupool.models import (
    Device,
    EngineSwitch,
    FineTuningJob,
    Instance,
    InstanceDesire,
    InstanceState,
    Lease,
    Model,
    ModelAlias,
    ModelVersion,
    NodeState,
    VersionState,
)
from gpupool.policies.silence import SILENT_AFTER
from gpupool.policies.simulated import is_simulated


@dataclass(frozen=True, slots=True)
class ReadyEndpoint:
    """An instance that takes requests now."""

    instance_id: UUID
    version_id: UUID
    model_id: UUID
    model: str  # the name at the door
    engine: str
    host: str
    port: int
    base_path: str
    served_name: str
    authorization: str | None = field(repr=False)  # value of the header sent upstream; never log it
    slots: int | None
    tls: bool = False  # https
    tenant_id: UUID | None = None  # whose requests alone it takes: the instance's, or its version's
    cap: int | None = None  # requests at once that its memory allows; None: as many as it has slots
    cap_firm: bool = False  # not one more; else only while another instance has room


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A name at the door; `tenant_id` where it is private."""

    id: UUID
    name: str
    tenant_id: UUID | None
    created_at: datetime
    shortest_context_tokens: int | None = None  # of a request, prompt and answer; of those versions that say it
    longest_context_tokens: int | None = None  # None where one of the versions does not
    own_contexts: tuple[tuple[UUID, int | None, int | None], ...] = ()  # both, of tenants with versions of their own
    aliases: tuple[str, ...] = ()
    only_tenants: frozenset[UUID] = frozenset()  # whose own versions alone serve it; empty: it serves everybody
    simulated: bool = False  # a version that serves it is made up, and so may be its answers


def list_models() -> list[ModelEntry]:
    """Every model with a version that serves, by name."""
    return _entries(Model.objects.filter(versions__state=VersionState.SERVING).distinct().order_by("name"))


def owners_of_private_models() -> dict[str, UUID]:
    """Name or alias -> tenant, of models that are one tenant's alone, whether they serve or not."""
    owned = Model.objects.filter(tenant_id__isnull=False).values_list("name", "tenant_id")
    aliases = ModelAlias.objects.filter(model__tenant_id__isnull=False).values_list("name", "model__tenant_id")
    return {name: tenant_id for name, tenant_id in (*owned, *aliases) if tenant_id is not None}


def owners_of_versions(version_ids: Collection[UUID]) -> dict[UUID, UUID]:
    """Version -> tenant, of those that are one tenant's alone: by themselves, or as their model is."""
    rows = ModelVersion.objects.filter(pk__in=version_ids).values_list("pk", "tenant_id", "model__tenant_id")
    return {pk: owner for pk, own, of_model in rows if (owner := own or of_model) is not None}


def get_models(model_ids: Collection[UUID]) -> list[ModelEntry]:
    """Those of the models that have a version that serves; the others are gone from the door."""
    return _entries(Model.objects.filter(pk__in=model_ids, versions__state=VersionState.SERVING).distinct())


def _entries(models: QuerySet[Model]) -> list[ModelEntry]:
    found = list(models)
    attached = Instance.objects.filter(version=OuterRef("pk"), attached=True).exclude(state=InstanceState.STOPPED)
    versions = ModelVersion.objects.filter(model__in=found, state=VersionState.SERVING)
    contexts: dict[UUID, list[tuple[UUID | None, int | None]]] = {}
    aliases: dict[UUID, list[str]] = {}
    made_up: set[UUID] = set()
    for name, model_id in ModelAlias.objects.filter(model__in=found).order_by("name").values_list("name", "model_id"):
        aliases.setdefault(model_id, []).append(name)
    read = versions.only("model_id", "tenant_id", "engine", "engine_args", "artefact_uri")  # no manifests, no cards
    for version in read.annotate(has_attached=Exists(attached)):
        # How an engine was started that somebody else started is not in the catalogue.
        foreign = version.has_attached or not version.artefact_uri
        tokens = None if foreign else _context_tokens(version.engine, version.engine_args)
        contexts.setdefault(version.model_id, []).append((version.tenant_id, tokens))
        if is_simulated(version.artefact_uri):
            made_up.add(version.model_id)
    return [
        _entry(model, aliases.get(model.pk, ()), contexts.get(model.pk, ()), simulated=model.pk in made_up)
        for model in found
    ]


def _entry(
    model: Model, aliases: Iterable[str], contexts: Collection[tuple[UUID | None, int | None]], *, simulated: bool
) -> ModelEntry:
    """`contexts`: of each version that serves, whose it is and what a request to it may have."""
    owners = {owner for owner, _ in contexts} or {None}
    shared = [tokens for owner, tokens in contexts if owner is None]
    own = sorted(owner for owner in owners if owner is not None)
    theirs = {one: [*shared, *(tokens for owner, tokens in contexts if owner == one)] for one in own}
    return ModelEntry(
        model.pk,
        model.name,
        model.tenant_id,
        model.created_at,
        shortest_context_tokens=_shortest(shared),
        longest_context_tokens=_longest(shared),
        own_contexts=tuple((one, _shortest(both), _longest(both)) for one, both in theirs.items()),
        aliases=tuple(aliases),
        only_tenants=frozenset(() if None in owners else own),
        simulated=simulated,
    )


def _shortest(contexts: Collection[int | None]) -> int | None:
    return min((tokens for tokens in contexts if tokens is not None), default=None)


def _longest(contexts: Collection[int | None]) -> int | None:
    known = [tokens for tokens in contexts if tokens is not None]
    return max(known) if known and len(known) == len(contexts) else None


def _context_tokens(engine: str, engine_args: EngineArgs) -> int | None:
    """What a request may have, as the engine's room reads its arguments; None where it does not say."""
    try:
        room = get_engine(engine)
        return None if room.context_tokens is None else room.context_tokens(engine_args)
    except (UnknownEngine, EngineArgumentsRefused):
        return None


def list_ready_endpoints() -> list[ReadyEndpoint]:
    """Every instance that takes requests."""
    return [_endpoint(instance) for instance in _ready()]


def get_endpoints(instance_ids: Collection[UUID]) -> list[ReadyEndpoint]:
    """Those of the instances that take requests now; the others must leave the routing."""
    return [_endpoint(instance) for instance in _ready().filter(pk__in=instance_ids)]


def _ready() -> QuerySet[Instance]:
    return _serving().exclude(engine__in=switched_off_engines())


def switched_off_engines() -> QuerySet[EngineSwitch, str]:
    """Names of the engines that are switched off; of use within other queries too."""
    return EngineSwitch.objects.filter(enabled=False).values_list("name", flat=True)


def _serving() -> QuerySet[Instance]:
    """Instances that take requests, as far as it is theirs to say."""
    return (
        Instance.objects.filter(
            state=InstanceState.READY,
            desire=InstanceDesire.RUNNING,
            version__state=VersionState.SERVING,
            port__isnull=False,
        )
        .exclude(host="")
        .select_related("version__model")
        .defer("version__manifest", "version__card", "version__checks")  # nothing of them goes to relays
        .order_by("pk")
    )


def _endpoint(instance: Instance) -> ReadyEndpoint:
    assert instance.port is not None
    cap = min((cap for cap in (instance.concurrency_cap, instance.guard_cap) if cap is not None), default=None)
    firm = instance.guard_cap is not None or settings.GATEHOUSE.mode_caps_firm
    return ReadyEndpoint(
        instance_id=instance.pk,
        version_id=instance.version_id,
        model_id=instance.version.model_id,
        model=instance.version.model.name,
        engine=instance.engine,
        host=instance.host,
        port=instance.port,
        base_path=instance.base_path,
        served_name=instance.version.served_name,
        authorization=engine_authorization(instance.credential_variable),
        slots=_slots(instance.slots, cap, firm=firm),
        tls=instance.tls,
        cap=cap,
        cap_firm=cap is not None and firm,
        tenant_id=instance.tenant_id or instance.version.tenant_id,
    )


def _slots(slots: int | None, cap: int | None, *, firm: bool) -> int | None:
    """Requests that it takes at once: what its engine decodes, or fewer where its memory allows no more."""
    if cap is None or not firm:
        return slots
    return cap if slots is None else min(slots, cap)


def engine_authorization(credential_variable: str) -> str | None:
    """The `Authorization` value for an engine with a key of its own, from this process's environment.

    None without a variable, or when it is not set here or cannot stand in a header: the engine will then
    answer 401, and its probe says so.
    """
    secret = os.environ.get(credential_variable, "").strip() if credential_variable else ""
    return f"Bearer {secret}" if secret and secret.isascii() and secret.isprintable() else None


@dataclass(frozen=True, slots=True)
class DeviceOverview:
    """One device for the console. Reserved, used and schedulable are three numbers, in bytes; None is unknown."""

    id: UUID
    node_id: UUID
    node_name: str
    node_state: str
    stable_id: str
    kind: str
    vendor: str
    name: str
    index: int | None
    memory_bytes: int | None
    reserved_bytes: int  # promised to instances
    used_bytes: int | None  # in use, as the device says
    schedulable_bytes: int | None  # can still be promised; 0 where nothing may be placed now
    utilization: float | None
    temperature_celsius: float | None
    health: str
    present: bool
    facts: dict[str, str]
    observed_at: datetime | None
    simulated: bool


_UNSHOWN: Final = ("regions", "capability", "links", "telemetry", "processes", "tags")
"""Of a thousand devices, to read these costs more than all the rest."""


def list_devices_overview(
    node_id: UUID | None = None, *, node_ids: Collection[UUID] | None = None
) -> list[DeviceOverview]:
    """Every device that is present or still holds claims, by node and index; of one that is divided, its parts.

    Of one node alone where it is given, or of several.
    """
    leases = Lease.objects.filter(released_at__isnull=True)
    devices = Device.objects.select_related("node").defer(*_UNSHOWN, "node__capabilities", "node__facts")
    chosen = [node_id] if node_id is not None else node_ids
    if chosen is not None:
        leases, devices = leases.filter(device__node_id__in=chosen), devices.filter(node_id__in=chosen)
    reserved: dict[UUID, int] = dict(
        leases.values_list("device_id").annotate(total=Sum("memory_bytes")).order_by("device_id")
    )
    devices = devices.filter(Q(present=True, allocatable=True) | Q(pk__in=reserved))
    return [
        DeviceOverview(
            id=device.pk,
            node_id=device.node_id,
            node_name=device.node.name,
            node_state=device.node.state,
            stable_id=device.stable_id,
            kind=device.kind,
            vendor=device.vendor,
            name=device.name,
            index=device.index,
            memory_bytes=device.memory_bytes,
            reserved_bytes=reserved.get(device.pk, 0),
            used_bytes=device.memory_used_bytes,
            schedulable_bytes=_schedulable(device, reserved.get(device.pk, 0)),
            utilization=device.utilization,
            temperature_celsius=device.temperature_celsius,
            health=device.health,
            present=device.present,
            facts=device.facts,
            observed_at=device.observed_at,
            simulated=device.simulated,
        )
        for device in devices.order_by("node__name", "kind", "index", "stable_id")
    ]


def _schedulable(device: Device, reserved: int) -> int | None:
    node = device.node
    if not device.present or node.cordoned or node.maintenance or node.state != "online" or device.health != "ok":
        return 0
    if device.isolated_at is not None:
        return 0
    return None if device.memory_bytes is None else max(0, device.memory_bytes - reserved)


@dataclass(frozen=True, slots=True)
class EngineOverview:
    """One engine of this process's registry, with its switch and its instances."""

    name: str
    title: str
    package: str  # what brought it
    protocol: str
    versions: str  # of the engine itself, empty: any
    capabilities: tuple[str, ...]  # those we know in their order, then its own
    launchable: bool
    enabled: bool
    instances: int  # not stopped
    serving: int  # of them, those that take requests, or would were it switched on
    batching: str = ""  # how it works on several requests: engines.base.Engine
    grain: str = "outside"  # what keeps its models apart
    logprobs: bool | None = None
    counts_tokens: bool = False  # it tells how many tokens it has worked on
    tells_memory: bool = False  # it tells what it made of its memory
    tells_context: bool = False  # the longest request is known from its arguments


def list_engines() -> list[EngineOverview]:
    """Every engine that can be used here, built-in ones first."""
    off = set(switched_off_engines())
    running = Counter(Instance.objects.exclude(state=InstanceState.STOPPED).values_list("engine", flat=True))
    serving = Counter(_serving().order_by().values_list("engine", flat=True))
    return [
        EngineOverview(
            name=name,
            title=room.engine.title,
            package=room.package,
            protocol=room.engine.protocol,
            versions=room.engine.versions,
            capabilities=tuple(sorted(room.engine.capabilities, key=_capability_order)),
            launchable=room.engine.launch is not None,
            enabled=name not in off,
            instances=running[name],
            serving=serving[name],
            batching=room.engine.batching,
            grain=room.engine.grain,
            logprobs=room.engine.logprobs,
            counts_tokens=room.engine.counters is not None,
            tells_memory=room.engine.measured is not None,
            tells_context=room.engine.context_tokens is not None,
        )
        for name, room in rooms().items()
    ]


def list_models_served_by_alone(engine: str) -> list[str]:
    """Names of the models that take requests now and would not without this engine."""
    serving = set(_ready().filter(engine=engine).values_list("version__model__name", flat=True))
    others = _ready().exclude(engine=engine).values_list("version__model__name", flat=True)
    return sorted(serving.difference(others))


def _capability_order(capability: str) -> tuple[int, str]:
    known: list[str] = list(Capability)
    return (known.index(capability) if capability in known else len(known), capability)


def engine_address(instance: Instance) -> str:
    """Where an instance answers, as people write it; empty before it has a place."""
    if not instance.host or not instance.port:
        return ""
    host = f"[{instance.host}]" if ":" in instance.host else instance.host
    return f"{'https://' if instance.tls else ''}{host}:{instance.port}{instance.base_path}"


def is_made_up(instance: Instance) -> bool:
    """Whether it computes nothing: its node is simulated or, before it has one, only such nodes can run its version."""
    return instance.node.simulated if instance.node else is_simulated(instance.version.artefact_uri)


def list_instances(now: datetime | None = None) -> QuerySet[Instance]:
    """Every instance with what its names need, newest first; see `with_figures`."""
    return with_figures(Instance.objects.select_related("version__model", "node").order_by("-pk"), now)


def with_figures(rows: QuerySet[Instance], now: datetime | None = None) -> QuerySet[Any]:
    """Instances with what people are shown of them: running_now, waiting_now, kv_now, device_bytes_now, rss_now."""
    now = now or timezone.now()
    return rows.annotate(
        running_now=figure("running_requests", now),
        waiting_now=figure("waiting_requests", now),
        kv_now=figure("kv_used", now),
        device_bytes_now=figure("device_bytes", now),
        rss_now=figure("memory_rss_bytes", now),
    )


def figure(column: str, now: datetime) -> Case:
    """What the instance told of itself, as people are shown it.

    NULL of one that is not seen now: what was so when it was last seen may be long over. `now` is by the clock that
    wrote when nodes were seen: the application's, not the database's.
    """
    silent = Q(node__state=NodeState.UNREACHABLE) | Q(node__last_seen_at__lt=now - SILENT_AFTER)
    unseen = Q(node__isnull=True, state=InstanceState.UNKNOWN) | silent
    return Case(When(unseen, then=None), default=F(column))


FIGURES: Final = ("running_requests", "waiting_requests", "kv_used", "device_bytes", "memory_rss_bytes")
"""Columns of an instance that are told as `figure` says."""


def is_unseen(instance: Instance, now: datetime | None = None) -> bool:
    """The rule of `figure`, of a row that was read.

    Its node is silent, whether or not that was noticed already: who notices may be away. Where its node reports, its
    figures are of now even in state `unknown`: it is barred from requests, or what it does not tell is NULL as it is.
    """
    node = instance.node
    if node is None:
        return instance.state == InstanceState.UNKNOWN
    seen, silent_before = node.last_seen_at, (now or timezone.now()) - SILENT_AFTER
    return node.state == NodeState.UNREACHABLE or (seen is not None and seen < silent_before)


def list_fine_tuning_jobs(tenant: str = "", state: str = "", model: str = "") -> QuerySet[FineTuningJob]:
    """Jobs of all tenants with what came of them, newest first; of one tenant, in a state, of a model."""
    given = {"tenant_slug": tenant, "state": state, "model": model}
    rows = FineTuningJob.objects.select_related("adapter").order_by("-pk")
    return rows.filter(**{name: value for name, value in given.items() if value})
