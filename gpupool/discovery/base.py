"""Devices as the pool sees them, whoever made them. Unknown is None, never zero."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec


class MemoryType(StrEnum):
    """What memory a region is of; numbered 0 to 3 in this order where a number is asked for."""

    VRAM = "vram"
    PINNED = "pinned"
    UMA = "uma"
    SHARED = "shared"


class MemoryRegion(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that work on a device can use; a size in bytes, a catalogue value for how far away it is."""

    kind: MemoryType
    size_bytes: int | None
    base: int = 0  # offset within the device's view
    latency_ns: float | None = None  # of the class, not measured
    access: frozenset[str] = frozenset({"read", "write", "atomic", "compute"})


class LinkType(StrEnum):
    """How two devices reach each other, the nearest first."""

    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    XGMI = "xgmi"
    XELINK = "xelink"
    C2C = "c2c"
    PCIE_SWITCH = "pcie_switch"  # PIX, PXB: without the host bridge
    PCIE_HOST = "pcie_host"  # PHB: through one host bridge
    NUMA = "numa"  # NODE: between host bridges of one NUMA node
    SYSTEM = "system"  # SYS: across the sockets


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One way from a device to another. `peer` is its stable id; a switch or hub has a name of its own."""

    peer: str
    kind: LinkType
    lanes: int | None = None  # NVLinks, XGMI links
    bandwidth_bytes: int | None = None  # a second, both directions together; None where it is not known


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """What a device can compute. Speeds are those of data sheets: none is measured on the device."""

    architecture: str = ""  # hopper, ampere, gfx942, xe-hpc, x86_64
    compute_capability: str = ""  # NVIDIA's, 9.0
    precisions: frozenset[str] = frozenset()  # fp32, fp16, bf16, fp8, fp4, int8
    tensor_cores: bool | None = None
    compute_units: int | None = None  # SMs, CUs, Xe cores, cores
    peak_tflops: float | None = None  # dense, at half precision, of the catalogue
    memory_bandwidth: float | None = None  # bytes a second of its own memory, of the catalogue
    link_bandwidth: float | None = None  # bytes a second to all peers together, both directions, of the catalogue


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a device."""

    pid: int
    name: str = ""
    memory_bytes: int | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device that instances can claim memory of; sizes in bytes."""

    stable_id: str  # survives reboots and reordering
    kind: str  # cpu, gpu
    vendor: str  # host, nvidia, amd, intel, unknown
    name: str
    index: int | None = None  # the vendor's own numbering, for people; never used to address it
    memory_bytes: int | None = None  # what may be claimed
    memory_used_bytes: int | None = None
    utilization: float | None = None  # 0 to 1
    temperature_celsius: float | None = None
    health: str = "ok"  # ok, failed, unknown
    facts: Mapping[str, str] = {}
    traceable_id: str = ""  # for people: A100_PCIe_0000:17:00.0_abc123de
    allocatable: bool = True  # not a whole that is divided into parts (MIG)
    partition_of: str = ""  # stable id of that whole
    pci_address: str = ""  # 0000:17:00.0
    numa_node: int | None = None
    recovery_action: str = ""  # what its driver asks for: none, reset, reboot, drain_reset, drain_reboot; empty: silent
    tags: tuple[str, ...] = ()
    regions: tuple[MemoryRegion, ...] = ()
    capability: Capability = Capability()
    links: tuple[Link, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    telemetry: Mapping[str, float] = {}
    """Newest readings by name with unit: power_watts, power_limit_watts, sm_clock_mhz, memory_clock_mhz,
    memory_utilization, ecc_corrected, ecc_uncorrected, remapped_rows_correctable, remapped_rows_uncorrectable,
    remap_pending, remap_failed, retired_pages, fan_share, pcie_replays, throttled, sm_active and so on."""


class Noticed(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a device, or to the node where `stable_id` is empty. See DeviceEvent."""

    source: str  # nvml, kernel_log, snapshot, guard, agent
    kind: str  # xid, ecc, remap, recovery_action, lost, change, memory
    at: float  # seconds since the epoch
    stable_id: str = ""
    pci_address: str = ""  # where the source names the device only so
    code: int | None = None
    text: str = ""
    data: Mapping[str, str] = {}


class Inventory(msgspec.Struct, frozen=True):
    """What one source found. `reason` says in a sentence why there is nothing, when there is nothing."""

    devices: tuple[Device, ...] = ()
    reason: str = ""
    noticed: tuple[Noticed, ...] = ()  # since the last look


class DeviceSource(Protocol):
    """One way of finding devices."""

    async def probe(self) -> Inventory:
        """Look again. Never hangs and never raises for what the machine does: it says so in the inventory."""

    async def close(self) -> None:
        """End helpers."""
