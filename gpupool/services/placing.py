"""Handing a waiting instance to a node, with its claim on the node's devices and on the host's memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, NodeState
from gpupool.policies.instance import State
from gpupool.policies.lease import Portion, Refused, holder_of
from gpupool.policies.tiers import awake_bytes
from gpupool.services.changes import Changes
from gpupool.services.claims import ClaimNumbers, claim_portions, lock_devices
from gpupool.services.engines import why_switched_off
from gpupool.services.instances import lock_instance, move
from tenants.actor import Actor


@transaction.atomic
def claim_and_place(
    instance_id: UUID,
    *device_ids: UUID,
    actor: Actor,
    numbers: ClaimNumbers | None = None,
    fence: Fence | None = None,
) -> Lease | Refused:
    """Write the instance's claim on all these devices of one node and hand it to the node, in one transaction.

    Returns the lease on the first of them. The devices' rows are locked while their claims are summed: two
    controllers, or two instances at once, cannot both take the last bytes. A refusal leaves the instance
    waiting, with the reason. `numbers` are those of the claim that the lease store has granted.
    Raises Device.DoesNotExist, Instance.DoesNotExist, Superseded; ValueError without a device.
    """
    if not device_ids:
        raise ValueError("an instance is placed on one device at least")
    check_fence(fence)
    instance = Instance.objects.select_related("version__model").get(pk=instance_id)
    devices = lock_devices(_with_host(instance, device_ids))
    instance = lock_instance(instance_id)
    changes = Changes()
    outcome = why_not_placed(instance, devices)
    leases = outcome or claim_portions(
        instance, portions_of(instance, devices, device_ids), numbers=numbers, actor=actor
    )
    if isinstance(leases, Refused):
        if instance.state == InstanceState.REQUESTED:
            move(instance, State.REQUESTED, reason=leases.reason, actor=actor, changes=changes)
        return leases
    node, first = devices[0].node, leases[0]
    instance.node, instance.lease_id, instance.fencing_token = node, first.lease_id, first.fencing_token
    instance.host_memory_bytes = instance.version.host_memory_bytes
    instance.save(update_fields=["node", "lease_id", "fencing_token", "host_memory_bytes"])
    move(instance, State.PLACING, reason="", actor=actor, changes=changes)
    move(instance, State.STAGING, reason=f"Handed to node {node.name}.", actor=actor, changes=changes)
    changes.add(Section.DESIRED, node.pk)
    changes.publish()
    return first


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What the lease store is asked for. `labels` name the devices to people."""

    holder: str
    node_id: UUID
    boot_id: str
    portions: Mapping[UUID, Portion]
    labels: Mapping[UUID, str]


def plan_claim(instance_id: UUID, *device_ids: UUID) -> ClaimPlan | Refused:
    """What `claim_and_place` will write once the lease store has granted it. Nothing is locked or written here.

    Raises Device.DoesNotExist, Instance.DoesNotExist.
    """
    instance = Instance.objects.select_related("version__model").get(pk=instance_id)
    wanted = _with_host(instance, device_ids)
    found = {device.pk: device for device in Device.objects.select_related("node").filter(pk__in=wanted)}
    if missing := [pk for pk in wanted if pk not in found]:
        raise Device.DoesNotExist(f"no device {missing[0]}")
    devices = [found[pk] for pk in wanted]
    refused = why_not_placed(instance, devices)
    if refused is not None:
        return refused
    portions = {device.pk: portion for device, portion in portions_of(instance, devices, device_ids)}
    labels = {device.pk: device.stable_id for device in devices}
    node = devices[0].node
    return ClaimPlan(holder_of(instance.pk), node.pk, node.boot_id, portions, labels)


def _with_host(instance: Instance, device_ids: Sequence[UUID]) -> list[UUID]:
    """The devices, and the host's own where the version claims of its memory beside theirs."""
    if not instance.version.host_memory_bytes:
        return list(device_ids)
    host = Device.objects.filter(node__devices=device_ids[0], kind="cpu").order_by("pk").first()
    if host is None or host.pk in device_ids:
        return list(device_ids)
    return [*device_ids, host.pk]


def portions_of(
    instance: Instance, devices: Sequence[Device], device_ids: Sequence[UUID]
) -> list[tuple[Device, Portion]]:
    """What the instance claims of each device; of the host's it is memory alone."""
    version = instance.version
    portions = []
    for device in devices:
        if device.pk not in device_ids:
            portions.append((device, Portion(version.host_memory_bytes)))
            continue
        memory_bytes = awake_bytes(version.memory_bytes, version.host_memory_bytes, device.kind)
        portions.append((device, Portion(memory_bytes, version.share, version.whole_device)))
    return portions


def why_not_placed(instance: Instance, devices: Sequence[Device]) -> Refused | None:
    """What has changed since the place was chosen, None when it still can be taken."""
    if instance.state != InstanceState.REQUESTED or instance.desire != InstanceDesire.RUNNING:
        return Refused(f"The instance is {instance.state}, not waiting for a place.")
    switched_off = why_switched_off(instance.engine)
    if switched_off is not None:
        return Refused(switched_off)
    if len({device.node_id for device in devices}) > 1:
        return Refused("The devices are not all on one node.")
    node = devices[0].node
    if instance.version.host_memory_bytes and not any(device.kind == "cpu" for device in devices):
        return Refused(f"Node {node.name} does not say how much memory its host has.")
    for device in devices:
        if not device.present or node.state != NodeState.ONLINE:
            return Refused(f"{device.stable_id} cannot be reached now.")
        if not device.allocatable:
            return Refused(f"{device.stable_id} is divided: its parts can be claimed, it cannot.")
        if device.isolated_at is not None:
            return Refused(f"{device.stable_id} was taken out of service: {device.isolated_reason}")
        if device.health != "ok":
            how = "has failed" if device.health == "failed" else "is in a state that nobody can tell"
            return Refused(f"{device.stable_id} {how}.")
    if node.cordoned or node.maintenance:
        return Refused(f"Node {node.name} is {'cordoned' if node.cordoned else 'in maintenance'}.")
    return None
