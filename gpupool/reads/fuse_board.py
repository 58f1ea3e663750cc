"""Who uses how much of a node's devices: the pool's instances against their claims, and everybody else."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Sum

from gpupool.models import Device, Instance, InstanceState, Lease
from gpupool.policies.lease import INSTANCE_PREFIX, holder_of


@dataclass(frozen=True, slots=True)
class Fuse:
    """One process on one device. Sizes in bytes; None where nobody says, `claimed_bytes` for who has no claim."""

    pid: int
    device: str
    index: int | None  # of a GPU, as the wall names it; None: it has none, or is the host's processor
    name: str
    instance_id: UUID | None
    current_bytes: int | None
    peak_bytes: int | None  # of the whole instance
    claimed_bytes: int | None  # on this device
    guard_state: str  # of the OOM guard; empty: nothing to say

    @property
    def share(self) -> float | None:
        """Of its claim, 0 to 1 and beyond."""
        if self.current_bytes is None or not self.claimed_bytes:
            return None
        return self.current_bytes / self.claimed_bytes


def read_fuse_board(node_id: UUID) -> list[Fuse]:
    """Every process that the node's devices list, the fullest against its claim first."""
    devices = list(Device.objects.filter(node_id=node_id, present=True).order_by("kind", "index", "pk"))
    running = Instance.objects.filter(node_id=node_id).exclude(state=InstanceState.STOPPED)
    instances = {holder_of(row.pk): row for row in running.select_related("version__model")}
    claims: dict[tuple[UUID, str], int] = {
        (device_id, holder): total
        for device_id, holder, total in Lease.objects.filter(device__in=devices, released_at__isnull=True)
        .values_list("device_id", "holder")
        .annotate(total=Sum("memory_bytes"))
    }
    rows = [_fuse(device, process, instances, claims) for device in devices for process in device.processes]
    return sorted(rows, key=lambda row: (-(row.share or 0.0), row.device, row.pid))


def _fuse(
    device: Device, process: dict[str, Any], instances: dict[str, Instance], claims: dict[tuple[UUID, str], int]
) -> Fuse:
    holder = f"{INSTANCE_PREFIX}{process.get('instance_id')}"
    instance = instances.get(holder)
    return Fuse(
        pid=int(process["pid"]),
        device=device.traceable_id or device.stable_id,
        index=None if device.kind == "cpu" else device.index,
        name=str(process.get("name", "")) if instance is None else instance.version.model.name,
        instance_id=None if instance is None else instance.pk,
        current_bytes=process.get("memory_bytes"),
        peak_bytes=None if instance is None else instance.device_peak_bytes,
        claimed_bytes=claims.get((device.pk, holder)),
        guard_state="" if instance is None else instance.guard_state,
    )
