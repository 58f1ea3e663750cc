"""The pool as placement decides about it: devices with their claims, tenants' rights, and what versions ask for."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from gpupool.models import Device, Instance, InstanceDesire, Lease, ModelVersion, Node, NodeState, Reservation
from gpupool.policies.isolation import Isolation, IsolationRefused, parse_isolation
from gpupool.policies.lease import instance_in
from gpupool.policies.nearest import Shape
from gpupool.policies.placement import (
    DEFAULT_MEM_LIMIT_MB,
    ClaimView,
    DeviceView,
    Need,
    NodeFacts,
    QuotaView,
    RegionView,
    ReservationView,
)
from gpupool.policies.simulated import is_simulated
from gpupool.policies.topology import LEVELS
from tenants.models import Limit, Tenant
from tenants.policies.quota import POOLED

_MIB: Final = 1 << 20


def read_devices(live_nodes: Collection[UUID] | None = None) -> list[DeviceView]:
    """Every device with the claims on it; `live_nodes` None: as the records say."""
    claims = _claims()
    # Readings are most of a row, and none is asked for here; each node's row is read once, not beside every device.
    devices = list(Device.objects.defer("telemetry", "processes", "facts").order_by("pk"))
    nodes = Node.objects.defer("facts").in_bulk()
    facts = {
        pk: NodeFacts(pk, node.name, node.maintenance, node.capabilities, node.simulated) for pk, node in nodes.items()
    }
    return [
        _device(device, nodes[node_id], facts[node_id], claims.get(device.pk, []), live_nodes)
        for device in devices
        if (node_id := device.node_id) in nodes  # a simulated one may be removed at this moment
    ]


def read_reservations() -> list[ReservationView]:
    """What tenants have a right to."""
    names = dict(Tenant.objects.values_list("pk", "slug"))
    return [
        ReservationView(
            row.tenant_id, names.get(row.tenant_id, "?"), row.gpu_tag, row.devices, row.memory_bytes, row.lendable
        )
        for row in Reservation.objects.order_by("pk")
    ]


def read_quotas(now: datetime) -> list[QuotaView]:
    """Limits on GPUs and their memory, with what is held of them."""
    limits = list(Limit.objects.filter(metric__in=POOLED, key__isnull=True).order_by("pk"))
    if not limits:
        return []
    held = _held()
    children = _children() if any(limit.subtree for limit in limits) else {}
    return [_quota(limit, held, children, now) for limit in limits]


def need_of(version: ModelVersion) -> Need:
    """What one instance of it asks for. On the host's processor, memory beside it is of the same device."""
    on_host = version.device_kind == "cpu" and version.memory_bytes > 0
    return Need(
        kind=version.device_kind,
        memory_bytes=version.memory_bytes + (version.host_memory_bytes if on_host else 0),
        devices=version.devices,
        share=version.share,
        whole=version.whole_device,
        host_memory_bytes=0 if on_host else version.host_memory_bytes,
        topology=version.topology,
        strategy=version.strategy,
        gpu_tag=version.gpu_tag,
        mem_limit_bytes=mem_limit_bytes(version.gpu_tag, version.mem_limit_mb),
        priority=version.priority,
        tenant_id=version.owner_id,
        isolation=isolation_of(version.isolation),
        shape=shape_of(version.request_shape),
        precision=str(version.request_shape.get("precision", "")),
        model=version.model.name,
        simulated=is_simulated(version.artefact_uri),
    )


def mem_limit_bytes(gpu_tag: str, mem_limit_mb: int | None) -> int | None:
    """The most that may be claimed of each device: as asked, 32,768 MB where a tag is and no limit, else none."""
    if mem_limit_mb is not None:
        return mem_limit_mb * _MIB
    return DEFAULT_MEM_LIMIT_MB * _MIB if gpu_tag else None


def isolation_of(asked: Mapping[str, Any]) -> Isolation:
    """As it was checked when it was written; a row from elsewhere that makes no sense asks for nothing."""
    try:
        return parse_isolation(asked)
    except IsolationRefused:
        return Isolation()


def shape_of(asked: Mapping[str, Any]) -> Shape | None:
    """Only of a shape that says both, batch and length."""
    batch, length = asked.get("batch"), asked.get("sequence_length")
    if not isinstance(batch, int) or not isinstance(length, int) or batch < 1 or length < 1:
        return None
    return Shape(batch, length, str(asked.get("precision") or "fp16"))


_OF_HOLDER: Final = (
    "tenant_id", "priority", "desire", "version__isolation", "version__tenant_id", "version__model__tenant_id",
)  # fmt: skip
"""A version's manifest and card are large, and each of its instances would read them."""


def _claims() -> dict[UUID, list[ClaimView]]:
    rows = [(row, instance_in(row.holder)) for row in Lease.objects.filter(released_at__isnull=True).order_by("pk")]
    holders = [holder for _, holder in rows if holder is not None]
    held_by = Instance.objects.filter(pk__in=holders).select_related("version__model").only(*_OF_HOLDER)
    instances = {instance.pk: instance for instance in held_by}
    claims: dict[UUID, list[ClaimView]] = defaultdict(list)
    for row, holder in rows:
        claims[row.device_id].append(_claim(row, instances.get(holder) if holder else None))
    return claims


