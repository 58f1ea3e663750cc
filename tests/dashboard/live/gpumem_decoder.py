"""`gpumem.v1` as a browser reads it: step by step what static/js/flame/ does."""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass
class Decoder:
    """What a page knows after the payloads that it was fed."""

    frame: dict[str, Any] = field(default_factory=dict)
    values: list[int] = field(default_factory=list)
    seq: int = -1
    at: float = 0.0
    missed: int = 0  # deltas of another epoch, or with a gap before them

    def feed(self, payload: bytes) -> None:
        if payload[0] == 0:
            self.frame = msgspec.json.decode(zlib.decompress(payload[1:], -15))
            if self.frame.get("up"):
                self.frame["nodes"] = [[at - node[0], *node[1:]] for at, node in enumerate(self.frame["nodes"])]
            self.values = list(self.frame["values"])
            self.seq, self.at = self.frame["seq"], self.frame["at"]
            return
        epoch, seq, at = struct.unpack_from("<IId", payload, 1)
        if epoch != self.frame["epoch"] or seq != self.seq + 1:
            self.missed += 1
            return
        self.seq, self.at = seq, at
        ordinal, place = -1, 17
        while place < len(payload):
            gap, place = _varint(payload, place)
            change, place = _varint(payload, place)
            ordinal += gap
            self.values[ordinal] += (change >> 1) ^ -(change & 1)


def _varint(payload: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = payload[place]
        number |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return number, place
