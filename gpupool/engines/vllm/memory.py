"""What a vLLM server tells of its memory: `cache_config_info` in its metrics, and lines of its log."""

import re
from typing import Final

from gpupool.engines.base import EngineMemory
from gpupool.engines.log_lines import gib_bytes
from gpupool.engines.prometheus import labels

_WEIGHTS: Final = re.compile(r"(?:Model loading took|model weights take) ([\d.]+) ?GiB")
_CACHE: Final = re.compile(r"(?:Available KV cache memory:|reserved for KV Cache is) ([\d.]+) ?GiB")
_TOKENS: Final = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_GRAPHS: Final = re.compile(r"Graph capturing finished in .* took ([\d.]+) GiB")
_ACTIVATIONS: Final = re.compile(r"activation peak memory takes ([\d.]+) ?GiB")


def parse_memory(metrics: str, log: str) -> EngineMemory:
    """Of one worker where the log speaks of each: all of them hold the same.

    What the metrics say of blocks goes before the log. A cache of an engine without attention has none.
    """
    blocks: int | None = None
    block_tokens: int | None = None
    device_share: float | None = None
    for info in labels(metrics, "vllm:cache_config_info"):
        replica, block_tokens = _whole(info.get("num_gpu_blocks")), _whole(info.get("block_size"))
        if replica is not None:
            blocks = (blocks or 0) + replica
        device_share = _share(info.get("gpu_memory_utilization"))
    tokens = blocks * block_tokens if blocks is not None and block_tokens is not None else None
    if tokens is None and (said := _TOKENS.search(log)) is not None:
        tokens = int(said[1].replace(",", ""))
    graphs, activations = gib_bytes(_GRAPHS, log), gib_bytes(_ACTIVATIONS, log)
    return EngineMemory(
        kv_tokens=tokens,
        kv_bytes=gib_bytes(_CACHE, log),
        kv_block_tokens=block_tokens,
        weights_bytes=gib_bytes(_WEIGHTS, log),
        compute_bytes=None if graphs is None and activations is None else (graphs or 0) + (activations or 0),
        device_share=device_share,
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _share(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