def _claim(row: Lease, instance: Instance | None) -> ClaimView:
    if instance is None:
        return ClaimView(None, row.memory_bytes, row.share, row.whole, row.tenant_id)
    isolation = isolation_of(instance.version.isolation)
    return ClaimView(
        holder=instance.pk,
        memory_bytes=row.memory_bytes,
        share=row.share,
        whole=row.whole,
        tenant_id=instance.owner_id,
        priority=instance.priority,
        since=row.claimed_at.timestamp(),
        leaving=instance.desire == InstanceDesire.STOPPED,
        mps_clients=isolation.mps_clients if isolation.mps else 0,
    )


def _device(
    device: Device, node: Node, facts: NodeFacts, claims: list[ClaimView], live_nodes: Collection[UUID] | None
) -> DeviceView:
    able = device.capability
    return DeviceView(
        device_id=device.pk,
        label=f"{node.name}/{device.stable_id}",
        kind=device.kind,
        memory_bytes=device.memory_bytes,
        claimed_bytes=sum(claim.memory_bytes for claim in claims),
        present=device.present,
        health=device.health,
        node_reachable=_is_reachable(node, live_nodes),
        node_cordoned=node.cordoned,
        node=facts,
        stable_id=device.stable_id,
        vendor=device.vendor,
        name=device.name,
        allocatable=device.allocatable,
        partition_of=device.partition_of,
        isolated=_why_isolated(device),
        tags=frozenset(device.tags),
        claims=tuple(claims),
        regions=tuple(_regions(device.regions)),
        links=_links(device.links),
        precisions=frozenset(able.get("precisions") or ()),
        tensor_cores=able.get("tensor_cores"),
        peak_tflops=able.get("peak_tflops"),
        used_bytes=device.memory_used_bytes,
    )


def _is_reachable(node: Node, live_nodes: Collection[UUID] | None) -> bool:
    return node.state == NodeState.ONLINE and (live_nodes is None or node.pk in live_nodes)


def _why_isolated(device: Device) -> str:
    if device.isolated_at is None:
        return ""
    return device.isolated_reason.removesuffix(".") or "nobody said why"


def _regions(told: Iterable[Mapping[str, Any]]) -> Iterable[RegionView]:
    for one in told:
        yield RegionView(
            kind=str(one.get("kind", "")),
            size_bytes=one.get("size_bytes"),
            latency_ns=one.get("latency_ns"),
            access=frozenset(one.get("access") or ()),
        )


def _links(told: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The nearest kind by peer."""
    links: dict[str, str] = {}
    for one in told:
        peer, kind = str(one.get("peer", "")), str(one.get("kind", ""))
        if peer and LEVELS.get(kind, -1.0) > LEVELS.get(links.get(peer, ""), -1.0):
            links[peer] = kind
    return links


# What tenants hold


def _held() -> list[tuple[UUID | None, str, UUID, int]]:
    """(tenant, model, device, bytes) of every claim on a GPU."""
    rows = Lease.objects.filter(released_at__isnull=True, device__kind="gpu")
    found = list(rows.values_list("tenant_id", "holder", "device_id", "memory_bytes"))
    holders = [holder for _, text, _, _ in found if (holder := instance_in(text)) is not None]
    columns = ("pk", "version__model__name", "tenant_id", "version__tenant_id", "version__model__tenant_id")
    known = {
        pk: (owner_of(*owners), model)
        for pk, model, *owners in Instance.objects.filter(pk__in=holders).values_list(*columns)
    }
    return [
        (*known.get(instance_in(text) or UUID(int=0), (tenant, "")), device, size)
        for tenant, text, device, size in found
    ]


def owner_of(*tenants: UUID | None) -> UUID | None:
    """Instance.owner_id by columns: of its own tenant, its version's and its model's the first that there is.

    Not the row's own: an instance that sleeps is bound to another tenant while its claim stands.
    """
    return next((one for one in tenants if one is not None), None)


def _children() -> Mapping[UUID, list[UUID]]:
    children: dict[UUID, list[UUID]] = defaultdict(list)
    for pk, parent in Tenant.objects.filter(parent__isnull=False).values_list("pk", "parent_id"):
        if parent is not None:
            children[parent].append(pk)
    return children


def _quota(
    limit: Limit,
    held: Iterable[tuple[UUID | None, str, UUID, int]],
    children: Mapping[UUID, list[UUID]],
    now: datetime,
) -> QuotaView:
    tenants = None if limit.tenant_id is None else _scope(limit.tenant_id, children if limit.subtree else {})
    own = [
        (device, size)
        for tenant, model, device, size in held
        if (tenants is None or tenant in tenants) and limit.model in ("", model)
    ]
    boosted = limit.boost_amount is not None and limit.boost_until is not None and limit.boost_until > now
    return QuotaView(
        quota_id=limit.pk,
        metric=limit.metric,
        amount=limit.boost_amount if boosted and limit.boost_amount is not None else limit.amount,
        held_devices=frozenset(device for device, _ in own),
        held_bytes=sum(size for _, size in own),
        tenants=tenants,
        model=limit.model,
    )


def _scope(tenant_id: UUID, children: Mapping[UUID, list[UUID]]) -> frozenset[UUID]:
    found, waiting = {tenant_id}, [tenant_id]
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return frozenset(found)
