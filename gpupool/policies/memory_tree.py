"""Where every byte of device memory is: cluster > node > GPU > tenant > instance > segment, in MiB.

Segments of a GPU never add up to more than it has. What nobody tells is a segment "unknown", never nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from gpupool.policies.memory_fit import fit
from gpupool.policies.memory_parts import MIB, Held, Part, parts_of

__all__ = [
    "MIB",
    "NOT_IN_USE",
    "SEGMENTS",
    "SHARED",
    "WHOLE_TOLD",
    "Claim",
    "Device",
    "Instance",
    "MemoryTree",
    "TreeNode",
    "Who",
    "build_tree",
    "how_much",
    "name_of",
]

SEGMENTS: Final = (
    "weights", "kv_used", "kv_free", "activations", "lora",
    "unused",  # claimed, and not in use
    "other",  # in use by processes without a claim
    "reserved",  # claims of others, in a tenant's tree
    "free",  # claimed by nobody
    "unknown",
)  # fmt: skip

NOT_IN_USE: Final = frozenset({"unused", "reserved", "free"})
"""All else of an instance counts as in use: a cache that is empty is taken all the same.

An instance with something "unknown" and no "unused" at all is one whose use nobody tells. What is "unknown" of a GPU
itself does not count: the driver says how much of a GPU is in use.
"""

SHARED: Final = "shared"
"""The id of the tenant node of instances that serve every tenant."""

_NOBODY: Final = UUID(int=0)
WHOLE_TOLD: Final = frozenset({"llamacpp"})
"""Engines that tell what they have on all devices together; the others what each of them has."""

TreeNode = tuple[int, str, str, str, Mapping[str, Any]]
"""(index of its parent, kind, id, label, what else is said of it). The root's parent is -1."""


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """Nodes in preorder, and MiB of each segment in their order.

    `figures` are what changes each second beside the segments, by the node's index: no part of the topology.
    """

    scope: str
    simulated: str  # all of it, some, or nothing (empty)
    nodes: tuple[TreeNode, ...]
    values: tuple[int, ...]
    figures: Mapping[int, Mapping[str, float | None]] = field(default_factory=dict)

    def segments(self) -> Iterator[tuple[int, Mapping[str, Any], int]]:
        """(index of its parent, what is said of it, MiB) of each segment."""
        told = ((parent, extra) for parent, kind, _, _, extra in self.nodes if kind == "segment")
        for (parent, extra), mib in zip(told, self.values, strict=True):
            yield parent, extra, mib


def name_of(node: str, kind: str, index: int | None, name: str) -> str:
    """What people call a device by."""
    place = "cpu" if kind == "cpu" else index if index is not None else name
    return f"{node}/{place}"


def how_much(simulated: Collection[bool]) -> str:
    """Whether all of it, some, or nothing (empty) is made up; of what is true of its devices."""
    if True not in simulated:
        return ""
    return "some" if False in simulated else "all"


