"""Where every byte of device memory is: cluster > node > GPU > tenant > instance > segment, in MiB.

Segments of a GPU never add up to more than it has. What nobody tells is a segment "unknown", never nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MIB: Final = 1 << 20

SEGMENTS: Final = (
    "weights", "kv_used", "kv_free", "activations", "lora",
    "unused",  # claimed, and not in use
    "other",  # in use by processes without a claim
    "reserved",  # claims of others, in a tenant's tree
    "free",  # claimed by nobody
    "unknown",
)  # fmt: skip

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
