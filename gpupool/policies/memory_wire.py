"""`gpumem.v1`: memory trees as bytes. A keyframe says all; a delta which segments have changed since what was sent.

docs/wire.md says both byte by byte; the browser's decoder is in static/js/flame/, the history's is `MemoryReplay`.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from gpupool.policies.memory_tree import MIB, MemoryTree, TreeNode

VERSION: Final = "gpumem.v1"
KEYFRAME: Final = b"\x00"
DELTA: Final = b"\x01"
FINEST: Final = 200
"""A change of less than a 200th of a segment is not sent."""
FIGURES: Final = ("reserved", "used", "schedulable", "kv")

_HEAD: Final = struct.Struct("<IId")
_RAW: Final = -15  # zlib's word for a deflate stream without a head
_NOT_IN_USE: Final = frozenset({"free", "unused", "reserved"})
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
        "nodes": [_with_figures(node, tree.figures.get(index)) for index, node in enumerate(tree.nodes)],
        "values": tree.values,
    }


def _with_figures(node: TreeNode, figures: Mapping[str, float | None] | None) -> TreeNode:
    return node if figures is None else (*node[:4], {**node[4], **figures})


def pack_frame(frame: Mapping[str, Any]) -> bytes:
    """A keyframe's payload. Parents count back from their nodes there (`up`), which packs a third smaller."""
    nodes = [(at - node[0], *node[1:]) for at, node in enumerate(frame["nodes"])]
    deflate = zlib.compressobj(6, zlib.DEFLATED, _RAW)
    return KEYFRAME + deflate.compress(_encoder.encode({**frame, "up": True, "nodes": nodes})) + deflate.flush()


def pack_changes(sent: list[int], values: Sequence[int], *, epoch: int, seq: int, at: datetime) -> bytes:
    """A delta's payload; `sent`, what viewers have, is brought to what they have with it."""
    out = bytearray(DELTA + _HEAD.pack(epoch, seq, float(_milliseconds(at))))
    last = -1
    for ordinal, (value, before) in enumerate(zip(values, sent, strict=True)):
        change = value - before
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


class MemoryEncoder:
    """Of one scope: remembers what was sent of it."""

    def __init__(self) -> None:
        self._nodes: tuple[TreeNode, ...] | None = None
        self._sent: list[int] = []

    def keyframe(self, tree: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes:
        """All of it."""
        self._nodes, self._sent = tree.nodes, list(tree.values)
        return pack_frame(frame_of(tree, epoch=epoch, seq=seq, at=at))

    def delta(self, tree: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes | None:
        """What has changed; None where the tree has other nodes now, which takes a keyframe."""
        if tree.nodes != self._nodes:
            return None
        return pack_changes(self._sent, tree.values, epoch=epoch, seq=seq, at=at)


class MemoryReplay:
    """A keyframe and the deltas after it, put together again."""

    def __init__(self, keyframe: bytes) -> None:
        """Raises ValueError for what is no keyframe."""
        if keyframe[:1] != KEYFRAME:
            raise ValueError("this is no keyframe")
        try:
            frame = msgspec.json.decode(zlib.decompress(keyframe[1:], _RAW))
        except (zlib.error, msgspec.DecodeError) as error:
            raise ValueError(f"this is no keyframe: {error}") from error
        self._scope, self._simulated = frame["scope"], frame["simulated"]
        self._nodes: list[TreeNode] = []
        self._figures: dict[int, dict[str, float | None]] = {}
        for at, (parent, kind, key, label, extra) in enumerate(frame["nodes"]):
            above = at - parent if frame.get("up") else parent
            told = {name: extra.pop(name) for name in FIGURES if name in extra}
            if told:
                self._figures[at] = told
            self._nodes.append((above, kind, key, label, extra))
        self._values: list[int] = frame["values"]
        self._epoch, self._seq = frame["epoch"], frame["seq"]
        self._moved = False

    def feed(self, delta: bytes) -> bool:
        """The next one; False for one of another keyframe, or with a gap before it, which changes nothing.

        Raises ValueError for what is no delta.
        """
        place, ordinal = 1 + _HEAD.size, -1
        if delta[:1] != DELTA or len(delta) < place:
            raise ValueError("this is no delta")
        epoch, seq, _ = _HEAD.unpack_from(delta, 1)
        if (epoch, seq) != (self._epoch, self._seq + 1):
            return False
        self._seq, self._moved = seq, True
        try:
            while place < len(delta):
                gap, place = _take(delta, place)
                change, place = _take(delta, place)
                ordinal += gap
                self._values[ordinal] += (change >> 1) ^ -(change & 1)
        except IndexError as error:
            raise ValueError("this delta is of another keyframe") from error
        return True

    def tree(self) -> MemoryTree:
        """As it was. After deltas, what is in use of a GPU, and of a KV cache, is added up of its segments."""
        if not self._moved:
            return MemoryTree(self._scope, self._simulated, tuple(self._nodes), tuple(self._values), self._figures)
        used: dict[int, int] = {}
        cache: dict[int, list[int]] = {}
        ordinal = -1
        for parent, kind, _, _, extra in self._nodes:
            if kind != "segment":
                continue
            ordinal += 1
            name, mib = extra["seg"], self._values[ordinal]
            above = self._nodes[parent]
            gpu = parent if above[1] == "gpu" else self._nodes[above[0]][0]
            if name not in _NOT_IN_USE and (name != "unknown" or gpu != parent):
                used[gpu] = used.get(gpu, 0) + mib
            if name in ("kv_used", "kv_free"):
                cache.setdefault(parent, [0, 0])[name == "kv_used"] += mib
        figures = {at: dict(told) for at, told in self._figures.items()}
        for at, told in figures.items():
            if told.get("used") is not None:
                told["used"] = used.get(at, 0)
            free, full = cache.get(at, (0, 0))
            if told.get("kv") is not None and free + full:
                told["kv"] = round(full / (free + full), 3)
        return MemoryTree(self._scope, self._simulated, tuple(self._nodes), tuple(self._values), figures)


def _take(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return number, place
