"""The ways of finding NVIDIA's GPUs, put together: NVML, nvidia-smi while that fails, an exporter's measurements."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from core.clock import Clock
from gpupool.discovery.base import DeviceSource
from gpupool.discovery.dcgm import DcgmSource
from gpupool.discovery.nvidia_smi import NvidiaSmiSource
from gpupool.discovery.nvml import NvmlSource


def nvidia_source(
    *,
    env: Mapping[str, str],
    clock: Clock,
    root: Path = Path("/"),
    exporter: Callable[[], Awaitable[str | None]] | None = None,
) -> DeviceSource:
    """`env` is the whole environment of what is started; `exporter` gets the text of a dcgm-exporter."""
    smi = NvidiaSmiSource(env=env, clock=clock, root=root)
    nvml = NvmlSource(env=env, clock=clock, root=root, fallback=smi)
    return nvml if exporter is None else DcgmSource(nvml, exporter, clock=clock)
