"""Reading what a trainer made, without running any of it: the adapter's configuration and its tensors' heads."""

from typing import Any, Final

import msgspec

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
LARGEST_CONFIG_BYTES: Final = 1 << 20
LARGEST_HEAD_BYTES: Final = 32 << 20
LARGEST_RANK: Final = 4096

_LENGTH_BYTES: Final = 8
_SIZES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class BadAdapter(ValueError):
    """What was made is no adapter; the message is a sentence."""


class _Config(msgspec.Struct):
    peft_type: str
    r: int
    lora_alpha: float = 0
    target_modules: list[str] | str | None = None
    base_model_name_or_path: str | None = None


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class AdapterFacts(msgspec.Struct, frozen=True):
    """What is known of an adapter."""

    rank: int
    alpha: float
    target_modules: list[str]
    tensors: int


_config = msgspec.json.Decoder(_Config)
_head = msgspec.json.Decoder(dict[str, msgspec.Raw])
_tensor = msgspec.json.Decoder(_Tensor)
_texts = msgspec.json.Decoder(dict[str, str])


def head_length(first: bytes, file_bytes: int) -> int:
    """How long a safetensors file's head is, by its first eight bytes. Raises BadAdapter."""
    length = int.from_bytes(first[:_LENGTH_BYTES], "little")
    if len(first) < _LENGTH_BYTES or length > LARGEST_HEAD_BYTES or _LENGTH_BYTES + length > file_bytes:
        raise BadAdapter(f"{WEIGHTS_FILE} is not a safetensors file, or it was cut off.")
    return length


def read_adapter(config: bytes, head: bytes, *, weights_bytes: int) -> AdapterFacts:
    """Hold the parts of an adapter against each other.

    `head` is the JSON of the safetensors file, `weights_bytes` the size of that whole file. Raises BadAdapter.
    """
    try:
        stated = _config.decode(config)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAdapter(f"{CONFIG_FILE} is not an adapter's configuration: {error}.") from error
    if stated.peft_type != "LORA":
        raise BadAdapter(f"{CONFIG_FILE} says peft_type {stated.peft_type!r}: only LORA is known here.")
    if not 1 <= stated.r <= LARGEST_RANK:
        raise BadAdapter(f"{CONFIG_FILE} says rank {stated.r}: it has to be 1 to {LARGEST_RANK}.")
    tensors = _tensors(head, weights_bytes - _LENGTH_BYTES - len(head))
    ranks = {tensor.shape[0] for name, tensor in tensors.items() if ".lora_A" in name and len(tensor.shape) == 2}
    if not ranks:
        raise BadAdapter(f"{WEIGHTS_FILE} has no tensors of a LoRA.")
    if max(ranks) != stated.r:
        raise BadAdapter(f"{CONFIG_FILE} says rank {stated.r}, the tensors have {max(ranks)}.")
    named = stated.target_modules or []
    modules = sorted([named] if isinstance(named, str) else named)
    if any("\0" in module for module in modules):
        raise BadAdapter(f"{CONFIG_FILE} names a module with the character NUL.")
    return AdapterFacts(
        rank=stated.r,
        alpha=stated.lora_alpha,
        target_modules=modules,
        tensors=len(tensors),
    )


def _tensors(head: bytes, data_bytes: int) -> dict[str, _Tensor]:
    try:
        members: dict[str, Any] = _head.decode(head)
        if (about := members.pop("__metadata__", None)) is not None:
            _texts.decode(about)
        tensors = {name: _tensor.decode(raw) for name, raw in members.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAdapter(f"the head of {WEIGHTS_FILE} cannot be read: {error}.") from error
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        size = _SIZES.get(tensor.dtype)
        if size is None:
            raise BadAdapter(f"tensor {name[:200]!r} has the type {tensor.dtype[:20]!r}, which is not known here.")
        for extent in tensor.shape:
            if extent < 0:
                raise BadAdapter(f"tensor {name[:200]!r} has a negative extent.")
            size *= extent
        first, last = tensor.data_offsets
        if first != end or last - first != size:
            raise BadAdapter(f"tensor {name[:200]!r} does not lie where the head of {WEIGHTS_FILE} says.")
        end = last
    if end != data_bytes:
        raise BadAdapter(f"{WEIGHTS_FILE} is {data_bytes - end} bytes longer than its tensors (negative: shorter).")
    return tensors
