"""The second channel of a probe: what an instance's devices say while its engine answers by HTTP. Pure.

An engine may answer its health endpoint within its three seconds while the device under it has failed, is too hot, or
runs slowed down to save itself: requests would crawl. Unknown readings say nothing.
"""

from dataclasses import dataclass
from typing import Final

from gpupool.policies.lease import describe_bytes

TOO_HOT_CELSIUS: Final = 95.0
"""Where the device names no limit of its own: above what any vendor lets a GPU run at for long."""

_SLOWED: Final = "hardware_thermal"
"""The reason for a slow clock that means trouble. Caps of power, and the driver's own care below the limit, are none:
devices at work have them all day."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Temperature, use and memory of one device, as it was told last; None where it was not."""

    label: str
    present: bool = True
    health: str = "ok"
    temperature_celsius: float | None = None
    limit_celsius: float | None = None
    utilization: float | None = None  # 0 to 1
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    throttled_by: str = ""


def trouble(reading: DeviceReading) -> str:
    """Why nothing should be served from the device now, in a sentence; empty where nothing speaks against it."""
    if not reading.present:
        return f"{reading.label} is gone from its node."
    if reading.health == "failed":
        return f"{reading.label} has failed."
    limit = TOO_HOT_CELSIUS if reading.limit_celsius is None else reading.limit_celsius
    if reading.temperature_celsius is not None and reading.temperature_celsius >= limit:
        return f"{reading.label} is too hot, with at most {limit:g} °C allowed: {described(reading)}."
    if _SLOWED in reading.throttled_by.lower().replace(" ", "_"):
        return f"{reading.label} is slowed down to save itself ({reading.throttled_by}): {described(reading)}."
    return ""


def described(reading: DeviceReading) -> str:
    """The three readings in words, for people: temperature, use, memory."""
    parts = [
        "" if reading.temperature_celsius is None else f"{reading.temperature_celsius:g} °C",
        "" if reading.utilization is None else f"{reading.utilization:.0%} in use",
        _memory(reading.memory_used_bytes, reading.memory_bytes),
    ]
    return ", ".join(part for part in parts if part) or "nothing known"


def _memory(used: int | None, size: int | None) -> str:
    if used is None:
        return ""
    return f"{describe_bytes(used)} used" if not size else f"{describe_bytes(used)} of {describe_bytes(size)} used"
