"""What tenants may hold: quotas that stop them, reservations that others leave alone or borrow from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from gpupool.policies.lease import describe_bytes
from gpupool.policies.placement.views import ClaimView, DeviceView, Need, QuotaView, ReservationView


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
    beyond: bool = False  # its tenant holds more than is reserved, not counting what is leaving

    def covers(self, need: Need) -> bool:
        """Whether all of the need is what its tenant has a right to and does not hold yet."""
        kept = self.reservation
        if need.kind != "gpu" or kept.tenant_id != need.tenant_id or kept.gpu_tag not in ("", need.gpu_tag):
            return False
        return self.unmet_devices >= need.devices or self.unmet_bytes >= need.memory_bytes * need.devices

    @property
    def spare_devices(self) -> int:
        """Untouched ones beyond what is still due to the tenant."""
        return len(self.untouched) - self.unmet_devices

    @property
    def unmet(self) -> bool:
        return self.unmet_devices > 0 or self.unmet_bytes > 0


def standings(reservations: Sequence[ReservationView], devices: Sequence[DeviceView]) -> list[Standing]:
    """What the devices' claims make of each. Devices are looked at once for each tag, not for each reservation."""
    areas: dict[str, _Area] = {}
    found = []
    for one in reservations:
        if one.gpu_tag not in areas:
            areas[one.gpu_tag] = _area(one.gpu_tag, devices)
        area = areas[one.gpu_tag]
        held, staying = area.held.get(one.tenant_id, (0, 0)), area.staying.get(one.tenant_id, (0, 0))
        found.append(
            Standing(
                one,
                max(0, one.devices - held[0]),
                max(0, one.memory_bytes - held[1]),
                area.untouched,
                area.free_bytes,
                beyond=staying[0] > one.devices and staying[1] > one.memory_bytes,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Area:
    """Devices with a tag: what lies free of them, and who holds how many of them and of their bytes."""

    untouched: frozenset[UUID]
    free_bytes: int
    held: Mapping[UUID, tuple[int, int]]
    staying: Mapping[UUID, tuple[int, int]]  # without what is leaving


def _area(gpu_tag: str, devices: Iterable[DeviceView]) -> _Area:
    untouched, free = [], 0
    held: dict[UUID, tuple[int, int]] = {}
    staying: dict[UUID, tuple[int, int]] = {}
    for device in devices:
        if not matches(device, gpu_tag):
            continue
        if device.claims:
            _count(device.claims, held)
            _count([claim for claim in device.claims if not claim.leaving], staying)
        if device.memory_bytes is not None and _is_usable(device):
            free += max(0, device.memory_bytes - device.claimed_bytes)
            if device.untouched:
                untouched.append(device.device_id)
    return _Area(frozenset(untouched), free, held, staying)


def _count(claims: Iterable[ClaimView], held: dict[UUID, tuple[int, int]]) -> None:
    """Add one device's claims, by tenant."""
    sizes: dict[UUID, int] = {}
    for claim in claims:
        if claim.tenant_id is not None:
            sizes[claim.tenant_id] = sizes.get(claim.tenant_id, 0) + claim.memory_bytes
    for tenant, size in sizes.items():
        devices, before = held.get(tenant, (0, 0))
        held[tenant] = (devices + 1, before + size)


def _is_usable(device: DeviceView) -> bool:
    """Whether something new could be placed there, so that it counts as spare."""
    served = device.present and device.health == "ok" and not device.isolated
    resting = device.node_cordoned or (device.node is not None and device.node.maintenance)
    return served and device.node_reachable and not resting


@dataclass(frozen=True, slots=True)
class Kept:
    """A reservation of another tenant that is not lent; `spare` devices are left when all such have theirs."""

    standing: Standing
    spare: int


def kept_of(need: Need, standings: Sequence[Standing]) -> tuple[Kept, ...]:
    """What is kept from this need. Several that wait for the same devices are due one each."""
    closed = [one for one in standings if not one.reservation.lendable and one.reservation.tenant_id != need.tenant_id]
    return tuple(
        Kept(
            one,
            len(one.untouched) - sum(other.unmet_devices for other in closed if other.untouched <= one.untouched),
        )
        for one in closed
        if one.unmet
    )


def kept_for_others(device: DeviceView, need: Need, kept_ones: Sequence[Kept]) -> str | None:
    """Why the device is not for this need's tenant: it is kept for another and not lent."""
    for one in kept_ones:
        standing_of, kept = one.standing, one.standing.reservation
        if not matches(device, kept.gpu_tag):
            continue
        if device.device_id in standing_of.untouched and one.spare < need.devices and standing_of.unmet_devices:
            return f"it is kept for the tenant {kept.tenant}, who does not lend"
        due = standing_of.unmet_bytes
        if due and standing_of.free_bytes - need.memory_bytes * need.devices < due:
            return f"{describe_bytes(due)} are kept for the tenant {kept.tenant}, who does not lend"
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


def over_quota(device: DeviceView, quotas: Sequence[QuotaView]) -> str | None:
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
    return all(one.beyond for one in own)


def _gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
