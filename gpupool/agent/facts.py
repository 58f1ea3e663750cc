"""What an agent says of its devices, in the words of the stream: never more than the web process takes.

A report that is refused ends the agent. So what a driver or another program makes up (names, counts, readings that
are no numbers) is cut here.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec

from gpupool.discovery.base import Device, DeviceProcess
from gpupool.engines.base import GivenDevice
from gpupool.stream.messages import DeviceFact

MOST_PROCESSES: Final = 256
_MOST_REGIONS: Final = 32
_MOST_LINKS: Final = 512
_MOST_READINGS: Final = 100
_MOST_TAGS: Final = 32
_MOST_FACTS: Final = 90
_LARGEST: Final = 1e18


def device_fact(device: Device, owners: Mapping[int, UUID] = MappingProxyType({})) -> DeviceFact:
    """Everything that is known of a device; `owners` are the instances that processes of this node belong to."""
    return DeviceFact(
        stable_id=_cut(device.stable_id, 200),
        kind=device.kind,
        vendor=_cut(device.vendor, 16),
        name=_cut(device.name, 200),
        index=_whole(device.index),
        memory_bytes=_whole(device.memory_bytes),
        memory_used_bytes=_whole(device.memory_used_bytes),
        utilization=_real(device.utilization),
        temperature_celsius=_real(device.temperature_celsius),
        health=device.health,
        facts=_facts(device),
        traceable_id=_cut(device.traceable_id, 250),
        allocatable=device.allocatable,
        partition_of=_cut(device.partition_of, 200),
        tags=[_cut(tag, 80) for tag in device.tags[:_MOST_TAGS]],
        regions=[_plain(region) for region in device.regions[:_MOST_REGIONS]],
        capability=_plain(device.capability),
        links=[_plain(link) for link in device.links[:_MOST_LINKS]],
        processes=[_process(process, owners) for process in _shown(device.processes, owners)],
        telemetry=_readings(device),
    )


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


def _shown(processes: Sequence[DeviceProcess], owners: Mapping[int, UUID]) -> list[DeviceProcess]:
    """Our own first, where there are more than are told."""
    return sorted(processes, key=lambda process: process.pid not in owners)[:MOST_PROCESSES]


def _process(process: DeviceProcess, owners: Mapping[int, UUID]) -> dict[str, Any]:
    told = {"pid": process.pid, "name": _cut(process.name, 200), "memory_bytes": _whole(process.memory_bytes)}
    return told | {"instance_id": str(owners[process.pid])} if process.pid in owners else told


def _facts(device: Device) -> dict[str, str]:
    facts = {_cut(name, 100): _cut(text, 2000) for name, text in list(device.facts.items())[:_MOST_FACTS]}
    if device.pci_address:
        facts.setdefault("pci_address", _cut(device.pci_address, 100))
    if device.numa_node is not None:
        facts.setdefault("numa_node", str(device.numa_node))
    if device.recovery_action:
        facts.setdefault("recovery_action", _cut(device.recovery_action, 100))
    return facts


def _readings(device: Device) -> dict[str, float]:
    known = {cut: value for name, value in device.telemetry.items() if (cut := _cut(name, 64))}
    return {name: value for name, value in list(known.items())[:_MOST_READINGS] if _real(value) is not None}


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """In the same order every time: what has not changed looks the same."""
    told: dict[str, Any] = msgspec.to_builtins(value, order="deterministic")
    return {name: _cut(part, 200) if isinstance(part, str) else part for name, part in told.items()}


def _whole(value: int | None) -> int | None:
    """A number that is none of a device's is not known."""
    return value if value is not None and 0 <= value < _LARGEST else None


def _real(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and abs(value) <= _LARGEST else None


def _cut(text: str, longest: int) -> str:
    return text.replace("\x00", "")[:longest]
