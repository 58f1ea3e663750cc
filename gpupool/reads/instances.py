"""Instances beside their versions' replicas: the tenants' pool, what could be rolled back, and how near each is."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db.models import Min, Q, Sum

from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, ModelVersion, NodeState, VersionState
from gpupool.models.catalog import PAPERS_OF_VERSION, RUNS
from gpupool.policies.asleep_pool import Pooled, PoolRules, Waiting, reuse_ratio
from gpupool.policies.instance import UP, State
from gpupool.policies.lease import holder_of
from gpupool.policies.rollback import Candidate
from gpupool.policies.tiers import Latency, Tier, Timed, awake_bytes, tier_of, wake_latency

_LOADS: Final = (InstanceState.STAGING, InstanceState.LOADING, InstanceState.WARMING)


@dataclass(frozen=True, slots=True)
class PoolWorld:
    """The pool at one look."""

    pooled: tuple[Pooled, ...]
    waiting: tuple[Waiting, ...]
    idle_seconds: Mapping[UUID, float]
    rules: PoolRules


def read_pool() -> PoolWorld:
    """Every instance that a tenant acquired, and every one that waits to wake."""
    asked = Q(pooled=True) | Q(desire=InstanceDesire.RUNNING, lease_id__isnull=False)
    rows = Instance.objects.filter(asked, attached=False).exclude(state=InstanceState.STOPPED)
    rows = rows.exclude(desire=InstanceDesire.STOPPED).select_related("version").defer(*PAPERS_OF_VERSION)
    instances = list(rows.order_by("pk"))
    leases = _leases(instances)
    own = {one.pk: [lease for lease in leases.get(one.pk, []) if _is_own(one, lease)] for one in instances}
    waiting = [
        Waiting(one.pk, frozenset(lease.device_id for lease in own[one.pk]), one.state_changed_at.timestamp())
        for one in instances
        if State(one.state) not in UP
        and one.desire == InstanceDesire.RUNNING
        and any(_is_short(one, lease) for lease in own[one.pk])
    ]
    taken = {lease.device_id: lease.device for one in instances if one.pooled for lease in own[one.pk]}
    waiting += [
        Waiting(one.pk, _could_hold(taken.values(), one.version), one.state_changed_at.timestamp(), new=True)
        for one in instances
        if one.pooled and one.state == InstanceState.REQUESTED and one.reason
    ]
    default = settings.GATEHOUSE.idle_sleep_seconds
    return PoolWorld(
        pooled=tuple(pooled_view(one, own[one.pk]) for one in instances if one.pooled),
        waiting=tuple(waiting),
        idle_seconds={
            one.pk: default if one.version.idle_sleep_seconds is None else one.version.idle_sleep_seconds
            for one in instances
            if one.pooled and one.desire == InstanceDesire.RUNNING
        },
        rules=PoolRules(asleep_per_device=settings.GATEHOUSE.asleep_per_device),
    )


def pooled_view(instance: Instance, leases: list[Lease] | None = None) -> Pooled:
    """The instance as the policy of the pool sees it."""
    used = instance.last_used_at or instance.ready_at or instance.created_at
    if instance.state == InstanceState.READY:  # however long ago it was asked for: nobody could use it before
        used = max(used, instance.state_changed_at)
    return Pooled(
        instance_id=instance.pk,
        tenant_id=instance.tenant_id,
        state=State(instance.state),
        has_process=instance.pid is not None,
        priority=instance.priority,
        used_at=used.timestamp(),
        running_requests=instance.running_requests,
        wanted=instance.desire == InstanceDesire.RUNNING,
        device_ids=frozenset(lease.device_id for lease in leases or ()),
    )


def read_candidates() -> dict[tuple[UUID, UUID | None], list[Candidate]]:
    """Versions by model, of the models with one that serves, was never ready and has something to go back to."""
    fresh = ModelVersion.objects.filter(state=VersionState.SERVING, replicas__gt=0, last_stable_at__isnull=True)
    stable = ModelVersion.objects.filter(last_stable_at__isnull=False, state__in=RUNS)
    models = fresh.filter(model_id__in=stable.values("model_id")).values_list("model_id", flat=True).distinct()
    versions = ModelVersion.objects.filter(model_id__in=list(models), state__in=RUNS).select_related("model")
    found: dict[tuple[UUID, UUID | None], list[Candidate]] = {}
    for version in versions.order_by("pk"):
        found.setdefault((version.model_id, version.tenant_id), []).append(_candidate(version))
    return found


def _candidate(version: ModelVersion) -> Candidate:
    own = Instance.objects.filter(version=version, attached=False)
    if version.rolled_back_at is not None:  # it serves again: what failed before was answered then
        own = own.filter(created_at__gt=version.rolled_back_at)
    failed = own.filter(state=InstanceState.FAILED).order_by("state_changed_at").first()
    last = own.filter(Q(state=InstanceState.STOPPED, ready_at__isnull=True), lease_id__isnull=False)
    ended = last.order_by("-pk").first()
    told = failed or ended
    return Candidate(
        version_id=version.pk,
        label=f"{version.model.name} {version.name}",
        serving=version.state == VersionState.SERVING,
        stable_at=None if version.last_stable_at is None else version.last_stable_at.timestamp(),
        launchable=bool(version.artefact_uri),
        replicas=version.replicas,
        failed_since=None if failed is None else _failed_since(failed),
        failures=last.filter(restarts__gt=0).count(),  # what was stopped before it had a try says nothing
        ready=own.filter(state=InstanceState.READY).count(),
        coming=own.filter(state__in=_LOADS, desire=InstanceDesire.RUNNING, restarts=0).count(),
        reason="" if told is None else told.reason,
    )


def _failed_since(failed: Instance) -> float:
    """Not its last change of state: each further try of its agent would begin the time anew."""
    first = failed.events.filter(kind="state", value=InstanceState.FAILED).aggregate(at=Min("at"))["at"]
    return min(first or failed.state_changed_at, failed.state_changed_at).timestamp()


@dataclass(frozen=True, slots=True)
class TierReport:
    """How many instances are in a tier, and how long it takes to serve from there, in seconds."""

    tier: Tier
    instances: int
    latency: Latency


@dataclass(frozen=True, slots=True)
class Nearness:
    """All tiers from the farthest, and how often an acquisition found an instance there."""

    tiers: tuple[TierReport, ...]
    acquisitions: int
    reuses: int
    reuse_ratio: float | None


def read_nearness(version_id: UUID | None = None) -> Nearness:
    """Of all instances, or of a version's."""
    rows = Instance.objects.filter(attached=False)
    if version_id is not None:
        rows = rows.filter(version_id=version_id)
    live = rows.exclude(state=InstanceState.STOPPED).values_list("state", "pid")
    counts = Counter(tier_of(State(state), has_process=pid is not None) for state, pid in live)
    timed = rows.filter(Q(load_seconds__isnull=False) | Q(wake_seconds__isnull=False)).order_by("-pk")
    columns = timed.values_list("load_seconds", "started_from", "wake_seconds")[:1000]
    latency = wake_latency(Timed(*row) for row in columns)
    totals = rows.filter(pooled=True).aggregate(all=Sum("acquisitions"), again=Sum("reuses"))
    acquisitions, reuses = totals["all"] or 0, totals["again"] or 0
    return Nearness(
        tiers=tuple(TierReport(tier, counts[tier], latency[tier]) for tier in Tier),
        acquisitions=acquisitions,
        reuses=reuses,
        reuse_ratio=reuse_ratio(acquisitions=acquisitions, reuses=reuses),
    )


