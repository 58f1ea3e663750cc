"""Writes the history of the devices' memory, and forgets it."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import connection, transaction

from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, DeviceMinute, MemoryFrame
from gpupool.policies.memory_history import Sample

FRAMES_KEPT: Final = timedelta(minutes=18)
"""A quarter of an hour, and the keyframe before it: a minute of frames, or more where reading takes long."""
MINUTES_KEPT: Final = timedelta(hours=25)

_FORGET: Final = "UPDATE gpupool_deviceminute SET parts = parts - %s WHERE parts ? %s"


@transaction.atomic
def record_frame(at: datetime, payload: bytes, *, whole: bool, fence: Fence | None) -> None:
    """One frame; those that are too old go. Raises Superseded."""
    check_fence(fence)
    MemoryFrame.objects.bulk_create([MemoryFrame(at=at, whole=whole, payload=payload)], ignore_conflicts=True)
    MemoryFrame.objects.filter(at__lt=at - FRAMES_KEPT).delete()


@transaction.atomic
def record_minute(minute: datetime, samples: Iterable[Sample], *, fence: Fence | None) -> int:
    """One sample of each device, once a minute whoever asks; those that are too old go. Raises Superseded."""
    check_fence(fence)
    known = set(Device.objects.values_list("pk", flat=True))  # a simulated one may be gone since the tree was read
    rows = [
        DeviceMinute(device_id=pk, minute=minute, size_mib=one.size_mib, parts=one.parts)
        for one in samples
        if (pk := UUID(one.device_id)) in known
    ]
    DeviceMinute.objects.bulk_create(rows, ignore_conflicts=True, batch_size=1000)
    DeviceMinute.objects.filter(minute__lt=minute - MINUTES_KEPT).delete()
    return len(rows)


def forget_tenant(tenant_id: UUID) -> None:
    """Frames have names of tenants and models: all of them go, a quarter of an hour. Minutes have its id alone."""
    MemoryFrame.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, [str(tenant_id), str(tenant_id)])
