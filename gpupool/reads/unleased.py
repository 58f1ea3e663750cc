"""What runs on devices without a claim, by the nodes' own reports. It is reported, never ended: it may be anybody's."""

from dataclasses import dataclass
from uuid import UUID

from django.db.models import Exists, OuterRef

from gpupool.models import Device, Lease, NodeState


@dataclass(frozen=True, slots=True)
class Unleased:
    """Processes on a device that nobody has a claim on. Sizes in bytes, None where the device does not say."""

    device_id: UUID
    node: str
    device: str
    processes: tuple[tuple[int, str, int | None], ...]  # pid, name, bytes of the device's memory

    def __str__(self) -> str:
        names = ", ".join(f"{name or 'a process'} ({pid})" for pid, name, _ in self.processes)
        return f"{self.node}/{self.device}: {names}"


def list_unleased() -> list[Unleased]:
    """Of every device that is there, on nodes that are heard: others say nothing of now."""
    held = Lease.objects.filter(device=OuterRef("pk"), released_at__isnull=True)
    rows = Device.objects.select_related("node").filter(~Exists(held), present=True, node__state=NodeState.ONLINE)
    return [
        Unleased(
            device_id=device.pk,
            node=device.node.name,
            device=device.stable_id,
            processes=tuple((one["pid"], one.get("name") or "", one.get("memory_bytes")) for one in device.processes),
        )
        for device in rows.exclude(processes=[]).order_by("node__name", "stable_id")
    ]
