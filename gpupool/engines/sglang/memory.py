"""What an SGLang server tells of its memory: a gauge of its metrics, and lines of its log. Its GB are 2**30."""

import re
from typing import Final

from gpupool.engines.base import EngineMemory
from gpupool.engines.log_lines import gib_bytes
from gpupool.engines.prometheus import count, gauge_sum

_GIB: Final = 1 << 30
_CACHE: Final = re.compile(
    r"KV Cache is allocated\..*?#tokens: (\d+)(?:, K size: ([\d.]+) GB, V size: ([\d.]+) GB|, KV size: ([\d.]+) GB)"
)
_WEIGHTS: Final = re.compile(r"Load weight end\..*?mem usage=([\d.]+) GB")
_TOKENS: Final = re.compile(r"max_total_num_tokens=(\d+)")
_GRAPHS: Final = re.compile(r"Capture cuda graph end\..*?mem usage=([\d.]+) GB")


def parse_memory(metrics: str, log: str) -> EngineMemory:
    """Of one rank where the log speaks of each; of the metrics, all data-parallel ranks together."""
    tokens = count(gauge_sum(metrics, "sglang:max_total_num_tokens"))
    cache = _CACHE.search(log)
    if tokens is None and cache is not None:
        tokens = int(cache[1])
    if tokens is None and (said := _TOKENS.search(log)) is not None:
        tokens = int(said[1])
    return EngineMemory(
        kv_tokens=tokens,
        kv_bytes=None if cache is None else round(sum(float(part) for part in cache.groups()[1:] if part) * _GIB),
        weights_bytes=gib_bytes(_WEIGHTS, log),
        compute_bytes=gib_bytes(_GRAPHS, log),
    )
