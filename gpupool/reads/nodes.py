"""Nodes and their devices, for pages and the control API."""

from uuid import UUID

from django.db.models import Count, Q, QuerySet

from gpupool.models import Device, Instance, Node
from gpupool.models.instance import InstanceState


def list_nodes(
    *,
    state: str | None = None,
    cordoned: bool | None = None,
    maintenance: bool | None = None,
    simulated: bool | None = None,
) -> QuerySet[Node]:
    """Every node with how many instances it has that have not stopped; those that the filters leave."""
    asked = {"state": state, "cordoned": cordoned, "maintenance": maintenance, "simulated": simulated}
    running = Count("instances", filter=~Q(instances__state=InstanceState.STOPPED))
    rows = Node.objects.annotate(running=running).order_by("name")
    return rows.filter(**{name: value for name, value in asked.items() if value is not None})


def get_node(node_id: UUID) -> Node:
    """One node, as `list_nodes` tells it. Raises Node.DoesNotExist."""
    return list_nodes().get(pk=node_id)


def list_node_devices(node_id: UUID) -> QuerySet[Device]:
    """Devices that the node has or had."""
    return Device.objects.filter(node_id=node_id).select_related("node").order_by("-pk")


def simulated_nodes() -> str:
    """Whether what pages show is made up: `all` of it, `some`, or nothing (empty). Two small queries at most."""
    found = Node.objects.aggregate(nodes=Count("pk"), simulated=Count("pk", filter=Q(simulated=True)))
    if not found["simulated"]:
        return ""
    if found["simulated"] < found["nodes"]:
        return "some"
    # An engine that was attached has no node of ours, and its figures are real.
    return "some" if Instance.objects.filter(attached=True).exclude(state=InstanceState.STOPPED).exists() else "all"
