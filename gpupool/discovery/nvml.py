"""NVIDIA GPUs, as NVML tells them. The library is only ever loaded in a child that can be killed."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from core.clock import Clock
from gpupool.discovery.base import DeviceSource, Inventory
from gpupool.discovery.child import ProbeChild, ProbeMissed
from gpupool.discovery.host import host_id
from gpupool.discovery.nvidia_reading import NvmlReading
from gpupool.discovery.nvidia_view import as_known, device, devices, noticed, traceable_id
from gpupool.discovery.pci import PciGpu, pci_gpus
from gpupool.discovery.reading import stale
from gpupool.discovery.snapshot import diff
from gpupool.discovery.tools import CODE_ROOT

__all__ = ["NvmlSource", "device", "no_gpu_reason", "traceable_id"]

_LOOK_AGAIN_SECONDS: Final = 60.0

_FAILURES: Final[Mapping[str, str]] = {
    "NO_BINDING": "the Python package nvidia-ml-py is not installed",
    "LIBRARY_NOT_FOUND": "the NVIDIA driver's library libnvidia-ml.so.1 was not found",
    "DRIVER_NOT_LOADED": "the NVIDIA driver is installed but its kernel module is not loaded",
    "LIB_RM_VERSION_MISMATCH": "the NVIDIA library and kernel module have different versions; a reboot ends that",
    "NO_PERMISSION": "this user may not talk to the NVIDIA driver",
    "GPU_IS_LOST": "the NVIDIA driver lost its GPU; the machine needs a reboot",
    "IRQ_ISSUE": "the NVIDIA driver has an interrupt problem with a GPU",
}


class NvmlSource:
    """GPUs of one node. MIG instances are devices; their parents are listed and cannot be allocated."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        clock: Clock,
        root: Path = Path("/"),
        argv: Sequence[str] = (sys.executable, "-m", "gpupool.discovery.nvml_probe"),
        deadline_seconds: float = 2.0,
        first_deadline_seconds: float = 15.0,
        fallback: DeviceSource | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`env` is the child's whole environment. `fallback` is asked while NVML does not answer."""
        self._child = ProbeChild(
            argv,
            env={**env, "PYTHONPATH": str(CODE_ROOT)},
            clock=clock,
            deadline_seconds=deadline_seconds,
            first_deadline_seconds=first_deadline_seconds,
        )
        self._clock = clock
        self._root = root
        self._node_id = host_id(root)
        self._last = Inventory()
        self._rest_until: float | None = None
        self._fallback = fallback
        self._wall = wall

    @property
    def probe_pid(self) -> int | None:
        """The child that talks to the driver, while there is one."""
        return self._child.pid

    async def probe(self) -> Inventory:
        before = self._last
        if self._rest_until is not None and self._clock.monotonic() < self._rest_until:
            found = await self._otherwise(_stale(self._last, self._last.reason))
        else:
            found = await self._look()
        events = diff(before.devices, found.devices, at=self._wall())
        self._last = found
        return replace(found, noticed=(*found.noticed, *events))

    async def close(self) -> None:
        await self._child.close()
        if self._fallback is not None:
            await self._fallback.close()

    async def _look(self) -> Inventory:
        try:
            reading = msgspec.json.decode(await self._child.ask(), type=NvmlReading)
        except ProbeMissed as error:
            return await self._otherwise(_stale(self._last, f"NVIDIA's driver was asked for GPUs: {error}"))
        except msgspec.MsgspecError as error:
            stale = _stale(self._last, f"NVIDIA's probe gave an answer that cannot be read: {error}.")
            return await self._otherwise(stale)
        if reading.failure:
            # Without a driver there is no need to keep a process and ask every second.
            await self._child.close()
            self._rest_until = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
            reason = no_gpu_reason(reading, pci_gpus(self._root))
            return await self._otherwise(_stale(self._last, reason))
        self._rest_until = None
        known = {before.index: before for before in self._last.devices if before.index is not None}
        wholes = {index: before for index, before in known.items() if not before.partition_of}
        found = tuple(devices(reading, node_id=self._node_id, root=self._root, known=wholes))
        reason = "" if any(each.allocatable for each in found) else no_gpu_reason(reading, pci_gpus(self._root))
        return Inventory(found, reason, tuple(noticed(event) for event in reading.events))

    async def _otherwise(self, found: Inventory) -> Inventory:
        """What the fallback finds, where there is one and it finds something."""
        if self._fallback is None:
            return found
        other = await self._fallback.probe()
        return replace(other, devices=as_known(other.devices, found.devices)) if other.devices else found


def no_gpu_reason(reading: NvmlReading, on_the_bus: Sequence[PciGpu]) -> str:
    """A sentence for an operator who expected a GPU."""
    parents = [gpu for gpu in reading.gpus if gpu.mig_enabled]
    if parents:
        which = ", ".join(gpu.uuid or f"number {gpu.index}" for gpu in parents)
        return f"GPU {which} is in MIG mode without instances: a MIG parent cannot be allocated, make instances on it."
    if not reading.failure:
        why = "the NVIDIA driver is loaded and reports no device"
    else:
        why = _FAILURES.get(reading.failure, f"NVIDIA's library failed with {reading.failure}")
    nvidia = [gpu for gpu in on_the_bus if gpu.vendor == "nvidia"]
    if nvidia:
        addresses = ", ".join(gpu.address for gpu in nvidia)
        return f"An NVIDIA GPU is on the PCI bus ({addresses}), but {why}."
    return f"No NVIDIA GPU was found: {why}."


def _stale(inventory: Inventory, reason: str) -> Inventory:
    """Devices seen before stay known, and nothing about them is: stale is unknown."""
    return Inventory(tuple(stale(known, "unknown") for known in inventory.devices), reason)
