"""Reading what a trainer made, without running any of it: the adapter's configuration and its tensors' heads."""

from typing import Final

import msgspec

from gpupool.policies import safetensors
from gpupool.policies.safetensors import BadSafetensors

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
LARGEST_CONFIG_BYTES: Final = 1 << 20
LARGEST_HEAD_BYTES: Final = 32 << 20
LARGEST_RANK: Final = 4096


class BadAdapter(ValueError):
    """What was made is no adapter; the message is a sentence."""


class _Config(msgspec.Struct):
    peft_type: str
    r: int
    lora_alpha: float = 0
    target_modules: list[str] | str | None = None
    base_model_name_or_path: str | None = None


class AdapterFacts(msgspec.Struct, frozen=True):
    """What is known of an adapter."""

    rank: int
    alpha: float
    target_modules: list[str]
    tensors: int


_config = msgspec.json.Decoder(_Config)


def head_length(first: bytes, file_bytes: int) -> int:
    """How long a safetensors file's head is, by its first eight bytes. Raises BadAdapter."""
    try:
        return safetensors.head_length(first, file_bytes, most=LARGEST_HEAD_BYTES)
    except BadSafetensors as error:
        raise BadAdapter(f"{WEIGHTS_FILE} is not a safetensors file, or it was cut off: {error}.") from error


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
    try:
        header = safetensors.parse_head(head, data_bytes=weights_bytes - safetensors.LENGTH_BYTES - len(head))
    except BadSafetensors as error:
        raise BadAdapter(f"{WEIGHTS_FILE} cannot be used: {error}.") from error
    ranks = {each.shape[0] for each in header.tensors if ".lora_A" in each.name and len(each.shape) == 2}
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
        tensors=len(header.tensors),
    )
