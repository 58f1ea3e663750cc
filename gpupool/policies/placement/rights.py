"""What tenants may hold: quotas that stop them, reservations that others leave alone or borrow from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.policies.lease import describe_bytes
from gpupool.policies.placement.views import DeviceView, Need, QuotaView, ReservationView


def matches(device: DeviceView, gpu_tag: str) -> bool:
    """Whether a reservation with this tag is about the device."""
    return device.kind == "gpu" and device.allocatable and (not gpu_tag or gpu_tag in device.tags)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a reservation stands: what of it its tenant does not hold yet, and what lies free of its devices."""

    reservation: ReservationView
    unmet_devices: int
    unmet_bytes: int
    untouched: frozenset[UUID]
    free_bytes: int

    @property
    def spare_devices(self) -> int:
        """Untouched ones beyond what is still due to the tenant."""
        return len(self.untouched) - self.unmet_devices

    @property
    def unmet(self) -> bool:
        return self.unmet_devices > 0 or self.unmet_bytes > 0


def standing(reservation: ReservationView, devices: Iterable[DeviceView]) -> Standing:
    """What the devices' claims make of it."""
    held, held_bytes, free = 0, 0, 0
    untouched = []
    for device in devices:
        if not matches(device, reservation.gpu_tag):
            continue
        own = sum(claim.memory_bytes for claim in device.claims if claim.tenant_id == reservation.tenant_id)
        held += own > 0
        held_bytes += own
        usable = device.present and device.health == "ok" and device.node_reachable and not device.isolated
        if usable and device.memory_bytes is not None:
            free += max(0, device.memory_bytes - device.claimed_bytes)
            if device.untouched:
                untouched.append(device.device_id)
    return Standing(
        reservation,
        max(0, reservation.devices - held),
        max(0, reservation.memory_bytes - held_bytes),
        frozenset(untouched),
        free,
    )


def kept_for_others(device: DeviceView, need: Need, standings: Sequence[Standing]) -> str | None:
    """Why the device is not for this need's tenant: it is kept for another and not lent."""
    for one in standings:
        kept = one.reservation
        if kept.lendable or kept.tenant_id == need.tenant_id or not matches(device, kept.gpu_tag):
            continue
        if device.device_id in one.untouched and one.spare_devices < 1 and one.unmet_devices:
            return f"it is kept for the tenant {kept.tenant}, who does not lend"
        if one.unmet_bytes and one.free_bytes - need.memory_bytes * need.devices < one.unmet_bytes:
            return f"{describe_bytes(one.unmet_bytes)} are kept for the tenant {kept.tenant}, who does not lend"
    return None


def lenders(devices: Iterable[DeviceView], need: Need, standings: Sequence[Standing]) -> tuple[str, ...]:
    """Tenants whose reserved devices these are while they do not need them."""
    chosen = list(devices)
    names = []
    for one in standings:
        kept = one.reservation
        if kept.tenant_id == need.tenant_id or not one.unmet:
            continue
        taken = sum(device.device_id in one.untouched for device in chosen)
        asked = sum(need.memory_bytes for device in chosen if matches(device, kept.gpu_tag))
        by_devices = one.unmet_devices > 0 and taken > max(0, one.spare_devices)
        by_bytes = one.unmet_bytes > 0 and asked > 0 and one.free_bytes - asked < one.unmet_bytes
        if by_devices or by_bytes:
            names.append(kept.tenant)
    return tuple(names)


def is_reserved(device: DeviceView, need: Need, standings: Sequence[Standing]) -> bool:
    """Whether taking it would be borrowing: such devices come last."""
    return any(
        device.device_id in one.untouched
        and one.unmet_devices > 0
        and one.spare_devices < 1
        and one.reservation.tenant_id != need.tenant_id
        for one in standings
    )


def over_quota(device: DeviceView, need: Need, quotas: Sequence[QuotaView]) -> str | None:
    """Why one more device is one too many."""
    for quota in quotas:
        if quota.metric != "gpus" or device.device_id in quota.held_devices:
            continue
        if len(quota.held_devices) >= quota.amount:
            return f"its tenant may hold {_gpus(quota.amount)} and holds {len(quota.held_devices)}"
    return None


def over_quota_together(device_ids: Sequence[UUID], need: Need, quotas: Sequence[QuotaView]) -> str | None:
    """The same of all devices of an instance, and of their memory; a sentence."""
    if need.kind != "gpu":
        return None
    for quota in quotas:
        if quota.metric == "gpus":
            then = len(quota.held_devices.union(device_ids))
            if then > quota.amount:
                return (
                    f"Its tenant may hold {_gpus(quota.amount)}, and would hold {then}: raise the limit, or stop some."
                )
        elif quota.metric == "gpu_memory":
            then = quota.held_bytes + need.memory_bytes * need.devices
            if then > quota.amount:
                return (
                    f"Its tenant may hold {describe_bytes(quota.amount)} of GPU memory, and would hold "
                    f"{describe_bytes(then)}: raise the limit, or stop something."
                )
    return None


def is_borrowing(claim_tenant: UUID | None, device: DeviceView, standings: Mapping[UUID, Sequence[Standing]]) -> bool:
    """Whether who holds a claim on the device does so beyond what is reserved for them."""
    if claim_tenant is None:
        return True
    own = [one for one in standings.get(claim_tenant, ()) if matches(device, one.reservation.gpu_tag)]
    return not any(one.unmet or one.reservation.devices or one.reservation.memory_bytes for one in own)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
