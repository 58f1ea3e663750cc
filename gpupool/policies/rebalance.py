"""Which instances had better be elsewhere: proposals for people, carried out by nobody. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from gpupool.policies.placement import ClaimView, DeviceView, Fits, Need, judge

HIGH_SHARE: Final = 0.9
"""Of a device's memory in use, as it was last measured: from here on it is under pressure."""
TARGET_SHARE: Final = 0.8
"""Of a target's, after the move: a move must not make the next one."""


@dataclass(frozen=True, slots=True)
class Move:
    """One instance from one device to another. Shares are of measured use, and as expected after it."""

    instance_id: UUID
    from_device: UUID
    to_device: UUID
    memory_bytes: int
    reason: str
    from_share: float | None
    to_share: float


def propose(devices: Sequence[DeviceView], needs: Mapping[UUID, Need], *, most: int = 20) -> list[Move]:
    """At most `most` moves, the most pressing first. Instances over several devices are left where they are."""
    current = {device.device_id: device for device in devices}
    moves: list[Move] = []
    for source_id, reason in _pressed(devices):
        for claim in _movable(current[source_id], needs):
            if len(moves) == most:
                return moves
            if not _still_pressed(current[source_id]):
                break
            target = _target(current, source_id, needs[_holder(claim)])
            if target is None:
                continue
            moves.append(_move(current[source_id], target, claim, reason))
            _apply(current, source_id, target.device_id, claim)
    return moves


def _pressed(devices: Sequence[DeviceView]) -> list[tuple[UUID, str]]:
    found = []
    for device in devices:
        share = _share(device)
        if device.kind == "gpu" and device.node is not None and device.node.maintenance and device.claims:
            found.append((2.0, device.device_id, f"Node {device.node.name} is in maintenance."))
        elif device.kind == "gpu" and share is not None and share >= HIGH_SHARE:
            found.append((share, device.device_id, f"{share:.0%} of the memory of {device.label} is in use."))
    return [(device_id, reason) for _, device_id, reason in sorted(found, key=lambda one: (-one[0], one[1]))]


def _still_pressed(device: DeviceView) -> bool:
    share = _share(device)
    return (device.node is not None and device.node.maintenance) or share is None or share >= HIGH_SHARE


def _movable(device: DeviceView, needs: Mapping[UUID, Need]) -> Iterator[ClaimView]:
    """The least important first, of these the smallest."""
    for claim in sorted(device.claims, key=lambda one: (one.priority, one.memory_bytes)):
        need = None if claim.holder is None else needs.get(claim.holder)
        if need is not None and need.devices == 1 and not claim.leaving:
            yield claim


def _target(current: Mapping[UUID, DeviceView], source_id: UUID, need: Need) -> DeviceView | None:
    best: tuple[float, DeviceView] | None = None
    for device in current.values():
        if device.device_id == source_id:
            continue
        verdict = judge(device, need)
        after = _share(device, plus=need.memory_bytes)
        if not isinstance(verdict, Fits) or after is None or after > TARGET_SHARE:
            continue
        if best is None or verdict.score > best[0]:
            best = (verdict.score, device)
    return None if best is None else best[1]


def _move(source: DeviceView, target: DeviceView, claim: ClaimView, reason: str) -> Move:
    return Move(
        instance_id=_holder(claim),
        from_device=source.device_id,
        to_device=target.device_id,
        memory_bytes=claim.memory_bytes,
        reason=reason,
        from_share=_share(source, plus=-claim.memory_bytes),
        to_share=_share(target, plus=claim.memory_bytes) or 0.0,
    )


def _apply(current: dict[UUID, DeviceView], source_id: UUID, target_id: UUID, claim: ClaimView) -> None:
    source, target = current[source_id], current[target_id]
    current[source_id] = replace(
        source,
        claims=tuple(one for one in source.claims if one != claim),
        claimed_bytes=source.claimed_bytes - claim.memory_bytes,
        used_bytes=None if source.used_bytes is None else max(0, source.used_bytes - claim.memory_bytes),
    )
    current[target_id] = replace(
        target,
        claims=(*target.claims, claim),
        claimed_bytes=target.claimed_bytes + claim.memory_bytes,
        used_bytes=None if target.used_bytes is None else target.used_bytes + claim.memory_bytes,
    )


def _holder(claim: ClaimView) -> UUID:
    assert claim.holder is not None  # others are never movable
    return claim.holder


def _share(device: DeviceView, *, plus: int = 0) -> float | None:
    """Of what is measured; None where that, or the size, is not known."""
    if not device.memory_bytes or device.used_bytes is None:
        return None
    return max(0, device.used_bytes + plus) / device.memory_bytes
