"""What engines told of their memory once they ran, and an estimate corrected by it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpupool.policies.estimate.architecture import Architecture
from gpupool.policies.estimate.estimate import Estimate, Part
from gpupool.policies.estimate.kv_cache import CachePlan, block_bytes

_BUFFER: Final = re.compile(
    r"(?P<device>[A-Za-z]+(?:_[A-Za-z]+)?\d*)\s+(?P<what>model|KV|compute|output)\s+buffer size\s*=\s*"
    r"(?P<mib>\d+(?:\.\d+)?)\s*MiB"
)
_CACHE_CONFIG: Final = re.compile(r"^vllm:cache_config_info\{(?P<labels>[^}]*)\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_ON_HOST: Final = ("CPU", "CUDA_Host", "ROCm_Host", "Host", "SYCL_Host", "Vulkan_Host")


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes on each device, the same on all; None where the engine did not tell. Peaks are the agent's own look."""

    weights: int | None = None
    kv_cache: int | None = None
    compute: int | None = None
    peak: int | None = None


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """vLLM's `cache_config_info`; None where it does not say."""

    blocks: int | None
    block_tokens: int | None

    @property
    def tokens(self) -> int | None:
        """That its cache holds."""
        return None if self.blocks is None or self.block_tokens is None else self.blocks * self.block_tokens


def parse_cache_config(metrics: str) -> CacheConfig | None:
    """From vLLM's metrics; None where they have no such line."""
    match = _CACHE_CONFIG.search(metrics)
    if match is None:
        return None
    labels = dict(_LABEL.findall(match["labels"]))
    return CacheConfig(_whole(labels, "num_gpu_blocks"), _whole(labels, "block_size"))


def cache_bytes(config: CacheConfig, architecture: Architecture, plan: CachePlan) -> int | None:
    """The cache of each card, from its blocks."""
    if config.blocks is None or config.block_tokens is None:
        return None
    return config.blocks * block_bytes(architecture, plan, config.block_tokens)


def parse_buffers(log: str) -> Mapping[str, Measured]:
    """By llama.cpp's name of a device (CUDA0, CPU), from its log's `... buffer size = ... MiB` lines; sums of each."""
    found: dict[str, dict[str, int]] = {}
    for match in _BUFFER.finditer(log):
        sizes = found.setdefault(match["device"], {})
        sizes[match["what"]] = sizes.get(match["what"], 0) + round(float(match["mib"]) * (1 << 20))
    return {
        device: Measured(weights=sizes.get("model"), kv_cache=sizes.get("KV"), compute=sizes.get("compute"))
        for device, sizes in found.items()
    }


def is_host(device: str) -> bool:
    """Whether llama.cpp's name of a device means the host's memory."""
    return device in _ON_HOST or device.startswith("CPU")


def correct(made: Estimate, measured: Measured) -> Estimate:
    """What was told goes before what was reckoned, part by part; a peak above the sum goes to the compute buffers.

    An engine that takes all of its lease for the cache (vLLM) tells more than the least that serves: that is what it
    holds now, not what it needs, so a told cache only counts where it is the smaller one.
    """
    if measured == Measured():
        return made
    if not made.cards:
        return replace(made, host=_corrected(made.host, measured), measured=True)
    return replace(made, cards=tuple(_corrected(card, measured) for card in made.cards), measured=True)


def _corrected(part: Part, measured: Measured) -> Part:
    told = replace(
        part,
        weights=part.weights if measured.weights is None else measured.weights,
        kv_cache=part.kv_cache if measured.kv_cache is None else min(part.kv_cache, measured.kv_cache),
        compute=part.compute if measured.compute is None else measured.compute,
    )
    held = told.total - told.kv_cache + (measured.kv_cache or told.kv_cache)
    if measured.peak is not None and measured.peak > held:
        told = replace(told, compute=told.compute + measured.peak - held)
    return told


def _whole(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
