"""The devices' memory as it was: a frame of the last quarter of an hour, or a device's minutes of a day."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from gpupool.models import Device, DeviceMinute, MemoryFrame
from gpupool.policies.memory_history import RANGES, Sample, Series, series_of, shown_to
from gpupool.policies.memory_tree import MIB, MemoryTree, name_of
from gpupool.policies.memory_view import fitted, for_tenant
from gpupool.policies.memory_wire import MemoryReplay
from tenants.models import Tenant

FRAME_STANDS: Final = timedelta(minutes=1)
"""A frame says what was so long after it: then another has been recorded, or nobody knows."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The tree as it was at `at`."""

    at: datetime
    tree: MemoryTree


def read_frame(at: datetime, *, tenant: Tenant | None = None) -> Recorded | None:
    """The newest one at or before `at`, as `tenant` may see it; None where none is kept of then. Two queries."""
    key = MemoryFrame.objects.filter(at__lte=at, whole=True).order_by("-at").first()
    if key is None:
        return None
    replay, last = MemoryReplay(bytes(key.payload)), key.at
    changes = MemoryFrame.objects.filter(at__gt=key.at, at__lte=at, whole=False).order_by("at")
    for moment, payload in changes.values_list("at", "payload"):
        if replay.feed(bytes(payload)):  # not of a leader before this one, whose clock was ahead
            last = moment
    if at - last > FRAME_STANDS:
        return None
    tree = replay.tree()
    if tenant is None:
        return Recorded(last, fitted(tree))
    return Recorded(last, for_tenant(tree, str(tenant.pk), scope=f"tenant:{tenant.slug}", label=tenant.name))


@dataclass(frozen=True, slots=True)
class DeviceHistory:
    """One device's series."""

    device_id: UUID
    label: str
    size_mib: int | None
    series: Series


def read_history(device_id: UUID, span: str, *, now: datetime, tenant: Tenant | None = None) -> DeviceHistory:
    """`span` is a key of RANGES. Raises Device.DoesNotExist, also where the tenant had nothing on it. Two queries."""
    back, step = RANGES[span]
    device = Device.objects.select_related("node").only("name", "kind", "index", "memory_bytes", "node__name").get(
        pk=device_id
    )  # fmt: skip
    steps = back // step
    start = now - _within(now, step) - step * (steps - 1)
    kept = DeviceMinute.objects.filter(device=device, minute__gte=start, minute__lte=now).order_by("minute")
    key = None if tenant is None else str(tenant.pk)
    samples = [
        (minute, shown_to(key, Sample(str(device_id), size, parts)))
        for minute, size, parts in kept.values_list("minute", "size_mib", "parts")
    ]
    if tenant is not None and all(parts is None for _, parts in samples):
        raise Device.DoesNotExist
    size = None if device.memory_bytes is None else device.memory_bytes // MIB
    series = series_of(samples, start=start, step=step, steps=steps)
    return DeviceHistory(device.pk, name_of(device.node.name, device.kind, device.index, device.name), size, series)


def _within(now: datetime, step: timedelta) -> timedelta:
    """How long the present step has lasted."""
    return timedelta(seconds=now.timestamp() % step.total_seconds())
