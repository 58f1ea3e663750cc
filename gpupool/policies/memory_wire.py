"""`gpumem.v1`: memory trees as bytes. A keyframe says all; a delta which segments have changed since what was sent.

docs/wire.md says both byte by byte; the browser's decoder is in static/js/flame/, the history's is `MemoryReplay`.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from gpupool.policies.memory_tree import MIB, NOT_IN_USE, MemoryTree, TreeNode
from gpupool.policies.memory_view import gpus_of

VERSION: Final = "gpumem.v1"
KEYFRAME: Final = b"\x00"
DELTA: Final = b"\x01"
FINEST: Final = 200
"""A change of less than a 200th of a segment is not sent."""
LONGEST_HOLD: Final = timedelta(seconds=5)
"""A GPU that other instances are on now waits so long, at most, for the keyframe that says which."""
FIGURES: Final = ("reserved", "used", "schedulable", "kv")

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
    """Of one scope: remembers what was sent of it.

    In a large pool something changes its state all the time, and each would take a keyframe. With `bytes_per_second`,
    keyframes for that are no more than so many a second: GPUs whose nodes changed stay as they were until the next.
    """

    def __init__(self, *, bytes_per_second: int = 0) -> None:
        self._bytes_per_second = bytes_per_second
        self._last = MemoryTree("", "", (), ())
        self._sent: list[int] = []
        self._epoch: int | None = None
        self._began: datetime | None = None
        self._hold = timedelta(0)
        self._shapes: dict[str, tuple[int, _Shape]] = {}

    def keyframe(self, tree: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes:
        """All of it; where the epoch stays, of the nodes that it began with: the next delta asks for another."""
        held = epoch == self._epoch and tree.nodes != self._last.nodes
        if held:
            tree = replace(self._last, values=tuple(self._held(tree)))
        self._last, self._sent, self._epoch = tree, list(tree.values), epoch
        payload = pack_frame(frame_of(tree, epoch=epoch, seq=seq, at=at))
        if not held:
            self._shapes = {}
            self._began = at
            if self._bytes_per_second:
                self._hold = min(LONGEST_HOLD, timedelta(seconds=len(payload) // self._bytes_per_second))
        return payload

    def delta(self, tree: MemoryTree, *, epoch: int, seq: int, at: datetime) -> bytes | None:
        """What has changed; None where the tree has other nodes now, which takes a keyframe."""
        values: Sequence[int] = tree.values
        if tree.nodes != self._last.nodes:
            if self._began is None or not timedelta(0) <= at - self._began < self._hold:
                return None
            values = self._held(tree)
        return pack_changes(self._sent, values, epoch=epoch, seq=seq, at=at)

    def _held(self, tree: MemoryTree) -> list[int]:
        """As viewers may be told before they have the new nodes: GPUs of the same shape as now, others as sent."""
        if not self._shapes:
            self._shapes = _shapes(self._last.nodes)
        values = list(self._sent)
        for key, (first, shape) in _shapes(tree.nodes).items():
            before = self._shapes.get(key)
            if before is not None and before[1] == shape:
                count = sum(kind == "segment" for kind, _, _ in shape)
                values[before[0] : before[0] + count] = tree.values[first : first + count]
        return values


_Shape = list[tuple[str, str, object]]


def _shapes(nodes: Sequence[TreeNode]) -> dict[str, tuple[int, _Shape]]:
    """Of each GPU the ordinal of its first segment, and what is below it, whatever else is said of that."""
    whole = MemoryTree("", "", tuple(nodes), ())
    return {
        nodes[gpu.at][2]: (
            gpu.first,
            [(nodes[at][1], nodes[at][2], nodes[at][4] if nodes[at][1] == "segment" else None) for at in gpu.nodes],
        )
        for gpu in gpus_of(whole)
    }


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
        self._began = tuple(self._values)
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
        """As it was. After deltas, what is in use of a GPU, and of a KV cache, follows their segments."""
        if not self._moved:
            return MemoryTree(self._scope, self._simulated, tuple(self._nodes), tuple(self._values), self._figures)
        more: dict[int, int] = {}  # in use of a GPU, than at the keyframe
        cache: dict[int, list[int]] = {}
        ordinal = -1
        for parent, kind, _, _, extra in self._nodes:
            if kind != "segment":
                continue
            ordinal += 1
            name, mib = extra["seg"], self._values[ordinal]
            change = mib - self._began[ordinal]
            above = self._nodes[parent]
            gpu = parent if above[1] == "gpu" else self._nodes[above[0]][0]
            if name not in NOT_IN_USE and (name != "unknown" or gpu != parent):
                more[gpu] = more.get(gpu, 0) + change
            if name in ("kv_used", "kv_free"):
                cache.setdefault(parent, [0, 0])[name == "kv_used"] += mib
        figures = {at: dict(told) for at, told in self._figures.items()}
        for at, told in figures.items():
            if (before := told.get("used")) is not None:
                told["used"] = max(0, before + more.get(at, 0))
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
