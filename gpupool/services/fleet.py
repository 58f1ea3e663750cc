"""What the controller writes about nodes and claims: silence, loss, and claims that nobody holds any more."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from core.epochs import Section
from gpupool.leases.fencing import Fence, check_fence
from gpupool.models import Instance, InstanceDesire, InstanceState, Lease, Node, NodeState, StoreEvent, StoreRevision
from gpupool.policies.instance import State
from gpupool.policies.lease import holder_of
from gpupool.services.changes import Changes
from gpupool.services.claims import release
from gpupool.services.instances import move
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

EVENT_RETENTION: Final = timedelta(hours=1)


@transaction.atomic
def mark_node_unreachable(node_id: UUID, *, reason: str, actor: Actor, fence: Fence | None = None) -> None:
    """The node is silent. Its claims stay: its engines may well be running. Raises Superseded."""
    check_fence(fence)
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    if node.state != NodeState.ONLINE:
        return
    node.state = NodeState.UNREACHABLE
    node.save(update_fields=["state"])
    record_audit(
        "node.state_changed",
        subject=node,
        actor=actor,
        before={"state": NodeState.ONLINE},
        after={"state": NodeState.UNREACHABLE, "reason": reason},
    )
    changes = Changes()
    changes.add(Section.POOL, node.pk)
    changes.publish()


@transaction.atomic
def declare_node_lost(node_id: UUID, *, actor: Actor) -> Node:
    """A person vouches that the machine is off or gone: its instances end and its claims are free.

    The only way to get back the claims of a node that never returns. Its token stays good: if its agent comes
    back after all, it may, and is told to stop what still runs there.
    Raises Node.DoesNotExist; InvalidInput while the node is connected.
    """
    node = Node.objects.select_for_update(no_key=True).get(pk=node_id)
    if node.state == NodeState.ONLINE:
        raise InvalidInput("node", f"Node {node.name} is connected; stop its agent first.")
    changes = Changes()
    node.session_id = None
    node.state = NodeState.EXPECTED
    node.boot_id = ""
    node.save(update_fields=["session_id", "state", "boot_id"])
    record_audit("node.declared_lost", subject=node, actor=actor)
    rows = Instance.objects.select_for_update(of=("self",), no_key=True).select_related("version__model")
    for instance in rows.filter(node=node).exclude(state=InstanceState.STOPPED).order_by("pk"):
        instance.desire = InstanceDesire.STOPPED
        instance.save(update_fields=["desire"])
        move(instance, State.STOPPED, reason="Its node was declared lost.", actor=actor, changes=changes)
    changes.add(Section.POOL, node.pk)
    changes.publish()
    return node


@transaction.atomic
def sweep_claims(*, actor: Actor, fence: Fence | None = None) -> int:
    """Release claims whose holder has stopped or does not exist; returns how many. Safe to run twice."""
    check_fence(fence)
    # What somebody writes at this moment is looked at the next time: waiting for it, with others held, could be a ring.
    leases = Lease.objects.select_for_update(skip_locked=True, no_key=True)
    # The claims before the instances: a holder that begins in between is then among those that are there.
    claims = list(leases.filter(released_at__isnull=True).order_by("pk"))
    live = {holder_of(pk) for pk in Instance.objects.exclude(state=InstanceState.STOPPED).values_list("pk", flat=True)}
    changes, released = Changes(), 0
    for lease in claims:
        if lease.holder not in live:
            release(lease, actor=actor, reason="no instance holds it any more", changes=changes)
            released += 1
    changes.publish()
    return released


@transaction.atomic
def compact_store_events(*, now: datetime, keep: timedelta = EVENT_RETENTION) -> int:
    """Drop the lease store's events older than `keep`; returns how many. A watcher further behind reads anew.

    Not audited: no state is lost, only its history.
    """
    newest = StoreEvent.objects.filter(at__lt=now - keep).aggregate(newest=Max("revision"))["newest"]
    if newest is None:
        return 0
    StoreRevision.objects.select_for_update().get()
    removed, _ = StoreEvent.objects.filter(revision__lte=newest).delete()
    StoreRevision.objects.filter(compacted_revision__lt=newest).update(compacted_revision=newest)
    return removed
