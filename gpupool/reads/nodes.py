"""Nodes and their devices, for pages and the control API."""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from django.db.models import Aggregate, BigIntegerField, Count, OuterRef, Q, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce

from gpupool.models import Device, Instance, Lease, Node
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


def table_of_nodes() -> QuerySet[Node]:
    """Every node in no order, with what to sort by: gpus, memory, reserved (in bytes), running instances, heard."""
    devices = Device.objects.filter(node=OuterRef("pk"), present=True, allocatable=True).order_by().values("node")
    leases = Lease.objects.filter(device__node=OuterRef("pk"), released_at__isnull=True).order_by()
    live = Instance.objects.filter(node=OuterRef("pk")).exclude(state=InstanceState.STOPPED).order_by().values("node")

    def number(rows: QuerySet[Any, Any], of: Aggregate) -> Coalesce:
        return Coalesce(Subquery(rows.annotate(n=of).values("n"), output_field=BigIntegerField()), 0)

    return Node.objects.defer("facts", "capabilities").annotate(
        gpus=number(devices.filter(kind="gpu"), Count("pk")),
        memory=number(devices, Sum("memory_bytes")),
        reserved=number(leases.values("device__node"), Sum("memory_bytes")),
        running=number(live, Count("pk")),
        heard=Coalesce("last_seen_at", Value(_NEVER)),
    )


_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
