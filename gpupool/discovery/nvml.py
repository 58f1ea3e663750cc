"""NVIDIA GPUs, as NVML tells them. The library is only ever loaded in a child that can be killed."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

import gpupool
from core.clock import Clock
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.child import ProbeChild, ProbeMissed
from gpupool.discovery.host import host_id
from gpupool.discovery.nvml_probe import GpuReading, NvmlReading
from gpupool.discovery.pci import PciGpu, pci_gpus

_LOOK_AGAIN_SECONDS: Final = 60.0
_CODE_ROOT: Final = str(Path(gpupool.__file__).resolve().parent.parent)

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
    """GPUs of one node. MIG instances are devices, their parents are not: nothing may claim those."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        clock: Clock,
        root: Path = Path("/"),
        argv: Sequence[str] = (sys.executable, "-m", "gpupool.discovery.nvml_probe"),
        deadline_seconds: float = 2.0,
        first_deadline_seconds: float = 15.0,
    ) -> None:
        """`env` is the child's whole environment."""
        self._child = ProbeChild(
            argv,
            env={**env, "PYTHONPATH": _CODE_ROOT},
            clock=clock,
            deadline_seconds=deadline_seconds,
            first_deadline_seconds=first_deadline_seconds,
        )
        self._clock = clock
        self._root = root
        self._node_id = host_id(root)
        self._last = Inventory()
        self._rest_until: float | None = None

    @property
    def probe_pid(self) -> int | None:
        """The child that talks to the driver, while there is one."""
        return self._child.pid

    async def probe(self) -> Inventory:
        if self._rest_until is not None and self._clock.monotonic() < self._rest_until:
            return self._last
        try:
            reading = msgspec.json.decode(await self._child.ask(), type=NvmlReading)
        except ProbeMissed as error:
            self._last = _stale(self._last, f"NVIDIA's driver was asked for GPUs: {error}")
            return self._last
        except msgspec.MsgspecError as error:
            self._last = _stale(self._last, f"NVIDIA's probe gave an answer that cannot be read: {error}.")
            return self._last
        if reading.failure:
            # Without a driver there is no need to keep a process and ask every second.
            await self._child.close()
            self._rest_until = self._clock.monotonic() + _LOOK_AGAIN_SECONDS
            self._last = replace(_stale(self._last, ""), reason=no_gpu_reason(reading, pci_gpus(self._root)))
            return self._last
        self._rest_until = None
        devices = tuple(self._devices(reading))
        self._last = Inventory(devices, "" if devices else no_gpu_reason(reading, pci_gpus(self._root)))
        return self._last

    async def close(self) -> None:
        await self._child.close()

    def _devices(self, reading: NvmlReading) -> Iterator[Device]:
        before = {known.index: known for known in self._last.devices}
        for gpu in reading.gpus:
            if gpu.mig_enabled:
                continue
            if gpu.uuid is not None or not gpu.trouble:
                yield device(gpu, reading.driver_version, self._node_id)
            elif (known := before.get(gpu.index)) is not None:
                # A lost GPU does not even say its UUID: it is the one that had this index a moment ago.
                lost = _without_telemetry(known, health="failed")
                yield replace(lost, facts={**lost.facts, "trouble": gpu.trouble})


def device(gpu: GpuReading, driver_version: str | None, node_id: str) -> Device:
    """The unified view of one reading."""
    facts = {
        "traceable_id": traceable_id(gpu, node_id),
        "driver": driver_version,
        "pci_address": gpu.pci_address,
        "compute_capability": gpu.compute_capability,
        "mig_parent": gpu.parent_uuid,
        "trouble": gpu.trouble or None,
    }
    return Device(
        stable_id=gpu.uuid or traceable_id(gpu, node_id),
        kind="gpu",
        vendor="nvidia",
        name=gpu.name or "NVIDIA GPU",
        index=gpu.index,
        memory_bytes=gpu.memory_bytes,
        memory_used_bytes=gpu.memory_used_bytes,
        utilization=gpu.utilization,
        temperature_celsius=gpu.temperature_celsius,
        health="failed" if gpu.trouble else "ok",
        facts={key: value for key, value in facts.items() if value is not None},
    )


def traceable_id(gpu: GpuReading, node_id: str) -> str:
    """Model, PCI address and the node's identity: `A100-PCIE-40GB_0000:17:00.0_abc123de`.

    A name for people, and the stable id of a GPU that has no UUID. Without a PCI address the driver's index
    must do.
    """
    model = (gpu.name or "GPU").removeprefix("NVIDIA ").replace(" ", "_")
    return f"{model}_{gpu.pci_address or f'index{gpu.index}'}_{node_id.replace('-', '')[:8]}"


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
    sentence = f"No GPU was found: {why}."
    others = [gpu for gpu in on_the_bus if gpu.vendor == "amd" and gpu.driver]
    if others:
        sentence += f" There is an AMD GPU ({others[0].address}), which this version does not use yet."
    return sentence


def _stale(inventory: Inventory, reason: str) -> Inventory:
    """Devices seen before stay known, and nothing about them is: stale is unknown."""
    return Inventory(tuple(_without_telemetry(known, health="unknown") for known in inventory.devices), reason)


def _without_telemetry(known: Device, *, health: str) -> Device:
    return replace(known, memory_used_bytes=None, utilization=None, temperature_celsius=None, health=health)
