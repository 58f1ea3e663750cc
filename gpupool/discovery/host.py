"""The host's CPU as a device: its memory, as far as this process may use it, is what can be claimed."""

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil
from msgspec.structs import replace

from gpupool.discovery.base import Device, Inventory, MemoryRegion
from gpupool.discovery.cpu import capability, processor, tags
from gpupool.discovery.memory import HostMemory as HostMemory
from gpupool.discovery.memory import host_memory as host_memory
from gpupool.discovery.memory_classes import region
from gpupool.discovery.numa import NumaNode, node_facts, numa_nodes
from gpupool.discovery.reading import traceable_id
from gpupool.discovery.small_files import text_of
from gpupool.discovery.uma import UMA_GPU_SHARE, Unity, machine_model, unity

_ALIKE: Final = 0.1


class HostSource:
    """The machine that the agent runs on."""

    def __init__(
        self,
        *,
        memory_share: float,
        root: Path = Path("/"),
        cpu_percent: Callable[[], float | None] | None = None,
    ) -> None:
        """`memory_share` (0 to 1) of the memory may be claimed. `root` is another file system in tests."""
        self._root = root
        self._cpu_percent = cpu_percent or _cpu_percent
        self._name = cpu_model(root)
        self._cores = usable_cores()
        model = machine_model(root)
        # On a board with one memory for CPU and GPU, both are devices and share what may be claimed.
        self._one_pool = unity("", model) is Unity.ONE_POOL
        self._share = min(memory_share, 1 - UMA_GPU_SHARE) if self._one_pool else memory_share
        node_id = host_id(root)
        known, self._nodes = processor(text_of(root / "proc/cpuinfo")), numa_nodes(root)
        facts = {
            "cores": str(self._cores),
            "architecture": platform.machine(),
            "machine": model,
            "sockets": str(known.sockets or ""),
            "boot_id": text_of(root / "proc/sys/kernel/random/boot_id"),
            "dmi_uuid_prefix": dmi_prefix(root),
            **node_facts(self._nodes),
        }
        self._device = Device(
            stable_id=f"cpu-{node_id}",
            kind="cpu",
            vendor="host",
            name=self._name,
            index=0,
            facts={key: value for key, value in facts.items() if value},
            traceable_id=traceable_id(self._name, "cpu", None, node_id),
            tags=tags(known),
            capability=capability(known, machine=platform.machine(), cores=self._cores),
        )

    async def probe(self) -> Inventory:
        memory = host_memory(self._root)
        percent = self._cpu_percent()
        facts = dict(self._device.facts)
        if memory.total is not None:
            facts["memory_total_bytes"] = str(memory.total)
        if memory.available is not None:
            facts["memory_available_bytes"] = str(memory.available)
        if memory.limited_by:
            facts["memory_limited_by"] = memory.limited_by
        device = replace(
            self._device,
            memory_bytes=None if memory.total is None else int(memory.total * self._share),
            utilization=None if percent is None else min(1.0, max(0.0, percent / 100)),
            regions=host_regions(memory.total, self._nodes, one_pool=self._one_pool),
            facts=facts,
        )
        return Inventory((device,))

    async def close(self) -> None:
        return None


def host_regions(
    total_bytes: int | None, nodes: Sequence[NumaNode] = (), *, one_pool: bool = False
) -> tuple[MemoryRegion, ...]:
    """Host memory: one region for each NUMA node, the first the nearest; and what GPUs may map of it, pinned.

    Where the nodes' sizes are not those of all memory (a control group, a virtual machine), it is one region.
    """
    if one_pool:
        return (region("lpddr_uma", total_bytes),)
    sized = [node.memory_bytes for node in nodes if node.memory_bytes is not None and node.cpus]
    if total_bytes is None or abs(sum(sized) - total_bytes) > _ALIKE * total_bytes:
        sized = []
    regions: list[MemoryRegion] = []
    base = 0
    for at, size in enumerate(sized or [total_bytes]):
        regions.append(region("ddr" if at == 0 else "ddr_remote", size, base=base))
        base += size or 0
    return (*regions, region("pinned_pcie", total_bytes))


def dmi_prefix(root: Path = Path("/")) -> str:
    """The first eight characters of the DMI product UUID; empty where it cannot be read or was never filled in."""
    value = text_of(root / "sys/class/dmi/id/product_uuid").lower()
    return value.replace("-", "")[:8] if value and value in host_id(root) else ""


def host_id(root: Path = Path("/")) -> str:
    """An identity of this machine that survives reboots: DMI product UUID, else machine id, else host name.

    The DMI UUID is readable by root only and absent in some virtual machines.
    """
    for file in ("sys/class/dmi/id/product_uuid", "etc/machine-id", "var/lib/dbus/machine-id"):
        value = text_of(root / file).lower()
        if len(value.replace("-", "").strip("0f")) > 0 and len(value) >= 32:  # all 0 or all f: not filled in
            return value
    return f"host-{platform.node() or 'unknown'}"


def cpu_model(root: Path = Path("/")) -> str:
    """The processor's name as the kernel gives it."""
    for line in text_of(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "hardware", "cpu model") and value.strip():
            return " ".join(value.split())
    return platform.processor() or f"{platform.machine()} processor"


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_percent() -> float | None:
    # The first call measures nothing and says 0.0; since then, or since the last call, afterwards.
    return psutil.cpu_percent(interval=None)
