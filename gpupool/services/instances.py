"""Instances: asked for, placed, observed, stopped. Every state change goes through `move`."""

from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Instance, InstanceDesire, InstanceState, ModelVersion, NodeState
from gpupool.policies.instance import HOLDS_PROCESS, State, steps_to
from gpupool.services.changes import Changes
from gpupool.services.claims import release_claims
from gpupool.services.traces import note_state, note_wish
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
    _note_readiness(instance, target, moment)
    note_state(instance, before=before, through=steps[:-1], actor=actor, at=moment)
    record_audit(
        "instance.state_changed",
        subject=instance,
        actor=actor,
        tenant_id=instance.owner_id,
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


def _note_readiness(instance: Instance, target: State, moment: datetime) -> None:
    """A version with an instance that was ready is one to go back to; one that serves no more has no requests."""
    if target == State.READY:
        ModelVersion.objects.filter(pk=instance.version_id).update(last_stable_at=moment)
    elif target not in (State.UNKNOWN, State.DRAINING) and instance.running_requests is not None:
        instance.running_requests = instance.waiting_requests = instance.kv_used = None
        instance.save(update_fields=["running_requests", "waiting_requests", "kv_used"])


def lock_instance(instance_id: UUID) -> Instance:
    """The instance, its row locked. Raises Instance.DoesNotExist."""
    return (
        Instance.objects.select_for_update(of=("self",), no_key=True)
        .select_related("version__model", "node")
        .get(pk=instance_id)
    )


@transaction.atomic
def request_instance(
    version_id: UUID,
    *,
    actor: Actor,
    reason: str = "",
    tenant_id: UUID | None = None,
    pooled: bool = False,
    fence: Fence | None = None,
) -> Instance:
    """One more instance of a version, to be placed by the controller; with `tenant_id` it serves that tenant alone.

    Of a version that is one tenant's own, every instance does. `pooled`: see services.tenant_pool.
    Raises ModelVersion.DoesNotExist; InvalidInput when the version has nothing to launch.
    """
    check_fence(fence)
    version = ModelVersion.objects.select_related("model").get(pk=version_id)
    if not version.artefact_uri:
        raise InvalidInput("version", f"{version.model.name} {version.name} has no artefact that could be launched.")
    instance = Instance.objects.create(
        version=version,
        engine=version.engine,
        reason=reason[:_MAX_REASON],
        tenant_id=version.tenant_id or tenant_id,
        priority=version.priority,
        pooled=pooled,
    )
    note_state(instance, actor=actor)
    record_audit(
        "instance.requested",
        subject=instance,
        actor=actor,
        tenant_id=instance.owner_id,
        after={"model": version.model.name, "version": version.name, "reason": reason},
    )
    changes = Changes()
    changes.add(Section.POOL, instance.pk)
    changes.publish()
    return instance


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
    changes = Changes()
    stop_locked(instance, reason=reason, actor=actor, changes=changes)
    changes.publish()
    return instance


def stop_locked(instance: Instance, *, reason: str, actor: Actor, changes: Changes) -> bool:
    """The same of an instance whose row is locked, for services that do more; says whether anything changed."""
    if instance.desire == InstanceDesire.STOPPED:
        return False
    before, instance.desire = instance.desire, InstanceDesire.STOPPED
    instance.save(update_fields=["desire"])
    note_wish(instance, before=before, reason=reason, actor=actor)
    record_audit(
        "instance.stop_requested",
        subject=instance,
        actor=actor,
        tenant_id=instance.owner_id,
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
    return True


@transaction.atomic
def mark_instance_unknown(instance_id: UUID, *, reason: str, actor: Actor, fence: Fence | None = None) -> None:
    """Nobody can say what the instance does; it leaves routing, its claim stays. Raises Superseded."""
    check_fence(fence)
    instance = lock_instance(instance_id)
    if State(instance.state) not in HOLDS_PROCESS | {State.FAILED}:
        return
    if instance.node is not None and instance.node.state == NodeState.ONLINE:
        return  # its agent has spoken since this was decided
    changes, served = Changes(), instance.state == InstanceState.READY
    move(instance, State.UNKNOWN, reason=reason, actor=actor, changes=changes)
    if served:
        instance.lost_serving = True
        instance.save(update_fields=["lost_serving"])
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
    if not instance.attached and (instance.state != InstanceState.UNKNOWN or not instance.lost_serving):
        return  # its agent has spoken since it was asked, and knows better; or it did not serve before either
    changes = Changes()
    target = State.READY if healthy else State.FAILED
    if move(instance, target, reason=reason, actor=actor, changes=changes):
        changes.publish()
