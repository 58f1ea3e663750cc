"""What an agent says of its devices, in the words of the stream."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from gpupool.discovery.base import Device, DeviceProcess
from gpupool.engines.base import GivenDevice
from gpupool.stream.messages import DeviceFact


def device_fact(device: Device, owners: Mapping[int, UUID] = MappingProxyType({})) -> DeviceFact:
    """Everything that is known of a device; `owners` are the instances that processes of this node belong to."""
    facts = dict(device.facts)
    if device.pci_address:
        facts.setdefault("pci_address", device.pci_address)
    if device.numa_node is not None:
        facts.setdefault("numa_node", str(device.numa_node))
    if device.recovery_action:
        facts.setdefault("recovery_action", device.recovery_action)
    return DeviceFact(
        stable_id=device.stable_id,
        kind=device.kind,
        vendor=device.vendor,
        name=device.name,
        index=device.index,
        memory_bytes=device.memory_bytes,
        memory_used_bytes=device.memory_used_bytes,
        utilization=device.utilization,
        temperature_celsius=device.temperature_celsius,
        health=device.health,
        facts=facts,
        traceable_id=device.traceable_id,
        allocatable=device.allocatable,
        partition_of=device.partition_of,
        tags=list(device.tags),
        regions=[msgspec.to_builtins(region, order="deterministic") for region in device.regions],
        capability=msgspec.to_builtins(device.capability, order="deterministic"),
        links=[msgspec.to_builtins(link) for link in device.links],
        processes=[_process(process, owners) for process in device.processes],
        telemetry=dict(device.telemetry),
    )


def _process(process: DeviceProcess, owners: Mapping[int, UUID]) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(process)
    return told | {"instance_id": str(owners[process.pid])} if process.pid in owners else told


def given_device(device: Device) -> GivenDevice:
    """What an engine's room needs to know of it."""
    return GivenDevice(
        device.stable_id,
        device.kind,
        device.vendor,
        device.memory_bytes,
        index=device.index,
        uuid=device.facts.get("uuid", ""),
        pci_address=device.pci_address,
    )
