"""Claims on a device's memory: the sum of what is promised never exceeds what is there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

INSTANCE_PREFIX: Final = "instance:"


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim fits; `left_bytes` stay free for others."""

    left_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The claim does not fit; `reason` is a sentence for people."""

    reason: str


ClaimDecision = Granted | Refused


@dataclass(frozen=True, slots=True)
class Portion:
    """What one claim takes of one device: bytes, and a share of its compute or all of it."""

    memory_bytes: int
    share: float | None = None  # of the device's compute, above 0 to 1; None: not limited
    whole: bool = False  # nobody else may claim of the device


def holder_of(instance_id: UUID) -> str:
    """How a claim names the instance that holds it."""
    return f"{INSTANCE_PREFIX}{instance_id}"


def instance_in(holder: str) -> UUID | None:
    """The instance that a claim's holder names, None where it is something else."""
    if not holder.startswith(INSTANCE_PREFIX):
        return None
    try:
        return UUID(holder.removeprefix(INSTANCE_PREFIX))
    except ValueError:
        return None


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
        # Less than nothing where it was divided anew, or an error took memory out, under claims that stand.
        free = describe_bytes(max(0, left + wanted_bytes))
        return Refused(f"it needs {describe_bytes(wanted_bytes)}, {free} can be claimed")
    return Granted(left)


def decide_portion(*, device_bytes: int | None, held: Sequence[Portion], wanted: Portion) -> ClaimDecision:
    """May `wanted` be promised beside `held`? Bytes and limited shares each add up to one device at most.

    Raises ValueError when the bytes are not positive or the share is none of a device.
    """
    if wanted.share is not None and not 0 < wanted.share <= 1:
        raise ValueError("a share of a device is above 0 and at most 1")
    if any(one.whole for one in held):
        return Refused("another claim has the whole device")
    if wanted.whole and held:
        return Refused("the whole device is asked for, and others have claims on it")
    decision = decide_claim(
        device_bytes=device_bytes,
        claimed_bytes=(one.memory_bytes for one in held),
        wanted_bytes=wanted.memory_bytes,
    )
    if isinstance(decision, Granted) and wanted.share is not None:
        # In thousandths: ten tenths are one device, whatever floats add up to.
        taken = sum(_thousandths(one.share) for one in held)
        if taken + _thousandths(wanted.share) > 1000:
            return Refused(
                f"it needs {wanted.share:.0%} of the device's compute, {max(0, 1 - taken / 1000):.0%} can be claimed"
            )
    return decision


def _thousandths(share: float | None) -> int:
    return 0 if share is None else max(1, round(share * 1000))


def describe_bytes(count: int) -> str:
    """A size as people read it, in binary units: 1.5 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