def _leases(instances: list[Instance]) -> dict[UUID, list[Lease]]:
    holders = {holder_of(one.pk): one.pk for one in instances}
    rows = Lease.objects.filter(holder__in=holders, released_at__isnull=True).select_related("device__node")
    found: dict[UUID, list[Lease]] = {}
    for lease in rows.order_by("pk"):
        found.setdefault(holders[lease.holder], []).append(lease)
    return found


def _could_hold(devices: Iterable[Device], version: ModelVersion) -> frozenset[UUID]:
    """Those of the devices that are of the version's kind, taken from at all, and large enough when nobody is there."""
    return frozenset(
        device.pk
        for device in devices
        if device.kind == version.device_kind
        and device.isolated_at is None
        and device.node.state == NodeState.ONLINE
        and not (device.node.cordoned or device.node.maintenance)
        and (device.memory_bytes or 0) >= version.memory_bytes
    )


def _is_short(instance: Instance, lease: Lease) -> bool:
    """Whether it has given back what it needs to be awake."""
    version = instance.version
    return lease.memory_bytes < awake_bytes(version.memory_bytes, version.host_memory_bytes, lease.device.kind)


def _is_own(instance: Instance, lease: Lease) -> bool:
    """Whether it is of a device that it runs on, and not of the host's memory beside it."""
    return lease.device.kind == instance.version.device_kind
