"""The devices' memory as it is now, for pages, frames and the history: a constant number of queries."""

import gc
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Q

from gpupool import models as rows
from gpupool.models import InstanceState, ModelVersion, NodeState
from gpupool.policies.estimate import CannotEstimate
from gpupool.policies.lease import holder_of, instance_in
from gpupool.policies.manifest import BadManifest, read_manifest
from gpupool.policies.memory_tree import WHOLE_TOLD, Claim, Device, Instance, MemoryTree, Who, build_tree
from gpupool.policies.memory_view import for_tenant
from gpupool.policies.silence import is_silent
from gpupool.reads.estimates import asked_of, estimate_asked
from gpupool.reads.placement import owner_of
from gpupool.reads.quota_use import read_quota_use
from tenants.models import Limit, Tenant
from tenants.policies.quota import POOLED

_WEIGHT_FILES: Final = (".safetensors", ".gguf", ".bin", ".pt")

_OF_DEVICE: Final = (
    "pk", "node_id", "stable_id", "kind", "name", "index", "memory_bytes", "memory_used_bytes", "health", "present",
    "observed_at", "simulated", "allocatable", "partition_of", "isolated_at", "processes",
)  # fmt: skip
_OF_NODE: Final = ("pk", "name", "state", "cordoned", "maintenance")
_OF_INSTANCE: Final = (
    "pk", "tenant_id", "version__tenant_id", "version__model__tenant_id", "version__model__name", "version__name",
    "state", "engine", "version__device_kind", "pid", "device_bytes", "memory_rss_bytes", "weights_bytes",
    "kv_capacity_bytes", "kv_used", "adapters_bytes", "compute_bytes", "version_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """One of a tenant's limits on GPUs or their memory.

    `used_bytes`: in use now; None: not all processes tell, or the limit counts departments too, whose use is theirs.
    """

    metric: str  # gpus, gpu_memory
    model: str  # that it counts alone; empty: all
    amount: int
    held: int
    used_bytes: int | None


def read_tree(*, now: datetime, node_id: UUID | None = None, fitted: bool = True) -> MemoryTree:
    """Of the whole pool, or of one node; as it was read, where not `fitted`. Raises Node.DoesNotExist."""
    nodes = rows.Node.objects.values_list(*_OF_NODE)
    if node_id is not None:
        nodes = nodes.filter(pk=node_id)
        if not nodes:
            raise rows.Node.DoesNotExist
    devices = rows.Device.objects.all()
    claims = rows.Lease.objects.filter(released_at__isnull=True)
    if node_id is not None:
        devices, claims = devices.filter(node=node_id), claims.filter(device__node=node_id)
    scope = "cluster" if node_id is None else f"node:{node_id}"
    return _read(nodes, devices, claims, now=now, scope=scope, fitted=fitted)


def read_tenant_tree(tenant: Tenant, *, now: datetime) -> MemoryTree:
    """What a tenant may see: its own claims, and on the same devices how much others have claimed."""
    own = Q(tenant_id=tenant.pk) | Q(version__tenant_id=tenant.pk) | Q(version__model__tenant_id=tenant.pk)
    held = rows.Instance.objects.filter(own).exclude(state=InstanceState.STOPPED).values_list("pk", flat=True)
    holders = [holder_of(pk) for pk in held]
    claimed = rows.Lease.objects.filter(Q(holder__in=holders) | Q(tenant_id=tenant.pk), released_at__isnull=True)
    places = set(claimed.values_list("device_id", flat=True))
    devices = rows.Device.objects.filter(pk__in=places)
    claims = rows.Lease.objects.filter(released_at__isnull=True, device_id__in=places)
    nodes = rows.Node.objects.filter(devices__in=places).distinct().values_list(*_OF_NODE)
    whole = _read(nodes, devices, claims, now=now, scope="cluster", fitted=False)
    return for_tenant(whole, str(tenant.pk), scope=f"tenant:{tenant.slug}", label=tenant.name)


@contextmanager
def _not_collecting() -> Iterator[None]:
    """A tree of a thousand GPUs is a hundred thousand objects that live: looking for cycles took as long as reading."""
    if not gc.isenabled():  # another thread is at it
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_not_collecting()
def _read(nodes: Iterable[Any], devices: Any, claims: Any, *, now: datetime, scope: str, fitted: bool) -> MemoryTree:
    by_node = {pk: more for pk, *more in nodes}
    leases = list(claims.values_list("device_id", "holder", "tenant_id", "memory_bytes", "whole"))
    held = [Claim(device, holder, instance_in(holder), *more) for device, holder, *more in leases]
    instances = _instances({one.instance_id for one in held if one.instance_id is not None})
    found = list(devices.values_list(*_OF_DEVICE))
    shown = [
        _device(dict(zip(_OF_DEVICE, row, strict=True)), by_node, now)
        for row in _worth_showing(found, {one.device_id for one in held})
        if row[1] in by_node
    ]
    every = [*(one.tenant_id for one in instances.values()), *(one.tenant_id for one in held)]
    owners = {tenant_id for tenant_id in every if tenant_id is not None}
    who = {
        pk: Who(slug, name) for pk, slug, name in Tenant.objects.filter(pk__in=owners).values_list("pk", "slug", "name")
    }
    label = next(iter(by_node.values()))[0] if scope.startswith("node:") else ""
    return build_tree(shown, held, instances, who, scope=scope, label=label, fitted=fitted)


def _worth_showing(found: list[Any], claimed: Collection[UUID]) -> list[Any]:
    """Not what is gone; of what is divided its parts; a host's memory where it is claimed or all that there is."""
    at = {name: place for place, name in enumerate(_OF_DEVICE)}
    divided = {(row[at["node_id"]], row[at["partition_of"]]) for row in found if row[at["partition_of"]]}
    with_gpu = {row[at["node_id"]] for row in found if row[at["kind"]] != "cpu" and row[at["present"]]}
    return [
        row
        for row in found
        if row[at["pk"]] in claimed
        or (
            row[at["present"]]
            and (row[at["allocatable"]] or (row[at["node_id"]], row[at["stable_id"]]) not in divided)
            and (row[at["kind"]] != "cpu" or row[at["node_id"]] not in with_gpu)
        )
    ]


def _device(row: Mapping[str, Any], nodes: Mapping[UUID, Any], now: datetime) -> Device:
    name, state, cordoned, maintenance = nodes[row["node_id"]]
    online = state == NodeState.ONLINE and row["present"]
    return Device(
        device_id=row["pk"],
        node_id=row["node_id"],
        node=name,
        kind=row["kind"],
        name=row["name"],
        index=row["index"],
        size=row["memory_bytes"],
        used=row["memory_used_bytes"],
        health=row["health"],
        stale=not row["present"] or is_silent(state, row["observed_at"], now=now),
        simulated=row["simulated"],
        takes_new=online
        and not cordoned
        and not maintenance
        and row["isolated_at"] is None
        and row["allocatable"]
        and row["health"] == "ok",
        by_instance=_by_instance(row["processes"]),
        part_of=row["partition_of"],
    )


def _by_instance(processes: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    """Bytes of each instance's processes; None where one of them does not say.

    Rows have what an agent said, whatever else it was beside numbers in their range.
    """
    sums: dict[str, int | None] = {}
    for process in processes:
        key, size = process.get("instance_id"), process.get("memory_bytes")
        if isinstance(key, str):
            before = sums.get(key, 0)
            sums[key] = None if before is None or not isinstance(size, int) else before + max(0, size)
    return sums


def _instances(wanted: Collection[UUID]) -> dict[UUID, Instance]:
    asked = rows.Instance.objects.exclude(state=InstanceState.STOPPED)
    if len(wanted) <= _MOST_NAMED:
        asked = asked.filter(pk__in=wanted)
    found = list(asked.values_list(*_OF_INSTANCE))
    _learn_weights({row[-1] for row in found if row[_WEIGHTS_AT] is None} - _weights.keys())
    return {row[0]: _instance(*row) for row in found}


_WEIGHTS_AT: Final = _OF_INSTANCE.index("weights_bytes")
_MOST_KEPT: Final = 10_000
_MOST_NAMED: Final = 500
"""More are not asked for one by one: nearly all that run have claims."""
_weights: Final[dict[UUID, int | None]] = {}
"""What a version's weights take, as engines tell it, where its own did not: by its manifest, or its files' headers.

Kept, for its artefact stays what it is once there are instances.
"""


def _learn_weights(versions: Collection[UUID]) -> None:
    if not versions:
        return
    if len(_weights) + len(versions) > _MOST_KEPT:
        _weights.clear()
    found: dict[UUID, int | None] = dict.fromkeys(versions)
    for version in ModelVersion.objects.filter(pk__in=versions).select_related("model").defer("card", "checks"):
        found[version.pk] = _stated_weights(version)
    _weights.update(found)  # once all of it is read: what could not be looked up is looked up again


def _stated_weights(version: ModelVersion) -> int | None:
    try:
        files = read_manifest(version.manifest).files if version.manifest else ()
    except BadManifest:
        files = ()
    stated = sum(file.bytes for file in files if file.path.endswith(_WEIGHT_FILES))
    if stated:
        return stated if version.engine in WHOLE_TOLD else stated // max(1, version.devices)
    try:
        made = estimate_asked(asked_of(version))
    except CannotEstimate:
        return None
    if version.engine in WHOLE_TOLD:
        return sum(part.weights for part in (*made.cards, made.host))
    return max((part.weights for part in made.cards), default=made.host.weights)


def _instance(
    pk: UUID, tenant: UUID | None, version_tenant: UUID | None, model_tenant: UUID | None, model: str, version: str,
    state: str, engine: str, device_kind: str, pid: int | None, device_bytes: int | None, rss: int | None,
    weights: int | None, kv_capacity: int | None, kv_used: float | None, adapters: int | None, compute: int | None,
    version_id: UUID,
) -> Instance:  # fmt: skip
    return Instance(
        instance_id=pk,
        tenant_id=owner_of(tenant, version_tenant, model_tenant),
        model=model,
        version=version,
        state=state,
        engine=engine,
        device_kind=device_kind,
        has_process=pid is not None,
        device_bytes=device_bytes,
        rss=rss,
        weights=_weights.get(version_id) if weights is None else weights,
        kv_capacity=kv_capacity,
        kv_used=kv_used,
        adapters=adapters,
        compute=compute,
    )


def read_tenant_quotas(tenant: Tenant, *, now: datetime) -> list[TenantQuota]:
    """What its own limits let it hold of GPUs, what it holds, and what of that its processes have in use now.

    Limits of others that count it too are left out: their sums tell of those others.
    """
    own = set(Limit.objects.filter(tenant=tenant, metric__in=POOLED, key__isnull=True).values_list("pk", flat=True))
    if not own:
        return []
    return [
        TenantQuota(
            use.quota.metric,
            use.quota.model,
            use.quota.amount,
            use.held,
            use.used_bytes if use.quota.tenants == frozenset({tenant.pk}) else None,
        )
        for use in read_quota_use(now)
        if use.quota.quota_id in own
    ]
