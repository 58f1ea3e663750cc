"""The `GPUResourceView` of a device: each of its memories as base, size, type and access mask, and what computes there.

Numbers where the record has numbers (type 0 to 3, a mask of four bits), names beside them for people.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from gpupool.discovery.base import Capability, Device, MemoryRegion
from gpupool.discovery.memory_classes import MEMORY_CLASSES, MEMORY_TYPE_NUMBERS, Access, access_mask, pack

ARCHITECTURES: Final[Mapping[str, str]] = {"nvidia": "cuda", "amd": "hip", "intel": "level-zero", "host": "cpu"}
"""The programming interface by which a vendor's devices are one logical device."""


class RegionView(msgspec.Struct, frozen=True, kw_only=True):
    """One memory of a device."""

    base: int
    size: int | None  # bytes; None where it is not known
    mem_type: int  # 0 VRAM, 1 pinned, 2 UMA, 3 shared
    mem_type_name: str
    access: int  # 1 read, 2 write, 4 atomic, 8 compute
    access_names: list[str]
    packed: int  # type in bits 0 to 2, access from bit 3 on
    latency_ns: float | None  # of the class, from the catalogue


class GPUResourceView(msgspec.Struct, frozen=True, kw_only=True):
    """One logical device, whoever made it."""

    device_id: str
    vendor: str
    interface: str  # cuda, hip, level-zero, cpu; empty where none is known
    regions: list[RegionView]
    tensor_cores: bool | None
    precisions: list[str]
    compute_units: int | None
    peak_tflops: float | None  # this and the bandwidths are of data sheets, not measured
    memory_bandwidth: float | None  # bytes a second
    link_bandwidth: float | None  # bytes a second to all peers together, both directions


def view(device: Device) -> GPUResourceView:
    """The record of a device."""
    return _view(device.stable_id, device.vendor, device.regions, device.capability)


def view_of(device: Device) -> dict[str, Any]:
    """The same in plain values, as the API shows it."""
    built: dict[str, Any] = msgspec.to_builtins(view(device))
    return built


def view_of_stored(
    *, stable_id: str, vendor: str, regions: Iterable[Mapping[str, Any]], capability: Mapping[str, Any]
) -> dict[str, Any]:
    """The same, of a device as its row keeps it: regions and capability as JSON."""
    known = msgspec.convert(list(regions), list[MemoryRegion])
    built: dict[str, Any] = msgspec.to_builtins(
        _view(stable_id, vendor, tuple(known), msgspec.convert(dict(capability), Capability))
    )
    return built


def _view(stable_id: str, vendor: str, regions: Iterable[MemoryRegion], capability: Capability) -> GPUResourceView:
    return GPUResourceView(
        device_id=stable_id,
        vendor=vendor,
        interface=ARCHITECTURES.get(vendor, ""),
        regions=[_region(region) for region in regions],
        tensor_cores=capability.tensor_cores,
        precisions=sorted(capability.precisions),
        compute_units=capability.compute_units,
        peak_tflops=capability.peak_tflops,
        memory_bandwidth=capability.memory_bandwidth,
        link_bandwidth=capability.link_bandwidth,
    )


def _region(region: MemoryRegion) -> RegionView:
    mask = access_mask(region.access)
    return RegionView(
        base=region.base,
        size=region.size_bytes,
        mem_type=MEMORY_TYPE_NUMBERS[region.kind],
        mem_type_name=region.kind.value,
        access=int(mask),
        access_names=[(bit.name or "").lower() for bit in Access if bit in mask],
        packed=pack(region.kind, region.access),
        latency_ns=region.latency_ns,
    )


def catalogue() -> list[dict[str, Any]]:
    """The classes of memory with their latency, the nearest first, in plain values."""
    return [
        {
            "name": name,
            "title": row.title,
            "mem_type": MEMORY_TYPE_NUMBERS[row.kind],
            "mem_type_name": row.kind.value,
            "latency_ns": row.latency_ns,
            "access": int(access_mask(row.access)),
        }
        for name, row in sorted(MEMORY_CLASSES.items(), key=lambda item: item[1].latency_ns)
    ]
