"""What of the pool's memory a tenant may see: its own, and of others what they have claimed.

Never what others use, nor anything that could be subtracted to find it out: what is free to a tenant is what nobody
has claimed, whoever uses it. Where its own use goes beyond its claims, the block of others' claims gives way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gpupool.policies.memory_fit import fit
from gpupool.policies.memory_tree import NOT_IN_USE, MemoryTree, TreeNode, how_much

_OWN_DEVICE: Final = ("size", "health", "name", "index", "stale", "sim", "part", "cpu")


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
    """The tree as that tenant may see it: the GPUs that it has claims on, and nothing of others but their claims.

    Of a tree that is not fitted: fitting takes from one what others use.
    """
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
    return MemoryTree(scope, how_much(made_up), tuple(nodes), tuple(values), figures)


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
    own, others = False, 0
    ordinal, place, owner = gpu.first, 0, 0
    held: list[_Span] = []
    for below in gpu.nodes:
        above, kind, key, label, more = tree.nodes[below]
        if kind == "tenant":
            own = key == tenant_id
            if own:
                nodes.append((at, kind, key, label, more))
                owner = len(nodes) - 1
        elif kind == "instance":
            if own:
                nodes.append((owner, kind, key, label, more))
                place = len(nodes) - 1
                if below in tree.figures:
                    figures[place] = tree.figures[below]
                held.append(_Span(int(more.get("claimed", 0)), len(values), []))
            else:
                others += int(more.get("claimed", 0))
        elif above != gpu.at and own:
            nodes.append((place, kind, key, label, more))
            held[-1].names.append(more["seg"])
            values.append(tree.values[ordinal])
        if kind == "segment":
            ordinal += 1
    size = extra.get("size")
    _fit(values, held, None, size)
    mine = sum(values[first:])
    idle = sum(
        values[span.first + place] for span in held for place, name in enumerate(span.names) if name in NOT_IN_USE
    )  # fmt: skip
    _add_segment(nodes, values, at, "reserved", others if size is None else min(others, max(0, size - mine)))
    if size is not None:
        _add_segment(nodes, values, at, "free", max(0, size - mine - others))
    untold = any("unknown" in span.names and "unused" not in span.names for span in held)
    told: Mapping[str, Any] = tree.figures.get(gpu.at, {})
    figures[at] = {
        "reserved": told.get("reserved"),
        "used": None if untold else mine - idle,
        "schedulable": told.get("schedulable"),
    }


@dataclass(slots=True)
class _Span:
    """The segments of one instance: where the first of them is, and their names."""

    claimed: int
    first: int
    names: list[str]


def fitted(tree: MemoryTree) -> MemoryTree:
    """Of a tree as it was read: no GPU's segments add up to more than it has."""
    values = list(tree.values)
    for gpu in gpus_of(tree):
        held, beside, ordinal = list[_Span](), _Span(0, 0, []), gpu.first
        for at in gpu.nodes:
            above, kind, _, _, extra = tree.nodes[at]
            if kind == "instance":
                held.append(_Span(int(extra.get("claimed", 0)), ordinal, []))
            elif kind == "segment":
                if above != gpu.at:
                    held[-1].names.append(extra["seg"])
                elif not beside.names:  # what is free comes last, and there is none where there is too much
                    beside = _Span(0, ordinal, [extra["seg"]])
                ordinal += 1
        _fit(values, held, beside, tree.nodes[gpu.at][4].get("size"))
    return replace(tree, values=tuple(values))


def _fit(values: list[int], held: Sequence[_Span], beside: _Span | None, size: int | None) -> None:
    spans = [*held, *([] if beside is None else [beside])]
    if size is None or sum(sum(values[one.first : one.first + len(one.names)]) for one in spans) <= size:
        return
    filled = [[(name, values[one.first + at], "") for at, name in enumerate(one.names)] for one in spans]
    fit(filled[: len(held)], [one.claimed for one in held], filled[-1] if beside is not None else [], size)
    for one, parts in zip(spans, filled, strict=True):
        values[one.first : one.first + len(parts)] = [mib for _, mib, _ in parts]


def _add_segment(nodes: list[TreeNode], values: list[int], parent: int, name: str, mib: int) -> None:
    nodes.append((parent, "segment", "", "", {"seg": name}))
    values.append(mib)
