"""What of the pool's memory a tenant may see: its own, and of others what they have claimed.

Never what others use, nor anything that could be subtracted to find it out: what is free to a tenant is what nobody
has claimed, whoever uses it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpupool.policies.memory_tree import MemoryTree, TreeNode

_OWN_DEVICE: Final = ("size", "health", "name", "index", "stale", "sim", "part", "cpu")
_IDLE: Final = frozenset({"unused"})


@dataclass(slots=True)
class Gpu:
    """Where one GPU's nodes and segments are in a tree."""

    parent: int
    at: int
    first: int  # the ordinal of its first segment
    nodes: list[int] = field(default_factory=list)  # below it, in order


def gpus_of(tree: MemoryTree) -> Iterator[Gpu]:
    """Every GPU of a tree."""
    found: Gpu | None = None
    ordinal = 0
    for at, (parent, kind, *_) in enumerate(tree.nodes):
        if kind == "gpu":
            if found is not None:
                yield found
            found = Gpu(parent, at, ordinal)
        elif kind == "node" and found is not None:
            yield found
            found = None
        elif found is not None and kind != "cluster":
            found.nodes.append(at)
        if kind == "segment":
            ordinal += 1
    if found is not None:
        yield found


def for_tenant(tree: MemoryTree, tenant_id: str, *, scope: str, label: str) -> MemoryTree:
    """The tree as that tenant may see it: the GPUs that it has claims on, and nothing of others but their claims."""
    nodes: list[TreeNode] = [(-1, "cluster", scope, label, {})]
    values: list[int] = []
    figures: dict[int, Mapping[str, float | None]] = {}
    last_node = -1
    made_up: set[bool] = set()
    for gpu in gpus_of(tree):
        if not any(tree.nodes[at][1] == "tenant" and tree.nodes[at][2] == tenant_id for at in gpu.nodes):
            continue
        if gpu.parent != last_node:
            last_node = gpu.parent
            _, kind, key, name, _ = tree.nodes[gpu.parent]
            nodes.append((0, kind, key, name, {}))
            node_at = len(nodes) - 1
        made_up.add(bool(tree.nodes[gpu.at][4].get("sim")))
        _copy(tree, gpu, tenant_id, node_at, nodes, values, figures)
    simulated = "" if made_up <= {False} else "all" if made_up == {True} else "some"
    return MemoryTree(scope, simulated, tuple(nodes), tuple(values), figures)


def _copy(
    tree: MemoryTree,
    gpu: Gpu,
    tenant_id: str,
    parent: int,
    nodes: list[TreeNode],
    values: list[int],
    figures: dict[int, Mapping[str, float | None]],
) -> None:
    _, _, key, label, extra = tree.nodes[gpu.at]
    nodes.append((parent, "gpu", key, label, {name: extra[name] for name in _OWN_DEVICE if name in extra}))
    at, first = len(nodes) - 1, len(values)
    own, others, idle, untold = False, 0, 0, False
    ordinal, place, owner, claimed = gpu.first, 0, 0, 0
    for below in gpu.nodes:
        above, kind, key, label, more = tree.nodes[below]
        if kind == "tenant":
            own = key == tenant_id
            if own:
                nodes.append((at, kind, key, label, more))
                owner = len(nodes) - 1
        elif kind == "instance":
            claimed = int(more.get("claimed", 0))
            if own:
                nodes.append((owner, kind, key, label, more))
                place = len(nodes) - 1
                if below in tree.figures:
                    figures[place] = tree.figures[below]
                begun = len(values)
            else:
                others += claimed
        elif above != gpu.at and own:
            nodes.append((place, kind, key, label, more))
            untold = untold or more["seg"] == "unknown"
            if more["seg"] in _IDLE:  # anew: where a device was fuller than its claims, others' use has cut it
                values.append(max(0, claimed - sum(values[begun:])))
                idle += values[-1]
            else:
                values.append(tree.values[ordinal])
        if kind == "segment":
            ordinal += 1
    mine = sum(values[first:])
    size = extra.get("size")
    _add_segment(nodes, values, at, "reserved", others)
    if size is not None:
        _add_segment(nodes, values, at, "free", max(0, size - mine - others))
    told: Mapping[str, Any] = tree.figures.get(gpu.at, {})
    figures[at] = {
        "reserved": told.get("reserved"),
        "used": None if untold else mine - idle,
        "schedulable": told.get("schedulable"),
    }


def _add_segment(nodes: list[TreeNode], values: list[int], parent: int, name: str, mib: int) -> None:
    nodes.append((parent, "segment", "", "", {"seg": name}))
    values.append(mib)
