"""Claims on a device's memory: the sum of what is promised never exceeds what is there."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim fits; `left_bytes` stay free for others."""

    left_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim does not fit; `reason` is a sentence for people."""

    reason: str


ClaimDecision = Granted | Refused


def decide_claim(*, device_bytes: int | None, claimed_bytes: Iterable[int], wanted_bytes: int) -> ClaimDecision:
    """May `wanted_bytes` be promised on a device of `device_bytes` where `claimed_bytes` are?

    Unknown is not zero: nothing is promised on a device that does not say its size.
    Raises ValueError when a claim is not positive.
    """
    if wanted_bytes <= 0:
        raise ValueError("a claim needs a positive number of bytes")
    if device_bytes is None:
        return Refused("the device does not say how much memory it has")
    left = device_bytes - sum(claimed_bytes) - wanted_bytes
    if left < 0:
        return Refused(f"it needs {describe_bytes(wanted_bytes)}, {describe_bytes(left + wanted_bytes)} can be claimed")
    return Granted(left)


def describe_bytes(count: int) -> str:
    """A size as people read it, in binary units: 1.5 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
