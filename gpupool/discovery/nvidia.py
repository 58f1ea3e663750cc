"""The ways of finding NVIDIA's GPUs, put together: NVML, nvidia-smi while that fails, an exporter's measurements."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog
from msgspec.structs import replace

from core.clock import Clock
from gpupool.discovery.base import DeviceSource, Inventory
from gpupool.discovery.dcgm import DcgmSource
from gpupool.discovery.nccl_topology import PlacedGpu, TopologyRefused, parse, place
from gpupool.discovery.nvidia_smi import NvidiaSmiSource
from gpupool.discovery.nvml import NvmlSource

log = structlog.get_logger(__name__)


class PlacedSource:
    """Another source's devices, with a topology file's word on what is near what."""

    def __init__(self, devices: DeviceSource, gpus: Mapping[str, PlacedGpu]) -> None:
        self._devices = devices
        self._gpus = gpus

    async def probe(self) -> Inventory:
        found = await self._devices.probe()
        return replace(found, devices=place(found.devices, self._gpus)) if found.devices else found

    async def close(self) -> None:
        await self._devices.close()


def nvidia_source(
    *,
    env: Mapping[str, str],
    clock: Clock,
    root: Path = Path("/"),
    exporter: Callable[[], Awaitable[str | None]] | None = None,
    topology_file: str = "",
) -> DeviceSource:
    """`env` is the whole environment of what is started; `exporter` gets the text of a dcgm-exporter.

    `topology_file`, as NCCL_TOPO_FILE names it, is believed over what the driver says of PCIe.
    """
    smi = NvidiaSmiSource(env=env, clock=clock, root=root)
    source: DeviceSource = NvmlSource(env=env, clock=clock, root=root, fallback=smi)
    if topology_file:
        try:
            source = PlacedSource(source, parse(Path(topology_file).read_text()))
        except (OSError, UnicodeDecodeError, TopologyRefused) as error:
            log.warning("discovery.topology_file_unread", file=topology_file, error=str(error))
    return source if exporter is None else DcgmSource(source, exporter, clock=clock)
