"""Instances: asked for, placed, observed, stopped. Every state change goes through `move`."""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Device, Instance, InstanceDesire, InstanceState, Lease, ModelVersion, NodeState
from gpupool.policies.instance import HOLDS_PROCESS, State, steps_to
from gpupool.policies.lease import Refused
from gpupool.services.changes import Changes
from gpupool.services.claims import claim_memory, release_claims
from gpupool.services.engines import why_switched_off
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

_MAX_REASON = 1000


def move(
    instance: Instance, target: State, *, reason: str, actor: Actor, changes: Changes, now: datetime | None = None
) -> bool:
    """Bring a locked instance into `target` along the table of states; returns whether anything changed.

    Readiness reaches the relays with the transaction, a stopped instance's claims end with it.
    Raises IllegalTransition when the table has no way there.
    """
    reason = reason[:_MAX_REASON]
    before = State(instance.state)
    steps = steps_to(before, target)
    if not steps:
        if instance.reason != reason:
            instance.reason = reason
            instance.save(update_fields=["reason"])
        return False
    moment = now or timezone.now()
    instance.state, instance.reason, instance.state_changed_at = InstanceState(target), reason, moment
    if target == State.READY and instance.ready_at is None:
        instance.ready_at = moment
    instance.save(update_fields=["state", "reason", "state_changed_at", "ready_at"])
    record_audit(
        "instance.state_changed",
        subject=instance,
        actor=actor,
        tenant_id=instance.version.model.tenant_id,
        before={"state": before},
        after={"state": target, "through": [step.value for step in steps[:-1]], "reason": reason},
    )
    if target == State.STOPPED:
        release_claims(instance, actor=actor, reason="the instance stopped", changes=changes)
        if instance.node_id:
            changes.add(Section.DESIRED, instance.node_id)
    changes.add(Section.ENDPOINTS, instance.pk)
    changes.add(Section.POOL, instance.pk)
    return True


def lock_instance(instance_id: UUID) -> Instance:
    """The instance, its row locked. Raises Instance.DoesNotExist."""
    return Instance.objects.select_for_update(of=("self",)).select_related("version__model", "node").get(pk=instance_id)


@transaction.atomic
def request_instance(version_id: UUID, *, actor: Actor, reason: str = "", fence: Fence | None = None) -> Instance:
    """One more instance of a version, to be placed by the controller.

    Raises ModelVersion.DoesNotExist; InvalidInput when the version has nothing to launch.
    """
    check_fence(fence)
    version = ModelVersion.objects.select_related("model").get(pk=version_id)
    if not version.artefact_uri:
        raise InvalidInput("version", f"{version.model.name} {version.name} has no artefact that could be launched.")
    instance = Instance.objects.create(version=version, engine=version.engine, reason=reason[:_MAX_REASON])
    record_audit(
        "instance.requested",
        subject=instance,
        actor=actor,
        tenant_id=version.model.tenant_id,
        after={"model": version.model.name, "version": version.name, "reason": reason},
    )
    changes = Changes()
    changes.add(Section.POOL, instance.pk)
    changes.publish()
    return instance


@transaction.atomic
def claim_and_place(instance_id: UUID, device_id: UUID, *, actor: Actor, fence: Fence | None = None) -> Lease | Refused:
    """Claim the version's memory on the device and hand the instance to its node, in one transaction.

    The device's row is locked while its claims are summed: two controllers, or two instances at once,
    cannot both take the last bytes. A refusal leaves the instance waiting, with the reason.
    Raises Device.DoesNotExist, Instance.DoesNotExist, Superseded.
    """
    check_fence(fence)
    device = Device.objects.select_for_update(of=("self",)).select_related("node").get(pk=device_id)
    instance = lock_instance(instance_id)
    changes = Changes()
    outcome = _claim(instance, device, actor=actor)
    if isinstance(outcome, Refused):
        if instance.state == InstanceState.REQUESTED:
            move(instance, State.REQUESTED, reason=outcome.reason, actor=actor, changes=changes)
        return outcome
    instance.node, instance.lease_id, instance.fencing_token = device.node, outcome.lease_id, outcome.fencing_token
    instance.save(update_fields=["node", "lease_id", "fencing_token"])
    move(instance, State.PLACING, reason="", actor=actor, changes=changes)
    move(instance, State.STAGING, reason=f"Handed to node {device.node.name}.", actor=actor, changes=changes)
    changes.add(Section.DESIRED, device.node_id)
    changes.publish()
    return outcome


