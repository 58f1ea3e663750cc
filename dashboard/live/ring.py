"""What is kept of one watched scope: the newest keyframe and the deltas after it, in order.

Frames are ordered by fence (whose leadership wrote it), epoch and sequence. What is old is dropped, what does
not follow is a gap: the ring is read again from where the leader keeps it.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dashboard.live.base import Payload

_HEAD: Final = struct.Struct("<BQIQ")
_KEY, _TEXT, _TROUBLE = 1, 2, 4
_WIRES: Final = 4  # made forms of one frame that are kept; keyframes are large, and numbers many

Position = tuple[int, int, int]
"""Fence, epoch, sequence."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A payload in its place. A trouble says in its payload why there is none, and stands in no ring."""

    fence: int
    epoch: int
    seq: int
    payload: Payload
    key: bool = False
    trouble: bool = False
    _wires: dict[int, Payload] = field(default_factory=dict, compare=False, repr=False)

    @property
    def position(self) -> Position:
        return (self.fence, self.epoch, self.seq)

    def wire(self, number: int) -> Payload:
        """What goes to a client that calls its subscription `number`; most call it the same, so it is made once."""
        wire = self._wires.get(number)
        if wire is None:
            if isinstance(self.payload, bytes):
                wire = bytes([number]) + self.payload
            else:
                wire = f'{{"n":{number},{self.payload[1:]}'
            if len(self._wires) < _WIRES:
                self._wires[number] = wire
        return wire

    def pack(self) -> bytes:
        text = isinstance(self.payload, str)
        flags = _KEY * self.key | _TEXT * text | _TROUBLE * self.trouble
        body = self.payload.encode() if isinstance(self.payload, str) else self.payload
        return _HEAD.pack(flags, self.fence, self.epoch, self.seq) + body


def unpack(record: bytes) -> Frame | None:
    """The frame of a record, None for bytes that are none: another version may have written them."""
    try:
        flags, fence, epoch, seq = _HEAD.unpack_from(record)
        body = record[_HEAD.size :]
        payload = body.decode() if flags & _TEXT else body
    except (struct.error, UnicodeDecodeError):
        return None
    if flags & ~(_KEY | _TEXT | _TROUBLE):
        return None
    return Frame(fence, epoch, seq, payload, key=bool(flags & _KEY), trouble=bool(flags & _TROUBLE))


class Taken(Enum):
    """What became of a frame."""

    NEWS = "news"
    OLD = "old"
    GAP = "gap"


class Ring:
    """The frames of one scope that a process holds for its viewers."""

    def __init__(self) -> None:
        self._keyframe: Frame | None = None
        self._deltas: list[Frame] = []

    @property
    def position(self) -> Position | None:
        """Of the newest frame; None before the first keyframe."""
        if self._keyframe is None:
            return None
        return self._deltas[-1].position if self._deltas else self._keyframe.position

    def take(self, frame: Frame) -> Taken:
        """Add a frame that has just come."""
        position = self.position
        if position is not None and frame.position <= position:
            return Taken.OLD
        if frame.key:
            self._keyframe, self._deltas = frame, []
            return Taken.NEWS
        if position is None or not _follows(frame, position):
            return Taken.GAP
        self._deltas.append(frame)
        return Taken.NEWS

    def load(self, keyframe: Frame | None, deltas: Iterable[Frame]) -> bool:
        """Take what the leader keeps; whether anything in it is news. Frames may have come since it was read."""
        news = False
        for frame in ([] if keyframe is None else [keyframe]) + list(deltas):
            news = self.take(frame) is Taken.NEWS or news
        return news

    def next_after(self, position: Position | None) -> Frame | None:
        """The frame to send to a viewer whose newest is `position`; None when they have all.

        A viewer who missed too much gets the keyframe, and from there what came after it.
        """
        keyframe = self._keyframe
        if keyframe is None or position == self.position:
            return None
        if position is None or position < keyframe.position or position[:2] != keyframe.position[:2]:
            return keyframe
        index = position[2] - keyframe.seq
        return self._deltas[index] if index < len(self._deltas) else None

    def forget(self) -> None:
        """Start anew: nothing that comes is old."""
        self._keyframe, self._deltas = None, []


def _follows(frame: Frame, position: Position) -> bool:
    fence, epoch, seq = position
    return frame.position == (fence, epoch, seq + 1)
