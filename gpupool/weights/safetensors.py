"""Headers of safetensors files and of the index over several, read without the data."""

from pathlib import Path
from typing import Final

import msgspec

from gpupool.policies.safetensors import (
    LENGTH_BYTES,
    BadSafetensors,
    Header,
    Tensor,
    head_length,
    parse_head,
)

__all__ = ["INDEX_FILE", "BadSafetensors", "Header", "Index", "Tensor", "read_header", "read_index"]

INDEX_FILE: Final = "model.safetensors.index.json"
_LARGEST_INDEX_BYTES: Final = 64 << 20


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """Which file of a folder has which tensor, and their bytes together where the index says them."""

    weight_map: dict[str, str]
    total_bytes: int | None = None


class _IndexMetadata(msgspec.Struct):
    total_size: int | float | None = None


class _IndexFile(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: _IndexMetadata | None = None


_index = msgspec.json.Decoder(_IndexFile)


def read_header(source: bytes | Path, *, file_bytes: int | None = None) -> Header:
    """The header of a file, or of its first bytes (all of the head at least; `file_bytes` is the whole file's size).

    Raises BadSafetensors, and OSError where the file cannot be read.
    """
    if isinstance(source, bytes):
        length = head_length(source, file_bytes)
        head = source[LENGTH_BYTES : LENGTH_BYTES + length]
        if len(head) < length:
            raise BadSafetensors(f"{len(head)} bytes of its head of {length} are given")
        return parse_head(head, data_bytes=None if file_bytes is None else file_bytes - LENGTH_BYTES - length)
    size = source.stat().st_size
    with open(source, "rb") as file:
        length = head_length(file.read(LENGTH_BYTES), size)
        head = file.read(length)
    return parse_head(head, data_bytes=size - LENGTH_BYTES - length)


def read_index(source: bytes | Path) -> Index:
    """The index of a folder's weights. Raises BadSafetensors for one that names files outside its folder, OSError."""
    if isinstance(source, Path):
        with open(source, "rb") as file:
            source = file.read(_LARGEST_INDEX_BYTES + 1)
    if len(source) > _LARGEST_INDEX_BYTES:
        raise BadSafetensors(f"the index is larger than {_LARGEST_INDEX_BYTES} bytes")
    try:
        read = _index.decode(source)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSafetensors(f"the index cannot be read: {error}") from error
    for name in set(read.weight_map.values()):
        if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
            raise BadSafetensors(f"the index names {name[:200]!r}, which is no file of its folder")
    total = read.metadata.total_size if read.metadata else None
    return Index(weight_map=read.weight_map, total_bytes=None if total is None else int(total))
