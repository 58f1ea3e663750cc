"""Nodes of a simulated fleet: made with their mark, and taken away again with all that was made up about them."""

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from core.epochs import Section
from gpupool.models import Instance, InstanceState, Lease, Node
from gpupool.policies.instance import State
from gpupool.services.changes import Changes
from gpupool.services.instances import move
from tenants.actor import Actor
from tenants.services import InvalidInput, record_audit

_REASON = "Its simulated node was removed."


@dataclass(frozen=True, slots=True)
class RemovedNode:
    """What went with it."""

    name: str
    devices: int
    instances: int


@transaction.atomic
def remove_simulated_node(node_id: UUID, *, actor: Actor) -> RemovedNode:
    """The node, its devices, instances, claims, events and actions; its agent is refused from then on.

    Of a real node history stays, and its devices may hold what nobody sees; of a made-up one there is neither. What
    was done to it stays in the audit log. Raises Node.DoesNotExist; InvalidInput for a node that is real.
    """
    node = Node.objects.select_for_update().get(pk=node_id)
    if not node.simulated:
        raise InvalidInput("node", f"Node {node.name} is real: only simulated ones are removed.")
    changes = Changes()
    rows = Instance.objects.select_for_update(of=("self",)).select_related("version__model").filter(node=node)
    for instance in rows.exclude(state=InstanceState.STOPPED).order_by("pk"):
        move(instance, State.STOPPED, reason=_REASON, actor=actor, changes=changes)
    removed = RemovedNode(node.name, node.devices.count(), rows.count())
    Lease.objects.filter(device__node=node).delete()
    Instance.objects.filter(node=node).delete()
    record_audit(
        "node.simulated_removed",
        subject=node,
        actor=actor,
        before={"name": node.name, "devices": removed.devices, "instances": removed.instances},
    )
    changes.add(Section.POOL, node.pk)
    changes.add(Section.DESIRED, node.pk)
    node.delete()
    changes.publish()
    return removed
