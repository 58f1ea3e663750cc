"""Claims on devices, inside the transaction of the service that makes or ends them."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import Max
from django.utils import timezone

from core.epochs import Section
from gpupool.leases.fencing import Superseded
from gpupool.leases.tokens import known_base, note_revision
from gpupool.models import Device, Instance, Lease, LeaseStatus
from gpupool.policies.lease import ClaimDecision, Portion, Refused, decide_portion, holder_of
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit


@dataclass(frozen=True, slots=True)
class ClaimNumbers:
    """How a claim is known: the same on every device of it. A later claim always has higher ones."""

    lease_id: int
    fencing_token: int


def lock_devices(device_ids: Sequence[UUID]) -> list[Device]:
    """The devices in the order asked for, their rows locked in one order, so that no two claims block each other.

    Not by their keys: a lease that is written meanwhile points at them, and its writer may have what we wait for.
    Raises Device.DoesNotExist.
    """
    rows = Device.objects.select_for_update(of=("self",), no_key=True).select_related("node").filter(pk__in=device_ids)
    found = {device.pk: device for device in rows.order_by("pk")}
    if missing := [pk for pk in device_ids if pk not in found]:
        raise Device.DoesNotExist(f"no device {missing[0]}")
    return [found[pk] for pk in device_ids]


def decide_on(device: Device, wanted: Portion, *, beside: Lease | None = None) -> ClaimDecision:
    """By what is claimed of a locked device now; `beside`: a lease in whose place the portion would be."""
    active = Lease.objects.filter(device=device, released_at__isnull=True)
    if beside is not None:
        active = active.exclude(pk=beside.pk)
    held = [Portion(one.memory_bytes, one.share, one.whole) for one in active]
    return decide_portion(device_bytes=device.memory_bytes, held=held, wanted=wanted)


def claim_portions(
    instance: Instance, portions: Sequence[tuple[Device, Portion]], *, numbers: ClaimNumbers | None, actor: Actor
) -> list[Lease] | Refused:
    """A lease on every device or on none. The caller holds the devices' locks.

    The sum of what is claimed is compared here too, whatever the lease store said before: two stores by
    mistake, or one that came back from a backup, cannot promise a device twice. `numbers` are the store's;
    without them they are counted here, and the leader takes the claim into the store later.
    """
    for device, portion in portions:
        decision = decide_on(device, portion)
        if isinstance(decision, Refused):
            return Refused(f"{device.stable_id}: {decision.reason}.")
    numbers = numbers or _next_numbers()
    _check_newest([device for device, _ in portions], numbers)
    return [_lease(instance, device, portion, numbers, actor) for device, portion in portions]


def _lease(instance: Instance, device: Device, portion: Portion, numbers: ClaimNumbers, actor: Actor) -> Lease:
    lease = Lease.objects.create(
        device=device,
        holder=holder_of(instance.pk),
        tenant_id=instance.owner_id,
        memory_bytes=portion.memory_bytes,
        share=portion.share,
        whole=portion.whole,
        lease_id=numbers.lease_id,
        fencing_token=numbers.fencing_token,
        boot_id=device.node.boot_id,
    )
    record_audit(
        "lease.claimed",
        subject=lease,
        actor=actor,
        tenant_id=lease.tenant_id,
        after={"device": device.stable_id, "holder": lease.holder, "memory_bytes": portion.memory_bytes},
    )
    return lease


def release_claims(instance: Instance, *, actor: Actor, reason: str, changes: Changes) -> int:
    """End every claim of the instance; returns how many there were. Nothing happens the second time."""
    leases = list(Lease.objects.select_for_update().filter(holder=holder_of(instance.pk), released_at__isnull=True))
    for lease in leases:
        release(lease, actor=actor, reason=reason, changes=changes)
    return len(leases)


def release(lease: Lease, *, actor: Actor, reason: str, changes: Changes) -> None:
    """End one claim; the device's bytes can be claimed again once the transaction commits."""
    lease.status, lease.released_at = LeaseStatus.FREE, timezone.now()
    lease.save(update_fields=["status", "released_at"])
    record_audit(
        "lease.released",
        subject=lease,
        actor=actor,
        tenant_id=lease.tenant_id,
        before={"holder": lease.holder, "memory_bytes": lease.memory_bytes},
        after={"reason": reason},
    )
    changes.add(Section.POOL, lease.device_id)


def _check_newest(devices: Sequence[Device], numbers: ClaimNumbers) -> None:
    """A token at or below an earlier one of a device means that the lease store has gone back. Raises Superseded.

    Whoever leads then gives up, and the next one raises the base of all tokens.
    """
    newest = Lease.objects.filter(device__in=devices).aggregate(newest=Max("fencing_token"))["newest"]
    if newest is not None and numbers.fencing_token <= newest:
        raise Superseded(f"claim {numbers.fencing_token} is not later than {newest}: the lease store has gone back")
    note_revision(numbers.fencing_token)


def _next_numbers() -> ClaimNumbers:
    """The next revision of the PostgreSQL store, from the one row whose lock orders all of its writes.

    Raises RuntimeError where another store counts.
    """
    if settings.GATEHOUSE.etcd_url:
        raise RuntimeError("with ETCD_URL set only the leader claims: its numbers come from etcd")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO gpupool_storerevision AS counter (singleton, revision, compacted_revision, next_lease_id) "
            "VALUES (true, 1, 0, 1) ON CONFLICT (singleton) DO UPDATE SET revision = counter.revision + 1 "
            "RETURNING revision"
        )
        token = known_base() + int(cursor.fetchone()[0])
    return ClaimNumbers(lease_id=token, fencing_token=token)