@dataclass(frozen=True, slots=True)
class Device:
    """One device; sizes in bytes, None where it does not say."""

    device_id: UUID
    node_id: UUID
    node: str
    kind: str  # gpu, cpu
    name: str
    index: int | None
    size: int | None
    used: int | None
    health: str
    stale: bool  # nobody has heard of it: what it said of its use counts no more
    simulated: bool
    takes_new: bool  # something new may be placed there
    by_instance: Mapping[str, int | None]  # bytes of an instance's processes that it lists; None: not of all of them
    part_of: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    device_id: UUID
    holder: str
    instance_id: UUID | None
    tenant_id: UUID | None  # counts where no instance holds it
    claimed: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance; bytes on all its devices together or on each, as its engine tells them."""

    instance_id: UUID
    tenant_id: UUID | None  # None: everybody's
    model: str
    version: str
    state: str
    engine: str
    device_kind: str
    has_process: bool
    device_bytes: int | None = None
    rss: int | None = None
    weights: int | None = None
    kv_capacity: int | None = None
    kv_used: float | None = None
    adapters: int | None = None
    compute: int | None = None


@dataclass(frozen=True, slots=True)
class Who:
    """A tenant by the names that people know it by."""

    slug: str
    name: str


def build_tree(
    devices: Iterable[Device],
    claims: Iterable[Claim],
    instances: Mapping[UUID, Instance],
    tenants: Mapping[UUID, Who],
    *,
    scope: str = "cluster",
    label: str = "",
    fitted: bool = True,
) -> MemoryTree:
    """The tree of these devices: nodes by name, GPUs by index, tenants by name, instances by when they were made.

    Not `fitted`, it has readings as they are, which may add up to more than a device has: so it is recorded, and so
    tenants' trees are made of it. What fitting takes from one instance depends on what others use.
    """
    by_device: dict[UUID, list[Claim]] = defaultdict(list)
    spans: dict[UUID, int] = defaultdict(int)
    shown = _shown(devices)
    kinds = {device.device_id: device.kind for device in shown}
    for claim in claims:
        by_device[claim.device_id].append(claim)
        instance = instances.get(claim.instance_id) if claim.instance_id is not None else None
        if instance is not None and kinds.get(claim.device_id) == instance.device_kind:
            spans[instance.instance_id] += 1
    owners: set[UUID | None] = {None, *(one.tenant_id for held in by_device.values() for one in held)}
    owners.update(one.tenant_id for one in instances.values())
    ranks = {owner: at for at, owner in enumerate(sorted(owners, key=lambda one: _name(one, tenants)))}
    tree = _Growing()
    tree.add(-1, "cluster", scope, label, {})
    node, root_of = None, 0
    for device in shown:
        held = by_device[device.device_id]
        if device.node_id != node:
            node, root_of = device.node_id, tree.add(0, "node", str(device.node_id), device.node, {})
        _grow(tree, root_of, device, held, instances, tenants, spans, ranks, fitted)
    made_up = how_much({device.simulated for device in shown})
    return MemoryTree(scope, made_up, tuple(tree.nodes), tuple(tree.values), tree.figures)


def _shown(devices: Iterable[Device]) -> list[Device]:
    """In order: a node's GPUs by index, then its processor."""
    return sorted(
        devices, key=lambda one: (one.node, str(one.node_id), one.kind == "cpu", one.index or 0, str(one.device_id))
    )


class _Growing:
    """A tree under construction."""

    def __init__(self) -> None:
        self.nodes: list[TreeNode] = []
        self.values: list[int] = []
        self.figures: dict[int, dict[str, float | None]] = {}

    def add(self, parent: int, kind: str, key: str, label: str, extra: Mapping[str, Any]) -> int:
        self.nodes.append((parent, kind, key, label, extra))
        return len(self.nodes) - 1

    def segment(self, parent: int, part: Part) -> None:
        name, size, of = part
        self.nodes.append((parent, "segment", "", "", {"seg": name, "of": of} if of else _PLAIN[name]))
        self.values.append(size)


_PLAIN: Final[Mapping[str, Mapping[str, str]]] = {name: {"seg": name} for name in SEGMENTS}


