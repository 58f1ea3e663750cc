"""Where an instance can run: filters that give reasons, then the device with the most free bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.policies.lease import Granted, Refused, decide_claim


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device as the decision needs it; sizes in bytes, None where unknown."""

    device_id: UUID
    label: str
    kind: str
    memory_bytes: int | None
    claimed_bytes: int
    present: bool
    health: str
    node_reachable: bool
    node_cordoned: bool


@dataclass(frozen=True, slots=True)
class Need:
    """What an instance asks of a device."""

    kind: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Fits:
    """A device that can take the instance; `left_bytes` stay claimable after it."""

    device_id: UUID
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Unfit:
    """A device that cannot, and why, in a sentence's end."""

    device_id: UUID
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Placed:
    """The choice, and why the others were not it."""

    device_id: UUID
    unfit: tuple[Unfit, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No device can take it; `reason` says it in a sentence."""

    reason: str
    unfit: tuple[Unfit, ...]


Placement = Placed | Unplaced


def judge(device: DeviceView, need: Need) -> Fits | Unfit:
    """Every filter on one device, the first reason wins."""
    reason = _why_not(device, need)
    if reason is not None:
        return Unfit(device.device_id, device.label, reason)
    decision = decide_claim(
        device_bytes=device.memory_bytes, claimed_bytes=(device.claimed_bytes,), wanted_bytes=need.memory_bytes
    )
    match decision:
        case Granted(left_bytes=left):
            return Fits(device.device_id, left)
        case Refused(reason=text):
            return Unfit(device.device_id, device.label, text)


def place(devices: Sequence[DeviceView], need: Need) -> Placement:
    """The device with the most claimable bytes left; ties go to the smaller id, so that the choice is stable."""
    if need.memory_bytes <= 0:
        return Unplaced("Its version does not say how many bytes one instance claims.", ())
    verdicts = [judge(device, need) for device in devices]
    unfit = tuple(verdict for verdict in verdicts if isinstance(verdict, Unfit))
    fits = [verdict for verdict in verdicts if isinstance(verdict, Fits)]
    if fits:
        best = min(fits, key=lambda fit: (-fit.left_bytes, fit.device_id))
        return Placed(best.device_id, unfit)
    return Unplaced(_explain(unfit, need), unfit)


def _why_not(device: DeviceView, need: Need) -> str | None:
    if device.kind != need.kind:
        return f"it is a {device.kind}, not a {need.kind}"
    if not device.present:
        return "it is no longer there"
    if not device.node_reachable:
        return "its node is not reachable"
    if device.node_cordoned:
        return "its node is cordoned"
    if device.health == "failed":
        return "it has failed"
    if device.health != "ok":
        return "nobody can say how it is now"
    return None


def _explain(unfit: Sequence[Unfit], need: Need) -> str:
    if not unfit:
        return "No device is known yet: no node agent has connected."
    of_kind = [verdict for verdict in unfit if not verdict.reason.startswith("it is a ")]
    if not of_kind:
        return f"There is no {need.kind} among the {len(unfit)} known devices."
    shown = "; ".join(f"{verdict.label}: {verdict.reason}" for verdict in of_kind[:3])
    more = f"; and {len(of_kind) - 3} more" if len(of_kind) > 3 else ""
    return f"No device can take it. {shown}{more}."
