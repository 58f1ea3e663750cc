"""Whatever else computes and sits on the PCI bus: a device without memory that can be claimed, so that people see it.

Comes after the vendors' sources: what those know of a device at the same address counts, and this fills the gaps.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from core.clock import Clock
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.gpu_catalogue import name_of
from gpupool.discovery.host import host_id
from gpupool.discovery.lspci import PciListed, listed
from gpupool.discovery.pci import PciFunction, pci_functions
from gpupool.discovery.reading import traceable_id
from gpupool.discovery.tools import ToolFailed, ask

_LOOK_AGAIN_SECONDS: Final = 60.0
_NAMES_AGAIN_SECONDS: Final = 3600.0
_DEADLINE_SECONDS: Final = 5.0
_TITLES: Final = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}


class PciSource:
    """Functions of the PCI bus that may compute. `lspci`, where installed, is asked for names once an hour."""

    def __init__(self, *, env: Mapping[str, str], clock: Clock, root: Path = Path("/")) -> None:
        self._env = dict(env)
        self._clock = clock
        self._root = root
        self._node_id = host_id(root)
        self._last = Inventory()
        self._rest_until: float | None = None
        self._names: dict[str, PciListed] = {}
        self._names_until: float | None = None

    async def probe(self) -> Inventory:
        now = self._clock.monotonic()
        if self._rest_until is not None and now < self._rest_until:
            return self._last
        self._rest_until = now + _LOOK_AGAIN_SECONDS
        functions = pci_functions(self._root)
        if functions and (self._names_until is None or now >= self._names_until):
            self._names_until = now + _NAMES_AGAIN_SECONDS
            self._names = {function.address: function for function in listed(await self._ask_lspci())}
        devices = tuple(device_of(function, self._names.get(function.address), self._node_id) for function in functions)
        self._last = Inventory(devices)  # that there is none, the vendors' sources say
        return self._last

    async def close(self) -> None:
        return None

    async def _ask_lspci(self) -> str:
        """What it prints; empty where it is not installed, hangs or fails."""
        if shutil.which("lspci", path=self._env.get("PATH")) is None:
            return ""
        try:
            answer = await ask(("lspci", "-Dnn"), env=self._env, seconds=_DEADLINE_SECONDS)
        except ToolFailed:
            return ""
        return answer.text


def device_of(function: PciFunction, told: PciListed | None, node_id: str) -> Device:
    """A device that is there and of whose memory nothing is known."""
    name = _name(function, told)
    trace = traceable_id(name, function.address, None, node_id)
    facts = {
        "pci_address": function.address,
        "pci_ids": f"{function.vendor_id.removeprefix('0x')}:{function.device_id.removeprefix('0x')}",
        "pci_class": function.class_code,
        "pci_maker": function.maker,
        "kernel_driver": function.driver,
        "iommu_group": function.iommu_group,
    }
    if not function.driver:
        facts["trouble"] = "No driver of the kernel is bound to it."
    measured = {
        "pcie_gts": function.link_gts,
        "pcie_width": function.link_width,
        "pcie_gts_max": function.link_gts_max,
        "pcie_width_max": function.link_width_max,
    }
    return Device(
        stable_id=trace,
        kind="gpu",
        vendor=function.vendor,
        name=name,
        health="unknown",
        facts={key: value for key, value in facts.items() if value},
        traceable_id=trace,
        allocatable=False,
        pci_address=function.address,
        numa_node=function.numa_node,
        telemetry={key: float(value) for key, value in measured.items() if value is not None},
    )


def _name(function: PciFunction, told: PciListed | None) -> str:
    if known := name_of(function.device_id) if function.vendor in ("amd", "intel") else "":
        return known
    title = _TITLES.get(function.vendor, "")
    if told is not None:
        return " ".join(part for part in (title, told.name) if part)
    maker = title or function.maker or f"vendor {function.vendor_id}"
    return f"{maker} device {function.device_id}"