def _grow(
    tree: _Growing,
    parent: int,
    device: Device,
    claims: Sequence[Claim],
    instances: Mapping[UUID, Instance],
    tenants: Mapping[UUID, Who],
    spans: Mapping[UUID, int],
    ranks: Mapping[UUID | None, int],
    fitted: bool,
) -> None:
    size = None if device.size is None else device.size // MIB
    reserved = sum(claim.claimed for claim in claims) // MIB
    extra = {
        "size": size, "health": "unknown" if device.stale else device.health, "name": device.name,
        "index": device.index, "stale": device.stale, "sim": device.simulated,
    }  # fmt: skip
    if device.kind == "cpu":
        extra["cpu"] = True
    if device.part_of:
        extra["part"] = True
    label = name_of(device.node, device.kind, device.index, device.name)
    gpu = tree.add(parent, "gpu", str(device.device_id), label, extra)
    held = _in_order(claims, instances, ranks)
    filled = [_parts(device, claim, instance, spans) for claim, instance in held]
    used = None if device.stale else device.used
    own, all_tell = _known_use(device, held)
    left = None if used is None else max(0, used - own) // MIB
    # Where an instance with a claim does not tell its use, nobody can say what others have beside it.
    beside: list[Part] = [("other", left, "")] if left is not None and all_tell else []
    if fitted:
        fit(filled, [claim.claimed // MIB for claim, _ in held], beside, size)
    owner = 0
    last: UUID | None = _NOBODY  # no tenant has that id
    for (claim, instance), parts in zip(held, filled, strict=True):
        tenant_id = claim.tenant_id if instance is None else instance.tenant_id
        if tenant_id != last:
            last, who = tenant_id, tenants.get(tenant_id) if tenant_id is not None else None
            told = {} if who is None else {"slug": who.slug}
            key = SHARED if tenant_id is None else str(tenant_id)
            owner = tree.add(gpu, "tenant", key, key if who is None else who.name, told)
        _add_instance(tree, owner, claim, instance, parts, stale=device.stale)
    for part in beside:
        tree.segment(gpu, part)
    taken = sum(part[1] for parts in (*filled, beside) for part in parts)
    if size is not None:
        for part in _rest(max(0, size - taken), left, all_tell):
            tree.segment(gpu, part)
    tree.figures[gpu] = {
        "reserved": reserved,
        "used": None if used is None else used // MIB,
        "schedulable": _schedulable(device, size, reserved, claims),
    }


def _in_order(
    claims: Iterable[Claim], instances: Mapping[UUID, Instance], ranks: Mapping[UUID | None, int]
) -> list[tuple[Claim, Instance | None]]:
    held = [(claim, instances.get(claim.instance_id) if claim.instance_id else None) for claim in claims]

    def place(one: tuple[Claim, Instance | None]) -> tuple[Any, ...]:
        claim, instance = one
        owner = claim.tenant_id if instance is None else instance.tenant_id
        return (ranks[owner], 0 if claim.instance_id is None else claim.instance_id.int, claim.holder)

    return sorted(held, key=place)


def _name(tenant_id: UUID | None, tenants: Mapping[UUID, Who]) -> tuple[str, str]:
    who = tenants.get(tenant_id) if tenant_id is not None else None
    return (who.name if who is not None else SHARED, str(tenant_id))


def _add_instance(
    tree: _Growing, owner: int, claim: Claim, instance: Instance | None, parts: Iterable[Part], *, stale: bool
) -> None:
    claimed = claim.claimed // MIB
    if instance is None:
        at = tree.add(owner, "instance", claim.holder, claim.holder, {"claimed": claimed})
    else:
        extra = {
            "model": instance.model, "version": instance.version, "state": instance.state,
            "engine": instance.engine, "claimed": claimed,
        }  # fmt: skip
        at = tree.add(owner, "instance", str(instance.instance_id), instance.model, extra)
        tree.figures[at] = {"kv": None if instance.kv_used is None or stale else round(instance.kv_used, 3)}
    for part in parts:
        tree.segment(at, part)


def _parts(device: Device, claim: Claim, instance: Instance | None, spans: Mapping[UUID, int]) -> list[Part]:
    if instance is None or (device.stale and instance.has_process):
        return [("unknown", claim.claimed // MIB, "")]
    return parts_of(_held(device, claim, instance, spans.get(instance.instance_id, 1) or 1))


def _held(device: Device, claim: Claim, instance: Instance, span: int) -> Held:
    share = span if instance.engine in WHOLE_TOLD else 1
    return Held(
        claimed=claim.claimed,
        used=_used(device, instance, span),
        weights=_each(instance.weights, share),
        kv_capacity=_each(instance.kv_capacity, share),
        kv_used=instance.kv_used,
        adapters=_each(instance.adapters, share),
        compute=_each(instance.compute, share),
        has_process=instance.has_process,
        awake=instance.state != "asleep",
        beside=device.kind != instance.device_kind,
    )


def _each(size: int | None, share: int) -> int | None:
    return None if size is None else size // share


def _used(device: Device, instance: Instance, span: int) -> int | None:
    """Bytes of this device that the instance's processes have."""
    if device.kind == "cpu":
        return instance.rss
    listed = device.by_instance.get(str(instance.instance_id))
    return listed if listed is not None else _each(instance.device_bytes, span)


def _known_use(device: Device, held: Sequence[tuple[Claim, Instance | None]]) -> tuple[int, bool]:
    """Bytes that processes of instances with claims are known to have, and whether all of those tell."""
    own, all_tell = 0, True
    for _, instance in held:
        if instance is None or not instance.has_process:
            continue
        used = _used(device, instance, 1) if device.kind == "cpu" else device.by_instance.get(str(instance.instance_id))
        if used is None:
            all_tell = False
        else:
            own += used
    return own, all_tell


def _rest(size: int, left: int | None, all_tell: bool) -> list[Part]:
    """What nobody has claimed. `left`: in use, and nobody says whose: as much of it may be taken; None: any of it."""
    if left is None:
        return [("unknown", size, "")]
    if all_tell:
        return [("free", size, "")]
    unsure = min(size, left)
    return [("unknown", unsure, ""), ("free", size - unsure, "")]


def _schedulable(device: Device, size: int | None, reserved: int, claims: Sequence[Claim]) -> int | None:
    """MiB that placement may still promise: by claims, whatever is in use."""
    if size is None:
        return None
    if not device.takes_new or any(claim.whole for claim in claims):
        return 0
    return max(0, size - reserved)
