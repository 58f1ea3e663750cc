"""The head of a safetensors file, held against its own rules and the file's size. Nothing of the data is read.

A file is the head's length (8 bytes, little-endian), the head (JSON) and the data, which the tensors fill without
gap or overlap. Source: the format's description at github.com/huggingface/safetensors.
"""

from typing import Any, Final

import msgspec

LENGTH_BYTES: Final = 8
LARGEST_HEAD_BYTES: Final = 100_000_000  # the format's own limit
_SMALLEST_HEAD_BYTES: Final = 2
_MOST_DIMENSIONS: Final = 64
_BITS: Final = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4, "C64": 64,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


class BadSafetensors(ValueError):
    """This is no safetensors file, or a damaged one. The message can follow a colon."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor: `bytes` of data that begin `offset` bytes after the head."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    offset: int


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """All tensors in the order of their data, and what the writer noted."""

    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]
    head_bytes: int  # with the eight that say its length
    data_bytes: int  # of all tensors together


class _Stated(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_stated = msgspec.json.Decoder(_Stated)
_texts = msgspec.json.Decoder(dict[str, str])


def head_length(first: bytes, file_bytes: int | None, *, most: int = LARGEST_HEAD_BYTES) -> int:
    """Length of the JSON by a file's first eight bytes. Raises BadSafetensors where the file cannot hold it."""
    if len(first) < LENGTH_BYTES:
        raise BadSafetensors("it ends within its first eight bytes")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    if not _SMALLEST_HEAD_BYTES <= length <= most:
        raise BadSafetensors(f"it claims a head of {length} bytes; {_SMALLEST_HEAD_BYTES} to {most} are read")
    if file_bytes is not None and LENGTH_BYTES + length > file_bytes:
        raise BadSafetensors(f"it was cut off: {file_bytes} bytes do not hold its head of {length}")
    return length


def parse_head(head: bytes, *, data_bytes: int | None) -> Header:
    """Read the JSON of a head; `data_bytes` follow it in the file (None: not known, so not held against it).

    Raises BadSafetensors for unknown types, and for tensors that overlap, leave gaps or lie outside the file.
    """
    try:
        members: dict[str, Any] = _members.decode(head)
        about = members.pop("__metadata__", None)
        metadata = {} if about is None else _texts.decode(about)
        stated = [(name, _stated.decode(raw)) for name, raw in members.items()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSafetensors(f"its head cannot be read: {error}") from error
    end, tensors = 0, []
    for name, one in sorted(stated, key=lambda item: item[1].data_offsets):
        size = _size(name, one)
        first, last = one.data_offsets
        if first != end or last - first != size:
            raise BadSafetensors(f"tensor {name[:200]!r} does not lie where the head says")
        tensors.append(Tensor(name=name, dtype=one.dtype, shape=tuple(one.shape), bytes=size, offset=first))
        end = last
    if data_bytes is not None and end > data_bytes:
        raise BadSafetensors(f"it is {end - data_bytes} bytes shorter than its tensors")
    if data_bytes is not None and end < data_bytes:
        raise BadSafetensors(f"it is {data_bytes - end} bytes longer than its tensors")
    return Header(tensors=tuple(tensors), metadata=metadata, head_bytes=LENGTH_BYTES + len(head), data_bytes=end)


def _size(name: str, stated: _Stated) -> int:
    bits = _BITS.get(stated.dtype)
    if bits is None:
        raise BadSafetensors(f"tensor {name[:200]!r} has the type {stated.dtype[:20]!r}, which is not known here")
    if len(stated.shape) > _MOST_DIMENSIONS:
        raise BadSafetensors(f"tensor {name[:200]!r} has {len(stated.shape)} dimensions")
    for extent in stated.shape:
        if extent < 0:
            raise BadSafetensors(f"tensor {name[:200]!r} has a negative extent")
        bits *= extent
    if bits % 8:
        raise BadSafetensors(f"tensor {name[:200]!r} does not end with a whole byte")
    return bits // 8