def _claim(instance: Instance, device: Device, *, actor: Actor) -> Lease | Refused:
    if instance.state != InstanceState.REQUESTED or instance.desire != InstanceDesire.RUNNING:
        return Refused(f"The instance is {instance.state}, not waiting for a place.")
    switched_off = why_switched_off(instance.engine)
    if switched_off is not None:
        return Refused(switched_off)
    if not device.present or device.node.state != NodeState.ONLINE:
        return Refused(f"{device.stable_id} cannot be reached now.")
    if device.node.cordoned:
        return Refused(f"Node {device.node.name} is cordoned.")
    outcome = claim_memory(device, instance, memory_bytes=instance.version.memory_bytes, actor=actor)
    if isinstance(outcome, Lease):
        return outcome
    assert isinstance(outcome, Refused)
    return Refused(f"{device.stable_id}: {outcome.reason}.")


@transaction.atomic
def explain_waiting(instance_id: UUID, reason: str, *, actor: Actor, fence: Fence | None = None) -> None:
    """Say why the instance is not placed yet. Not audited: nothing changed but the explanation."""
    check_fence(fence)
    Instance.objects.filter(pk=instance_id, state=InstanceState.REQUESTED).exclude(reason=reason[:_MAX_REASON]).update(
        reason=reason[:_MAX_REASON]
    )


@transaction.atomic
def stop_instance(instance_id: UUID, *, actor: Actor, reason: str = "", fence: Fence | None = None) -> Instance:
    """Take the instance out of routing and stop it once its requests are done; for an attached one, detach it.

    Its claim ends when its node confirms that the process is gone, not before. Stopping twice changes nothing.
    Raises Instance.DoesNotExist, Superseded.
    """
    check_fence(fence)
    instance = lock_instance(instance_id)
    if instance.desire == InstanceDesire.STOPPED:
        return instance
    changes = Changes()
    instance.desire = InstanceDesire.STOPPED
    instance.save(update_fields=["desire"])
    record_audit(
        "instance.stop_requested",
        subject=instance,
        actor=actor,
        tenant_id=instance.version.model.tenant_id,
        after={"reason": reason},
    )
    state = State(instance.state)
    if instance.node_id is None:
        if state != State.STOPPED:
            move(instance, State.STOPPED, reason=reason, actor=actor, changes=changes)
    else:
        changes.add(Section.DESIRED, instance.node_id)
        if state in HOLDS_PROCESS and state not in (State.UNKNOWN, State.DRAINING):
            move(instance, State.DRAINING, reason=reason, actor=actor, changes=changes)
    changes.add(Section.ENDPOINTS, instance.pk)
    changes.add(Section.POOL, instance.pk)
    changes.publish()
    return instance


@transaction.atomic
def mark_instance_unknown(instance_id: UUID, *, reason: str, actor: Actor, fence: Fence | None = None) -> None:
    """Nobody can say what the instance does; it leaves routing, its claim stays. Raises Superseded."""
    check_fence(fence)
    instance = lock_instance(instance_id)
    if State(instance.state) not in HOLDS_PROCESS | {State.FAILED}:
        return
    if instance.node is not None and instance.node.state == NodeState.ONLINE:
        return  # its agent has spoken since this was decided
    changes = Changes()
    move(instance, State.UNKNOWN, reason=reason, actor=actor, changes=changes)
    changes.publish()


@transaction.atomic
def set_probed_state(
    instance_id: UUID, *, healthy: bool, reason: str, actor: Actor, fence: Fence | None = None
) -> None:
    """What a health probe of an attached engine, or of an unknown one of a silent node, says. Raises Superseded."""
    check_fence(fence)
    instance = lock_instance(instance_id)
    if instance.state == InstanceState.STOPPED or instance.desire == InstanceDesire.STOPPED:
        return
    if not instance.attached and instance.state != InstanceState.UNKNOWN:
        return  # its agent has spoken since it was asked, and knows better
    changes = Changes()
    target = State.READY if healthy else State.FAILED
    if move(instance, target, reason=reason, actor=actor, changes=changes):
        changes.publish()
