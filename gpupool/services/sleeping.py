"""Putting instances to sleep and waking them: what is wished, which their nodes then bring about."""

from uuid import UUID

from django.db import transaction

from core.epochs import Section
from gpupool.engines.base import why_not_asleep
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Instance, InstanceDesire, InstanceState
from gpupool.policies.instance import COMING_OR_UP, State
from gpupool.services.changes import Changes
from gpupool.services.instances import lock_instance, move
from gpupool.services.traces import note_wish
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit


@transaction.atomic
def sleep_instance(
    instance_id: UUID, *, actor: Actor, reason: str = "", staged: bool = False, fence: Fence | None = None
) -> Instance:
    """Take the instance out of routing and let it give its devices' memory back once its requests are done.

    With `staged`, an engine that cannot sleep is ended instead, and its weights are kept in its node's page cache: it
    starts from there when it is woken. Asking twice changes nothing.
    Raises Instance.DoesNotExist, Superseded; InvalidInput when it cannot sleep, saying why.
    """
    check_fence(fence)
    instance = lock_instance(instance_id)
    if instance.desire == InstanceDesire.ASLEEP:
        return instance
    if instance.desire == InstanceDesire.STOPPED or State(instance.state) not in COMING_OR_UP:
        raise InvalidInput("instance", f"It is {instance.state}: only one that serves or is on its way can sleep.")
    if instance.attached:
        raise InvalidInput("instance", "It was attached by its address: whoever started it puts it to sleep.")
    if instance.node_id is None:
        raise InvalidInput("instance", "It has no place yet. Stop it if it is not needed.")
    why_not = why_it_cannot_sleep(instance)
    if why_not and not staged:
        raise InvalidInput("instance", f"{why_not} It can be staged: ended, with its weights kept in memory.")
    reason = reason or ("It is ended and its weights kept in memory." if why_not else "")
    changes = Changes()
    _wish(instance, InstanceDesire.ASLEEP, "instance.sleep_requested", reason, actor=actor, changes=changes)
    if instance.state == InstanceState.ASLEEP:
        # It may be waking at this moment: it has its claim until its node says that it sleeps, and gives it back then.
        move(instance, State.WARMING, reason="It was about to wake.", actor=actor, changes=changes)
    changes.publish()
    return instance


@transaction.atomic
def wake_instance(instance_id: UUID, *, actor: Actor, reason: str = "", fence: Fence | None = None) -> Instance:
    """Let a sleeping instance serve again; it takes requests once its node says that it does.

    Waking what is not asked to sleep changes nothing.
    Raises Instance.DoesNotExist, Superseded; InvalidInput for one that shall stop.
    """
    check_fence(fence)
    instance = lock_instance(instance_id)
    if instance.desire == InstanceDesire.STOPPED:
        raise InvalidInput("instance", "It was stopped. Start another in its place.")
    if instance.desire == InstanceDesire.ASLEEP:
        changes = Changes()
        _wish(instance, InstanceDesire.RUNNING, "instance.wake_requested", reason, actor=actor, changes=changes)
        changes.publish()
    return instance


def why_it_cannot_sleep(instance: Instance) -> str:
    """In a sentence; empty where it can."""
    try:
        return why_not_asleep(get_engine(instance.engine), instance.version.engine_args)
    except UnknownEngine as error:
        return str(error)


def _wish(
    instance: Instance, desire: InstanceDesire, action: str, reason: str, *, actor: Actor, changes: Changes
) -> None:
    before, instance.desire = instance.desire, desire
    instance.save(update_fields=["desire"])
    note_wish(instance, before=before, reason=reason, actor=actor)
    record_audit(
        action,
        subject=instance,
        actor=actor,
        tenant_id=instance.owner_id,
        before={"desire": before, "state": instance.state},
        after={"desire": desire, "reason": reason},
    )
    if instance.node_id is not None:
        changes.add(Section.DESIRED, instance.node_id)
    changes.add(Section.ENDPOINTS, instance.pk)
    changes.add(Section.POOL, instance.pk)
