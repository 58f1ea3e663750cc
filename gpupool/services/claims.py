"""Claims on devices, inside the transaction of the service that makes or ends them."""

from dataclasses import dataclass

from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from core.epochs import Section
from gpupool.models import Device, Instance, Lease, LeaseStatus
from gpupool.policies.lease import ClaimDecision, Granted, decide_claim
from gpupool.services.changes import Changes
from tenants.actor import Actor
from tenants.services import record_audit


@dataclass(frozen=True, slots=True)
class _Numbers:
    lease_id: int
    revision: int


def instance_holder(instance: Instance) -> str:
    """How a lease names the instance that holds it."""
    return f"instance:{instance.pk}"


def claim_memory(device: Device, instance: Instance, *, memory_bytes: int, actor: Actor) -> Lease | ClaimDecision:
    """A lease of `memory_bytes` on `device`, or the refusal. The caller holds the device row's lock.

    The lease's fencing token is the store's revision at the claim: a later claim always has a higher one.
    """
    active = Lease.objects.filter(device=device, released_at__isnull=True)
    claimed = active.aggregate(total=Sum("memory_bytes"))["total"] or 0
    decision = decide_claim(device_bytes=device.memory_bytes, claimed_bytes=(claimed,), wanted_bytes=memory_bytes)
    if not isinstance(decision, Granted):
        return decision
    numbers = _next_numbers()
    lease = Lease.objects.create(
        device=device,
        holder=instance_holder(instance),
        tenant_id=instance.version.model.tenant_id,
        memory_bytes=memory_bytes,
        lease_id=numbers.lease_id,
        fencing_token=numbers.revision,
        boot_id=device.node.boot_id,
    )
    record_audit(
        "lease.claimed",
        subject=lease,
        actor=actor,
        tenant_id=lease.tenant_id,
        after={"device": device.stable_id, "holder": lease.holder, "memory_bytes": memory_bytes},
    )
    return lease


def release_claims(instance: Instance, *, actor: Actor, reason: str, changes: Changes) -> int:
    """End every claim of the instance; returns how many there were. Nothing happens the second time."""
    leases = list(Lease.objects.select_for_update().filter(holder=instance_holder(instance), released_at__isnull=True))
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


def _next_numbers() -> _Numbers:
    """The store's next revision and lease id, from the one row whose lock orders all of its writes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO gpupool_storerevision AS counter (singleton, revision, compacted_revision, next_lease_id) "
            "VALUES (true, 1, 0, 2) ON CONFLICT (singleton) DO UPDATE "
            "SET revision = counter.revision + 1, next_lease_id = counter.next_lease_id + 1 "
            "RETURNING revision, next_lease_id - 1"
        )
        revision, lease_id = cursor.fetchone()
    return _Numbers(lease_id=int(lease_id), revision=int(revision))
