"""The header of a GGUF file: metadata and what tensors there are. No tensor is ever read.

A header may be damaged or hostile: every length in it is held against the file's size before it is believed.
Source: the GGUF specification in ggml's docs.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from gpupool.engines.llamacpp.gguf import HEAD_BYTES, read_head
from gpupool.weights.ggml import tensor_bytes

Value = int | float | bool | str | tuple[int | float | bool, ...]

_SCALARS: Final[Mapping[int, str]] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9
_LONGEST_KEPT: Final = 4096
"""Items of an array that are kept; of longer ones (a vocabulary) only the length is."""
_LONGEST_TEXT: Final = 65_536
_MOST_DIMENSIONS: Final = 8
_MOST_HEADER_BYTES: Final = 1 << 30
_MOST_TENSORS: Final = 100_000  # the largest models that are known have some thousands
_MOST_KEYS: Final = 10_000
_MOST_TEXTS: Final = 2_000_000  # in all arrays: a large vocabulary and its merges are under a million
_SPLIT: Final = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MOST_SPLITS: Final = 512


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor; the first dimension is the innermost."""

    name: str
    dimensions: tuple[int, ...]
    size_bytes: int
    offset: int = 0  # from the beginning of its file's data


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What headers say of a model, all of its files together. `lengths` are those of every array."""

    metadata: Mapping[str, Value]
    lengths: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]
    file_bytes: int
    data_bytes: int = 0  # of the first file alone: what follows its header
    unnamed_bytes: int = 0  # of data that no tensor claims: an engine may map it all the same


def read_gguf(path: Path) -> GgufModel:
    """The headers of a model; of one split into files, name the first.

    Raises OSError, and ValueError with a reason that can follow a colon.
    """
    first = read_part(path)
    names = _siblings(path)
    models = [first, *(read_part(path.with_name(name)) for name in names)]
    return GgufModel(
        metadata=first.metadata,
        lengths=first.lengths,
        tensors=tuple(tensor for model in models for tensor in model.tensors),
        file_bytes=sum(model.file_bytes for model in models),
        data_bytes=first.data_bytes,
        unnamed_bytes=sum(model.unnamed_bytes for model in models),
    )


def _siblings(path: Path) -> list[str]:
    """Names of the other files of a model that is split."""
    match = _SPLIT.match(path.name)
    if match is None:
        return []
    count = int(match["count"])
    if not 0 < count <= _MOST_SPLITS:
        raise ValueError(f"its name claims {count} files")
    if int(match["number"]) != 1:
        raise ValueError("it is not the first of its files: name that one")
    return [f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(2, count + 1)]


def read_part(path: Path) -> GgufModel:
    """The header of one file. Raises as `read_gguf` does."""
    with open(path, "rb") as file:
        size = path.stat().st_size
        head = read_head(file.read(HEAD_BYTES))
        if head.tensor_count > _MOST_TENSORS or head.metadata_count > _MOST_KEYS:
            raise ValueError(f"its header claims {head.tensor_count} tensors and {head.metadata_count} metadata keys")
        reader = _Reader(file, min(size, _MOST_HEADER_BYTES))
        metadata: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(head.metadata_count):
            key = reader.text()
            value = reader.value(key, lengths)
            if value is not None:
                metadata[key] = value
        raw = [reader.tensor() for _ in range(head.tensor_count)]
        alignment = metadata.get("general.alignment", 32)
        padding = alignment if isinstance(alignment, int) and 0 < alignment <= 1 << 20 else 32
        data_bytes = size - -(-file.tell() // padding) * padding
    tensors = _sized(raw, data_bytes)
    named = sum(-(-tensor.size_bytes // padding) * padding for tensor in tensors)
    return GgufModel(metadata, lengths, tensors, size, data_bytes, max(0, data_bytes - named))


@dataclass(frozen=True, slots=True)
class _RawTensor:
    name: str
    dimensions: tuple[int, ...]
    kind: int
    offset: int


def _sized(raw: list[_RawTensor], data_bytes: int) -> tuple[TensorInfo, ...]:
    """Sizes by type; of a type that is not known, the distance to the next tensor."""
    if not raw:
        return ()
    offsets = sorted(tensor.offset for tensor in raw)
    following = dict(zip(offsets, [*offsets[1:], max(data_bytes, offsets[-1])], strict=True))
    sized = []
    for tensor in raw:
        known = tensor_bytes(tensor.kind, tensor.dimensions)
        size = following[tensor.offset] - tensor.offset if known is None else known
        sized.append(TensorInfo(tensor.name, tensor.dimensions, size, tensor.offset))
    return tuple(sized)


class _Reader:
    """Reads on from where the file is; nothing beyond `limit`."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._texts = 0

    def take(self, length: int) -> bytes:
        if length > self._limit - self._file.tell():
            raise ValueError("its header names more than the file holds, so it is damaged")
        data = self._file.read(length)
        if len(data) < length:
            raise ValueError("it ends inside its header")
        return data

    def skip(self, length: int) -> None:
        if length > self._limit - self._file.tell():
            raise ValueError("its header names more than the file holds, so it is damaged")
        self._file.seek(length, 1)

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def text(self) -> str:
        length = self.number("<Q")
        if length > _LONGEST_TEXT:
            raise ValueError(f"a name in its header has {length} bytes, so it is damaged")
        return self.take(length).decode("utf-8", "replace")

    def value(self, key: str, lengths: dict[str, int]) -> Value | None:
        """A metadata value; None for what is passed over (long texts and arrays)."""
        kind = self.number("<I")
        if kind == _ARRAY:
            return self._array(key, lengths)
        if kind == _STRING:
            return self._long_text()
        return self._scalar(kind)

    def tensor(self) -> _RawTensor:
        name = self.text()
        count = self.number("<I")
        if count > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of it has {count} dimensions, so it is damaged")
        dimensions = tuple(self.number("<Q") for _ in range(count))
        return _RawTensor(name, dimensions, kind=self.number("<I"), offset=self.number("<Q"))

    def _scalar(self, kind: int) -> int | float | bool:
        form = _SCALARS.get(kind)
        if form is None:
            raise ValueError(f"its metadata has a value of the unknown type {kind}")
        value: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def _long_text(self) -> str | None:
        length = self.number("<Q")
        if length > _LONGEST_TEXT:
            self.skip(length)
            return None
        return self.take(length).decode("utf-8", "replace")

    def _array(self, key: str, lengths: dict[str, int]) -> Value | None:
        kind, count = self.number("<I"), self.number("<Q")
        if count > self._limit:
            raise ValueError("its header names more than the file holds, so it is damaged")
        lengths[key] = count
        if kind == _STRING:
            self._texts += count
            if self._texts > _MOST_TEXTS:
                raise ValueError(f"its header has lists of more than {_MOST_TEXTS} texts, so it is damaged")
            for _ in range(count):
                self.skip(self.number("<Q"))
            return None
        form = _SCALARS.get(kind)
        if form is None:
            raise ValueError(f"its metadata has an array of the unknown type {kind}")
        size = struct.calcsize(form)
        if count > _LONGEST_KEPT:
            self.skip(count * size)
            return None
        return tuple(struct.unpack(f"<{count}{form[1]}", self.take(count * size)))
