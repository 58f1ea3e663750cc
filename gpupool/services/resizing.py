"""What a sleeping instance holds of its devices: what its process still has there; all of its claim again to wake.

The claim itself, its number and its token stay: only the portions change, and each keeps its times for the accounts.
"""

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, Instance, InstanceDesire, Lease
from gpupool.policies.lease import Portion, Refused, holder_of
from gpupool.policies.tiers import asleep_bytes
from gpupool.services.changes import Changes
from gpupool.services.claims import decide_on, lock_devices, release
from gpupool.services.instances import lock_instance
from gpupool.services.placing import portions_of
from tenants.actor import Actor
from tenants.services import record_audit


@dataclass(frozen=True, slots=True)
class NoRoom(Refused):
    """Others have what it needs: it would fit if one of them slept."""


def give_back(instance: Instance, *, actor: Actor, changes: Changes) -> None:
    """Of a locked instance that sleeps: let others claim what it has given back of its devices."""
    for lease in _own(instance):
        kept = asleep_bytes(
            claimed=lease.memory_bytes,
            used=instance.device_bytes if lease.device.kind == "gpu" else instance.memory_rss_bytes,
            has_process=instance.pid is not None,
            least=instance.host_memory_bytes if lease.device.kind == "cpu" else 0,
        )
        if kept < lease.memory_bytes:
            _change(lease, Portion(kept), reason="it sleeps", actor=actor, changes=changes)


@transaction.atomic
def claim_again(instance_id: UUID, *, actor: Actor, fence: Fence | None = None) -> Refused | None:
    """Claim what the instance needs to wake, on all of its devices or on none; None where it has it.

    A refusal is its reason to wait, and changes nothing else.
    Raises Instance.DoesNotExist, Superseded.
    """
    check_fence(fence)
    instance = Instance.objects.select_related("version__model").get(pk=instance_id)
    devices = lock_devices([lease.device_id for lease in _own(instance)])
    instance = lock_instance(instance_id)
    if instance.desire != InstanceDesire.RUNNING:
        return Refused("it is not asked to wake")
    leases = {lease.device_id: lease for lease in _own(instance)}
    missing = [
        (device, wanted)
        for device, wanted in portions_of(instance, devices, [device.pk for device in devices])
        if device.pk in leases and leases[device.pk].memory_bytes < wanted.memory_bytes
    ]
    changes = Changes()
    for device, wanted in missing:
        refused = _why_not(device, wanted, beside=leases[device.pk])
        if refused is not None:
            reason = f"It waits to wake. {device.stable_id}: {refused.reason}."
            Instance.objects.filter(pk=instance.pk).exclude(reason=reason).update(reason=reason)
            return type(refused)(reason)
    for device, wanted in missing:
        _change(leases[device.pk], wanted, reason="it wakes", actor=actor, changes=changes)
    if missing and instance.node_id is not None:
        changes.add(Section.DESIRED, instance.node_id)
    changes.publish()
    return None


def _own(instance: Instance) -> list[Lease]:
    """Its portions of the devices that it runs on; the host's memory beside them stays claimed while it sleeps."""
    rows = Lease.objects.filter(
        holder=holder_of(instance.pk), released_at__isnull=True, device__kind=instance.version.device_kind
    )
    return list(rows.select_related("device").order_by("pk"))


def _why_not(device: Device, wanted: Portion, *, beside: Lease) -> Refused | None:
    if device.isolated_at is not None:
        return Refused(f"it was taken out of service: {device.isolated_reason.rstrip('.')}")
    if not device.present:
        return Refused("it is not there now")
    decision = decide_on(device, wanted, beside=beside)
    if not isinstance(decision, Refused):
        return None
    never = wanted.memory_bytes > (device.memory_bytes or 0)
    return decision if never else NoRoom(decision.reason)


def _change(lease: Lease, portion: Portion, *, reason: str, actor: Actor, changes: Changes) -> None:
    """A new row in place of the old one, of the same claim."""
    release(lease, actor=actor, reason=reason, changes=changes)
    following = Lease.objects.create(
        device=lease.device,
        holder=lease.holder,
        tenant_id=lease.tenant_id,
        memory_bytes=portion.memory_bytes,
        share=portion.share,
        whole=portion.whole,
        lease_id=lease.lease_id,
        fencing_token=lease.fencing_token,
        boot_id=lease.boot_id,
    )
    record_audit(
        "lease.resized",
        subject=following,
        actor=actor,
        tenant_id=lease.tenant_id,
        before={"memory_bytes": lease.memory_bytes},
        after={"memory_bytes": portion.memory_bytes, "holder": lease.holder, "reason": reason},
    )
