"""A memory tree in figures. Allocated, used, schedulable are three: what is claimed, what is in use, what is left."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpupool.policies.memory_tree import MemoryTree

PRESSURE: Final = 0.92
"""From this share of its KV cache on an instance is short of it."""
MOST_TIGHTEST: Final = 10


@dataclass(frozen=True, slots=True)
class Headroom:
    """One instance's KV cache."""

    instance_id: str
    model: str
    tenant: str
    device: str
    used: float  # 0 to 1
    free_mib: int


@dataclass(frozen=True, slots=True)
class Hole:
    """The most that can still be placed in one piece."""

    device_id: str
    device: str
    mib: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the GPUs; of the processors where there are none. MiB; `untold` devices do not say what is in use."""

    devices: int
    instances: int
    size_mib: int
    allocated_mib: int  # reserved by instances: their claims
    used_mib: int | None  # None: no device tells
    untold: int
    schedulable_mib: int | None  # None: no device's size is known
    weights_mib: int | None  # None, here and below: no engine tells
    kv_reserved_mib: int | None
    kv_used_mib: int | None
    hole: Hole | None
    pressed: int  # instances at PRESSURE and above
    tightest: tuple[Headroom, ...]  # those with the least of their cache left first


@dataclass(frozen=True, slots=True)
class Row:
    """One segment with all that it is a part of: a line of the tree as a table."""

    node: str
    device: str
    device_id: str
    size_mib: int | None
    tenant: str
    model: str
    version: str
    instance_id: str
    state: str
    claimed_mib: int | None
    segment: str
    mib: int
    simulated: bool


def table_of(tree: MemoryTree) -> Iterator[Row]:
    """Every segment, in the tree's order."""
    nodes = tree.nodes
    for parent, extra, mib in tree.segments():
        instance = nodes[parent] if nodes[parent][1] == "instance" else None
        tenant = nodes[instance[0]] if instance is not None else None
        gpu = nodes[parent] if tenant is None else nodes[tenant[0]]
        yield Row(
            node=nodes[gpu[0]][3],
            device=gpu[3],
            device_id=gpu[2],
            size_mib=gpu[4].get("size"),
            tenant="" if tenant is None else tenant[3],
            model="" if instance is None else str(instance[4].get("model", "")),
            version="" if instance is None else str(instance[4].get("version", "")),
            instance_id="" if instance is None else instance[2],
            state="" if instance is None else str(instance[4].get("state", "")),
            claimed_mib=None if instance is None else instance[4].get("claimed"),
            segment=str(extra["seg"]),
            mib=mib,
            simulated=bool(gpu[4].get("sim")),
        )


def summarise(tree: MemoryTree) -> Summary:
    """The tree's figures."""
    cpus = {at for at, node in enumerate(tree.nodes) if node[1] == "gpu" and node[4].get("cpu")}
    gpus = {at for at, node in enumerate(tree.nodes) if node[1] == "gpu"}
    chosen = gpus - cpus or cpus
    instances = _instances(tree, chosen)
    sums = _sums(tree, chosen)
    used = [tree.figures[at].get("used") for at in chosen]
    told = [value for value in used if value is not None]
    left = [(int(mib), -at) for at in chosen if (mib := tree.figures[at].get("schedulable")) is not None]
    best, place = max(left, default=(0, 0))
    cache = [sums[name] for name in ("kv_used", "kv_free", "kv") if name in sums]
    tightest = sorted(instances, key=lambda one: (-one.used, one.free_mib, one.instance_id))
    return Summary(
        devices=len(chosen),
        instances=len(  # one on several devices is one
            {node[2] for at, node in enumerate(tree.nodes) if node[1] == "instance" and _gpu(tree, at) in chosen}
        ),
        size_mib=sum(_whole(tree.nodes[at][4].get("size")) for at in chosen),
        allocated_mib=sum(_whole(tree.figures[at].get("reserved")) for at in chosen),
        used_mib=_whole(sum(told)) if told else None,
        untold=len(used) - len(told),
        schedulable_mib=sum(size for size, _ in left) if left or not chosen else None,
        weights_mib=sums.get("weights"),
        kv_reserved_mib=sum(cache) if cache else None,
        kv_used_mib=sums.get("kv_used"),
        hole=Hole(tree.nodes[-place][2], tree.nodes[-place][3], best) if best else None,
        pressed=sum(one.used >= PRESSURE for one in instances),
        tightest=tuple(tightest[:MOST_TIGHTEST]),
    )


def _gpu(tree: MemoryTree, instance: int) -> int:
    return tree.nodes[tree.nodes[instance][0]][0]


def _sums(tree: MemoryTree, chosen: set[int]) -> dict[str, int]:
    """MiB by segment, and "kv" of caches whose use is not told."""
    sums: dict[str, int] = {}
    for parent, extra, mib in tree.segments():
        if (parent if tree.nodes[parent][1] == "gpu" else _gpu(tree, parent)) in chosen:
            name = extra.get("of", extra["seg"])
            sums[name] = sums.get(name, 0) + mib
    return sums


def _instances(tree: MemoryTree, chosen: set[int]) -> list[Headroom]:
    """Each that tells of its cache; of one on several devices, the device where least is left."""
    free = {parent: mib for parent, extra, mib in tree.segments() if extra["seg"] == "kv_free"}
    found: dict[str, Headroom] = {}
    for at, mib in free.items():
        share, gpu = tree.figures.get(at, {}).get("kv"), _gpu(tree, at)
        if share is None or gpu not in chosen:
            continue
        owner, _, key, _, extra = tree.nodes[at]
        one = Headroom(key, str(extra.get("model", "")), tree.nodes[owner][3], tree.nodes[gpu][3], share, mib)
        if key not in found or mib < found[key].free_mib:
            found[key] = one
    return list(found.values())


def _whole(value: float | None) -> int:
    return 0 if value is None else int(value)
