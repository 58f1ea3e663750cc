"""Devices as the pool sees them, whoever made them. Unknown is None, never zero."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Device:
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
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one source found. `reason` says in a sentence why there is nothing, when there is nothing."""

    devices: tuple[Device, ...] = ()
    reason: str = ""


class DeviceSource(Protocol):
    """One way of finding devices."""

    async def probe(self) -> Inventory:
        """Look again. Never hangs and never raises for what the machine does: it says so in the inventory."""

    async def close(self) -> None:
        """End helpers."""
