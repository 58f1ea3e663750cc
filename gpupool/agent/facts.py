"""What an agent says of its devices, in the words of the stream: never more than the web process takes.

A report that is refused ends the agent. So what a driver or another program makes up (names, counts, readings that
are no numbers) is cut here.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

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
_LARGEST_INT: Final = (1 << 31) - 1
_MOST_DEVICES: Final = 1000
_LARGEST_REPORT: Final = 700_000  # characters, about; what instances and events take comes on top
_FEW: Final = 16


def device_facts(devices: Sequence[Device], owners: Mapping[int, UUID] = MappingProxyType({})) -> list[DeviceFact]:
    """Those of a node, together no more than a frame holds: details go first, no device and no reading does."""
    told = {fact.stable_id: fact for fact in (device_fact(device, owners) for device in devices[:_MOST_DEVICES])}
    facts = list(told.values())
    if sum(map(_size, facts)) <= _LARGEST_REPORT:
        return facts
    return [_brief(fact) for fact in facts]


def device_fact(device: Device, owners: Mapping[int, UUID] = MappingProxyType({})) -> DeviceFact:
    """Everything that is known of a device; `owners` are the instances that processes of this node belong to."""
    return DeviceFact(
        stable_id=_cut(device.stable_id, 200),
        kind=device.kind,
        vendor=_cut(device.vendor, 16),
        name=_cut(device.name, 200),
        index=_whole(device.index, _LARGEST_INT),
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
    real = (process for process in processes if 0 <= process.pid <= _LARGEST_INT)
    return sorted(real, key=lambda process: process.pid not in owners)[:MOST_PROCESSES]


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
    return {name: _bounded(name, part) for name, part in told.items()}


def _bounded(name: str, part: Any) -> Any:
    if isinstance(part, str):
        return _cut(part, 200)
    if isinstance(part, bool) or not isinstance(part, int | float):
        return part
    bounded = _real(part)
    return 0 if bounded is None and name == "base" else bounded


def _size(fact: DeviceFact) -> int:
    """Characters that it takes, about, and not less."""
    texts = sum(len(name) + len(text) + 6 for name, text in fact.facts.items())
    processes = sum(len(process["name"]) + 120 for process in fact.processes)
    return 1500 + texts + processes + 250 * len(fact.links) + 200 * len(fact.regions) + 50 * len(fact.telemetry)


def _brief(fact: DeviceFact) -> DeviceFact:
    return replace(
        fact,
        facts={name: text[:100] for name, text in list(fact.facts.items())[:_FEW]},
        processes=[{**process, "name": process["name"][:40]} for process in fact.processes[:_FEW]],
        links=fact.links[:_FEW],
        regions=fact.regions[:_FEW],
        tags=fact.tags[:_FEW],
    )


def _whole(value: int | None, largest: float = _LARGEST) -> int | None:
    """A number that is none of a device's is not known."""
    return value if value is not None and 0 <= value <= largest else None


def _real(value: float | None) -> float | None:
    return value if value is not None and abs(value) <= _LARGEST else None  # NaN is no less than anything


def _cut(text: str, longest: int) -> str:
    return clean(text)[:longest]


def clean(text: str) -> str:
    """Without what neither JSON nor the database takes: NUL, and halves of characters."""
    whole = text.replace("\x00", "")
    return whole if whole.isascii() else whole.encode(errors="replace").decode()
