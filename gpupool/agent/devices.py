"""The devices of a node, out of what several sources say of them."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gpupool.discovery.base import Capability, Device, Inventory

T = TypeVar("T")


def merge(inventories: Iterable[Inventory]) -> list[Device]:
    """One device for each, whichever sources saw it: the earlier source is believed, a later one fills gaps.

    Two sources speak of one device when it has the same stable id, or the same PCI address and is whole for both: the
    parts of a divided GPU all have its address.
    """
    merged: dict[str, Device] = {}
    at_address: dict[str, str] = {}
    for inventory in inventories:
        seen = dict(at_address)  # not those of this very source: it knows its own devices apart
        for device in inventory.devices:
            name = device.stable_id
            if name not in merged and device.pci_address and not device.partition_of:
                name = seen.get(device.pci_address, name)
            if name in merged:
                merged[name] = filled(merged[name], device)
                continue
            merged[name] = device
            if device.pci_address and not device.partition_of:
                at_address.setdefault(device.pci_address, name)
            elif device.pci_address:
                # Its whole may be listed by a source that cannot see that it is divided.
                at_address.setdefault(device.pci_address, device.partition_of)
    return [device for name, device in merged.items() if not _is_unseen_whole(name, device, merged)]


def filled(device: Device, other: Device) -> Device:
    """`device`, with what only `other` knows."""
    return replace(
        device,
        memory_bytes=_first(device.memory_bytes, other.memory_bytes),
        memory_used_bytes=_first(device.memory_used_bytes, other.memory_used_bytes),
        utilization=_first(device.utilization, other.utilization),
        temperature_celsius=_first(device.temperature_celsius, other.temperature_celsius),
        numa_node=_first(device.numa_node, other.numa_node),
        pci_address=device.pci_address or other.pci_address,
        traceable_id=device.traceable_id or other.traceable_id,
        recovery_action=device.recovery_action or other.recovery_action,
        tags=device.tags or other.tags,
        regions=device.regions or other.regions,
        links=device.links or other.links,
        processes=device.processes or other.processes,
        capability=device.capability if device.capability != Capability() else other.capability,
        facts={**other.facts, **device.facts},
        telemetry={**other.telemetry, **device.telemetry},
    )


def device_at(devices: Sequence[Device], pci_address: str) -> str:
    """Stable id of the whole device at an address; empty where there is none."""
    if not pci_address:
        return ""
    bare = pci_address.partition(".")[0]
    here = [device for device in devices if device.pci_address.partition(".")[0] == bare]
    for device in here:
        if not device.partition_of:
            return device.stable_id
    return here[0].partition_of if here else ""


def _is_unseen_whole(name: str, device: Device, merged: dict[str, Device]) -> bool:
    """Whether a later source listed as free what an earlier one says is divided into parts."""
    return device.allocatable and any(part.partition_of == name for part in merged.values())


def _first(value: T | None, other: T | None) -> T | None:
    return other if value is None else value
