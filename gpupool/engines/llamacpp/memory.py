"""What a llama.cpp server tells of its memory: the sizes of its buffers in its log, its slots at `/props`."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from gpupool.engines.base import EngineMemory

_MIB: Final = 1 << 20
_BUFFER: Final = re.compile(r"(\w+) +(model|KV|RS|LoRA|compute|output) buffer size = +([\d.]+) MiB")
_CACHE: Final = re.compile(r"size = +([\d.]+) MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs\)")
_CONTEXT: Final = re.compile(r"\bn_ctx +[:=] +(\d+)\b")


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes of one of its devices, by llama.cpp's name: CUDA0, ROCm1, CPU, CPU_Mapped, CUDA_Host."""

    weights: int = 0
    kv_cache: int = 0  # and the states of recurrent layers
    compute: int = 0  # scratch of graphs, and outputs
    adapters: int = 0


def parse_memory(metrics: str, log: str) -> EngineMemory:
    """Of all devices together, the host's part too. The metrics say nothing of it."""
    buffers = parse_buffers(log)
    if not buffers:
        return EngineMemory()
    tokens = [int(cells) * int(streams) for _, cells, streams in _CACHE.findall(log)]
    contexts = [int(size) for size in _CONTEXT.findall(log)]
    return EngineMemory(
        # Layers with a sliding window have a smaller cache of their own: the larger is what the context holds.
        kv_tokens=max(tokens, default=max(contexts, default=None)),
        kv_bytes=sum(device.kv_cache for device in buffers.values()) or None,
        weights_bytes=sum(device.weights for device in buffers.values()) or None,
        compute_bytes=sum(device.compute for device in buffers.values()),
        adapters_bytes=sum(device.adapters for device in buffers.values()) or None,
    )


def parse_buffers(log: str) -> dict[str, Buffers]:
    """By device; empty where the log has no such lines (they are of its level "info")."""
    sums: dict[str, dict[str, int]] = {}
    for device, what, mib in _BUFFER.findall(log):
        kind = {"model": "weights", "KV": "kv_cache", "RS": "kv_cache", "LoRA": "adapters"}.get(what, "compute")
        sizes = sums.setdefault(device, {})
        sizes[kind] = sizes.get(kind, 0) + round(float(mib) * _MIB)
    return {device: Buffers(**sizes) for device, sizes in sums.items()}


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    total_slots: int | None = None
    default_generation_settings: _Settings = msgspec.field(default_factory=_Settings)


@dataclass(frozen=True, slots=True)
class Slots:
    """How a server shares its context out; None where it does not say."""

    count: int | None
    tokens_each: int | None


def parse_props(body: bytes) -> Slots:
    """From `/props`. Raises ValueError for an answer of another shape."""
    try:
        props = msgspec.json.decode(body, type=_Props)
    except msgspec.MsgspecError as error:
        raise ValueError(f"This is not what llama.cpp says of itself: {error}.") from error
    return Slots(props.total_slots, props.default_generation_settings.n_ctx)
