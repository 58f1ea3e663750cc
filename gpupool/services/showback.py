"""Tells tenants' services how long instances held their devices; those share it out."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import Q

from gpupool.models import Instance, Lease
from gpupool.policies.lease import INSTANCE_PREFIX
from tenants.services.showback import HOUR, InstanceTime, last_reported_hour, report_gpu_seconds

SETTLING: Final = timedelta(hours=2)
"""How long after its end an hour is reported again: rows of requests that ended in it may still be under way."""

LOOK_BACK: Final = timedelta(days=31)
"""Furthest back that hours which nobody reported (no worker ran) are made up for."""


def report_instance_hours(*, now: datetime) -> int:
    """Report the running hour and those before it that may have changed; returns how many shares. Safe to run twice.

    What counts is how long an instance held its claims: from the claim to its release. Until it was first ready
    that is warm-up. Attached engines hold no claim: nobody knows what they run on, and they are not counted.
    """
    running = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    last = last_reported_hour()
    begin = max(min(last or running - LOOK_BACK, running - SETTLING), running - LOOK_BACK)
    times = _times(begin, now)
    shares = 0
    hour = begin
    while hour <= running:
        held = [time for time in times if time.since < hour + HOUR and time.until > hour]
        if held:
            shares += report_gpu_seconds(hour, held)
        hour += HOUR
    return shares


def _times(since: datetime, now: datetime) -> list[InstanceTime]:
    """Instances that held a claim at any time since, with the whole time that they held one."""
    leases: dict[UUID, list[Lease]] = {}
    for lease in Lease.objects.filter(
        Q(released_at__isnull=True) | Q(released_at__gt=since), claimed_at__lt=now, holder__startswith=INSTANCE_PREFIX
    ).select_related("device"):
        leases.setdefault(UUID(lease.holder.removeprefix(INSTANCE_PREFIX)), []).append(lease)
    times: list[InstanceTime] = []
    for instance in Instance.objects.filter(pk__in=leases).select_related("version__model"):
        held = leases[instance.pk]
        times.append(
            InstanceTime(
                instance_id=instance.pk,
                version_id=instance.version_id,
                model=instance.version.model.name,
                owner_id=instance.owner_id,
                gpus=len({lease.device_id for lease in held if lease.device.kind == "gpu"}),
                since=min(lease.claimed_at for lease in held),
                ready_at=instance.ready_at,
                until=max(lease.released_at or now for lease in held),
            )
        )
    return times
