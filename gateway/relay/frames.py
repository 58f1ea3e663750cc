"""The spool's file format: frames with a checksum, one after another, then zeros.

Frame: payload length (4 bytes, little-endian), CRC-32 of kind and payload (4), kind (1), payload.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

HEADER_BYTES: Final = 9
MAX_PAYLOAD_BYTES: Final = 1 << 16

_header = struct.Struct("<IIB")


class FrameKind(IntEnum):
    OPEN = 1
    ROW = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """`start` is the frame's first byte, `end` the byte after its last."""

    kind: FrameKind
    payload: bytes
    start: int
    end: int


def encode_frame(kind: FrameKind, payload: bytes) -> bytes:
    """Raises ValueError for an empty payload or one that is too large."""
    if not 0 < len(payload) <= MAX_PAYLOAD_BYTES:
        raise ValueError(f"a payload of {len(payload)} bytes")
    return _header.pack(len(payload), zlib.crc32(payload, kind), kind) + payload


def decode_frames(data: bytes) -> Iterator[Frame]:
    """The whole frames from the start of `data`; ends at zeros, at a torn or a damaged frame, or at the end."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        size, checksum, kind = _header.unpack_from(data, position)
        end = position + HEADER_BYTES + size
        if not 0 < size <= MAX_PAYLOAD_BYTES or end > len(data) or kind not in (FrameKind.OPEN, FrameKind.ROW):
            return
        payload = data[position + HEADER_BYTES : end]
        if zlib.crc32(payload, kind) != checksum:
            return
        yield Frame(FrameKind(kind), payload, position, end)
        position = end
