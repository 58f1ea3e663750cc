"""Devices taken out of the pool and given back, by people and by healing."""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from core.refusals import Conflict
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, HealingAction, Instance, InstanceState, Lease
from gpupool.models.health import OPEN_ACTIONS
from gpupool.policies.healing_world import Isolation
from gpupool.policies.lease import instance_in
from gpupool.policies.remedy import LIMIT_POWER
from gpupool.services.changes import Changes
from gpupool.services.instances import stop_locked
from tenants.actor import Actor
from tenants.services import record_audit


def take_out(
    device: Device, *, by: Isolation, reason: str, actor: Actor, changes: Changes, now: datetime | None = None
) -> None:
    """Place nothing new on a locked device until it is given back; inside the caller's transaction.

    Who has it out already keeps it, unless the new one is to be asked instead (a person before support, support before
    healing).
    """
    order = [Isolation.NOT, Isolation.HEALING, Isolation.SUPPORT, Isolation.PERSON]
    if device.isolated_at is not None and order.index(Isolation(device.isolated_by)) >= order.index(by):
        return
    before = device.isolated_by
    device.isolated_at = now or timezone.now()
    device.isolated_by, device.isolated_reason, device.isolated_boot_id = by, reason[:500], device.node.boot_id
    device.save(update_fields=["isolated_at", "isolated_by", "isolated_reason", "isolated_boot_id"])
    record_audit(
        "device.isolated",
        subject=device,
        actor=actor,
        before={"by": before},
        after={"by": by, "reason": device.isolated_reason},
    )
    changes.add(Section.POOL, device.pk)


def with_parts(device: Device) -> list[Device]:
    """A locked device and the parts that it is divided into, locked too: whole and parts are out together."""
    parts = Device.objects.select_for_update(of=("self",)).select_related("node").filter(node_id=device.node_id)
    return [device, *parts.filter(partition_of=device.stable_id).order_by("pk")]


@transaction.atomic
def isolate_device(device_id: UUID, *, reason: str, move_instances: bool, actor: Actor) -> Device:
    """A person takes a device out; with `move_instances` what runs there is stopped, and placed elsewhere.

    Healing leaves the device alone until a person gives it back. Raises Device.DoesNotExist.
    """
    device = Device.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=device_id)
    changes = Changes()
    taken = with_parts(device)
    for one in taken:
        take_out(one, by=Isolation.PERSON, reason=reason, actor=actor, changes=changes)
    if move_instances:
        holders = Lease.objects.filter(device__in=taken, released_at__isnull=True).values_list("holder", flat=True)
        ids = [instance_id for holder in holders if (instance_id := instance_in(holder)) is not None]
        rows = Instance.objects.select_for_update(of=("self",), no_key=True).select_related("version__model", "node")
        for instance in rows.filter(pk__in=ids).exclude(state=InstanceState.STOPPED).order_by("pk"):
            stop_locked(instance, reason=f"Its device was taken out: {reason}", actor=actor, changes=changes)
    changes.publish()
    return device


@transaction.atomic
def give_back_device(device_id: UUID, *, reason: str, actor: Actor, fence: Fence | None = None) -> Device:
    """The device may be placed on again. People may say so at any time but while something is done about it.

    With a fence it is healing that gives back what it took itself, and nothing else.
    Raises Device.DoesNotExist, Conflict, Superseded.
    """
    check_fence(fence)
    device = Device.objects.select_for_update(of=("self",), no_key=True).select_related("node").get(pk=device_id)
    if device.isolated_at is None or (fence is not None and device.isolated_by != Isolation.HEALING):
        return device
    open_ = HealingAction.objects.filter(device=device, state__in=OPEN_ACTIONS).exclude(action=LIMIT_POWER)
    if open_.exists():
        raise Conflict("Something is being done about this device: wait until it has ended.")
    changes = Changes()
    for one in with_parts(device) if fence is None else [device]:  # healing looks at each part itself
        if one.isolated_at is not None:
            _put_back(one, reason=reason, actor=actor, changes=changes)
    changes.publish()
    return device


def _put_back(device: Device, *, reason: str, actor: Actor, changes: Changes) -> None:
    before = {"by": device.isolated_by, "reason": device.isolated_reason}
    device.isolated_at, device.isolated_by, device.isolated_reason, device.isolated_boot_id = None, "", "", ""
    device.save(update_fields=["isolated_at", "isolated_by", "isolated_reason", "isolated_boot_id"])
    record_audit("device.given_back", subject=device, actor=actor, before=before, after={"reason": reason})
    changes.add(Section.POOL, device.pk)
