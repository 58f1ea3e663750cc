"""The first bytes of a GGUF file. The rest of the header is read by the memory estimate, not here."""

import struct
from dataclasses import dataclass
from typing import Final

HEAD_BYTES: Final = 24
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)  # version 1 had 32-bit counts and is no longer loaded by llama.cpp
_MOST_ITEMS: Final = 1_000_000  # far above any model; a larger count is a damaged file


@dataclass(frozen=True, slots=True)
class GgufHead:
    """Fixed part of the header (little-endian): magic, version, counts."""

    version: int
    tensor_count: int
    metadata_count: int


def read_head(head: bytes) -> GgufHead:
    """Parse the first HEAD_BYTES bytes. Raises ValueError with a reason that can follow a colon.

    Source: the GGUF specification in ggml's docs.
    """
    if not head:
        raise ValueError("the file is empty")
    if head[:4] != _MAGIC:
        raise ValueError(f"it begins with {head[:4]!r}, not with b'GGUF'")
    if len(head) < HEAD_BYTES:
        raise ValueError(f"it ends after {len(head)} bytes, inside the header")
    version, tensors, metadata = struct.unpack_from("<IQQ", head, 4)
    if version not in _VERSIONS:
        swapped = int.from_bytes(head[4:8], "big")
        if swapped in _VERSIONS:
            raise ValueError("it is written in big-endian byte order, for another kind of machine")
        raise ValueError(f"its GGUF version is {version}; 2 and 3 are read")
    if tensors > _MOST_ITEMS or metadata > _MOST_ITEMS:
        raise ValueError(f"its header claims {tensors} tensors and {metadata} metadata keys, so it is damaged")
    return GgufHead(version, tensors, metadata)
