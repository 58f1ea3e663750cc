"""`gpumem.v1`: memory trees as bytes. A keyframe says all; a delta which segments have changed since what was sent.

docs/wire.md says both byte by byte; the browser's decoder is static/js/flame/.
"""

import struct
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from gpupool.policies.memory_tree import MIB, MemoryTree, TreeNode

VERSION: Final = "gpumem.v1"
KEYFRAME: Final = b"\x00"
DELTA: Final = b"\x01"
FINEST: Final = 200
"""A change of less than a 200th of a segment is not sent."""

_HEAD: Final = struct.Struct("<IId")
_RAW: Final = -15  # zlib's word for a deflate stream without a head
_encoder: Final = msgspec.json.Encoder()


def frame_of(tree: MemoryTree, *, epoch: int, seq: int, at: datetime) -> dict[str, Any]:
    """The keyframe's JSON. Whatever reads it over HTTP reads the same."""
    return {
        "v": VERSION,
        "epoch": epoch,
        "seq": seq,
        "at": _milliseconds(at),
        "scope": tree.scope,
        "simulated": tree.simulated,
        "unit": MIB,
        "nodes": [_node(node, tree.figures.get(index)) for index, node in enumerate(tree.nodes)],
        "values": tree.values,
    }


def _node(node: TreeNode, figures: Any) -> TreeNode:
    return node if figures is None else (*node[:4], {**node[4], **figures})


def pack_frame(frame: dict[str, Any]) -> bytes:
    """A keyframe's payload."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, _RAW)
    return KEYFRAME + deflate.compress(_encoder.encode(frame)) + deflate.flush()


def pack_changes(sent: list[int], values: Sequence[int], *, epoch: int, seq: int, at: datetime) -> bytes:
    """A delta's payload; `sent`, what viewers have, is brought to what they have with it."""
    out = bytearray(DELTA + _HEAD.pack(epoch, seq, float(_milliseconds(at))))
    last = -1
    for ordinal, value in enumerate(values):
        change = value - sent[ordinal]
        if not change or abs(change) * FINEST < value:
            continue
        _put(out, ordinal - last)
        _put(out, change << 1 if change >= 0 else (-change << 1) - 1)
        sent[ordinal], last = value, ordinal
    return bytes(out)


def _put(out: bytearray, number: int) -> None:
    """As a varint: seven bits a byte, the lowest first."""
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _milliseconds(at: datetime) -> int:
    return round(at.timestamp() * 1000)


class GpumemEncoder:
    """One of a watched scope: remembers what its viewers have."""

    def __init__(self) -> None:
        self._nodes: tuple[TreeNode, ...] | None = None
        self._sent: list[int] = []

    def keyframe(self, state: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes:
        """All of it."""
        self._nodes, self._sent = state.nodes, list(state.values)
        return pack_frame(frame_of(state, epoch=epoch, seq=seq, at=at))

    def delta(self, state: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes | None:
        """What has changed; None where the tree has other nodes now, which takes a keyframe."""
        if state.nodes != self._nodes:
            return None
        return pack_changes(self._sent, state.values, epoch=epoch, seq=seq, at=at)
