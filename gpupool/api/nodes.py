"""The control API of nodes: tokens of their agents, and whether anything new is placed there."""

from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.etags import check_match, tagged
from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gpupool import services
from gpupool.api.base import PoolView
from gpupool.api.resource_view import ResourceViewField
from gpupool.models import Device, Node, NodeState
from gpupool.policies.silence import is_silent
from gpupool.reads.nodes import get_node, list_node_devices, list_nodes

_UNCACHED: Final = {"Cache-Control": "no-store"}
"""Of answers with a secret in them."""
_LIVE: Final = ("state", "address", "agent_version", "facts", "capabilities", "last_seen_at", "running")
"""What its agent changes, and nobody's edit."""
_MEASURED: Final = ("memory_used_bytes", "utilization", "temperature_celsius")


class NodeSerializer(serializers.ModelSerializer[Node]):
    """A machine with an agent."""

    state = serializers.ChoiceField(choices=NodeState.choices, read_only=True)
    running = serializers.IntegerField(read_only=True, default=0, help_text="Instances that have not stopped.")
    capabilities = serializers.DictField(
        read_only=True, help_text="What instances can be isolated by there: each whether it is, and why not."
    )
    facts = serializers.DictField(child=serializers.CharField(), read_only=True)
    simulated = serializers.BooleanField(read_only=True, help_text="Its devices are made up, for demonstration.")

    class Meta:
        model = Node
        fields = (
            "id", "name", "state", "cordoned", "maintenance", "maintenance_reason", "simulated", "token_last_four",
            "token_revoked_at", "address", "agent_version", "facts", "capabilities", "running", "last_seen_at",
            "created_at",
        )  # fmt: skip
        read_only_fields = fields


class NewNodeSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=120)


class NodeTokenSerializer(serializers.Serializer[Any]):
    """The token is in this answer and in no later one."""

    node = NodeSerializer()
    token = serializers.CharField(help_text="For GATEHOUSE_NODE_TOKEN of its agent.")


class CordonSerializer(serializers.Serializer[Any]):
    cordoned = serializers.BooleanField()


class MaintenanceSerializer(serializers.Serializer[Any]):
    maintenance = serializers.BooleanField()
    reason = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=500, help_text="Needed where maintenance begins."
    )


class NodeDeviceSerializer(serializers.ModelSerializer[Device]):
    """A device; null is unknown.

    Of one that is silent (its node is, or nothing was told of it for 30 s) what it told of its use counts no more:
    memory_used_bytes, utilization, temperature_celsius, telemetry and processes are null, health is unknown, and
    `observed_at` says since when.
    """

    simulated = serializers.BooleanField(read_only=True)
    facts = serializers.DictField(child=serializers.CharField(), read_only=True)
    telemetry = serializers.DictField(
        child=serializers.FloatField(), read_only=True, allow_null=True, help_text="Null: not known now."
    )
    processes = serializers.ListField(
        child=serializers.DictField(), read_only=True, allow_null=True, help_text="Null: not known now."
    )
    resource_view = ResourceViewField()

    class Meta:
        model = Device
        fields = (
            "id", "stable_id", "traceable_id", "kind", "vendor", "name", "index", "memory_bytes", "memory_used_bytes",
            "utilization", "temperature_celsius", "health", "present", "allocatable", "partition_of", "tags", "regions",
            "capability", "links", "telemetry", "processes", "facts", "isolated_at", "isolated_reason", "simulated",
            "observed_at", "resource_view",
        )  # fmt: skip
        read_only_fields = fields
        extra_kwargs = {
            **{name: {"help_text": "null: not known now"} for name in _MEASURED},
            "health": {"help_text": "ok, failed or unknown"},
            "observed_at": {"help_text": "as of when its figures are; null: nothing was ever told of it"},
        }

    def to_representation(self, device: Device) -> dict[str, Any]:
        told: dict[str, Any] = super().to_representation(device)
        if is_silent(device.node.state, device.observed_at, now=timezone.now()):
            told |= {**dict.fromkeys((*_MEASURED, "telemetry", "processes")), "health": "unknown"}
        return told


class NodeQuery(Query):
    state = serializers.ChoiceField(choices=NodeState.choices, required=False)
    cordoned = serializers.BooleanField(required=False)
    maintenance = serializers.BooleanField(required=False)
    simulated = serializers.BooleanField(required=False)


class _NodeView(PoolView):
    """Finds the node that an address names."""

    def told(self, node_id: UUID) -> dict[str, Any]:
        """Raises NotFound."""
        try:
            return dict(NodeSerializer(get_node(node_id)).data)
        except Node.DoesNotExist as error:
            raise NotFound from error

    def lock(self, node_id: UUID) -> None:
        """The node as it was read, and nobody else's until this transaction ends. Raises NotFound, or 412 and 428."""
        if not Node.objects.select_for_update().filter(pk=node_id).exists():
            raise NotFound
        check_match(self.request, self.told(node_id), without=_LIVE)

    def answer(self, node_id: UUID) -> Response:
        return tagged(self.told(node_id), without=_LIVE)


class NodeListView(IdempotentCreate, _NodeView, ListAPIView[Node]):
    """Every node, the newest first."""

    serializer_class = NodeSerializer
    pagination_class = NewestFirst
    query_class = NodeQuery

    def get_queryset(self) -> QuerySet[Node]:
        return list_nodes(**self.query)

    @extend_schema(request=NewNodeSerializer, responses={201: NodeTokenSerializer})
    def post(self, request: Request) -> Response:
        """Make a node for an agent to connect as; the answer is the only place where its token is."""
        created = services.create_node(self.parsed(NewNodeSerializer)["name"], actor=self.actor)
        body = {"node": self.told(created.node.pk), "token": created.token}
        return Response(body, status=status.HTTP_201_CREATED, headers=_UNCACHED)


class NodeView(_NodeView):
    """One node."""

    @extend_schema(responses=NodeSerializer)
    def get(self, request: Request, node_id: UUID) -> Response:
        return self.answer(node_id)


class NodeDeviceListView(_NodeView, ListAPIView[Device]):
    """Devices that a node has or had."""

    serializer_class = NodeDeviceSerializer
    pagination_class = NewestFirst

    def get_queryset(self) -> QuerySet[Device]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no node
            return Device.objects.none()
        self.told(self.kwargs["node_id"])
        return list_node_devices(self.kwargs["node_id"])


class NodeTokenView(IdempotentCreate, _NodeView):
    """The token of a node's agent."""

    @extend_schema(request=None, responses={200: NodeTokenSerializer})
    def post(self, request: Request, node_id: UUID) -> Response:
        """Rotate: the old token is refused from now on, and the stream it opened is ended."""
        self.told(node_id)
        rotated = services.rotate_node_token(node_id, actor=self.actor)
        return Response({"node": self.told(node_id), "token": rotated.token}, headers=_UNCACHED)

    @extend_schema(request=None, responses={204: None})
    def delete(self, request: Request, node_id: UUID) -> Response:
        """Revoke: the agent is refused; its engines run on, and its node is silent from then on."""
        self.told(node_id)
        services.revoke_node_token(node_id, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class NodeCordonView(_NodeView):
    """Whether anything new is placed there."""

    conditional = ("PUT",)

    @extend_schema(request=CordonSerializer, responses={200: NodeSerializer})
    def put(self, request: Request, node_id: UUID) -> Response:
        """Place nothing new there, or place again; what runs keeps running."""
        values = self.parsed(CordonSerializer)
        with transaction.atomic():
            self.lock(node_id)
            services.set_node_cordoned(node_id, values["cordoned"], actor=self.actor)
        return self.answer(node_id)


class NodeMaintenanceView(_NodeView):
    """Whether it is out of service for a while."""

    conditional = ("PUT",)

    @extend_schema(request=MaintenanceSerializer, responses={200: NodeSerializer})
    def put(self, request: Request, node_id: UUID) -> Response:
        """Begin or end it. A replica that serves ends once another serves elsewhere; what tenants acquired, at once."""
        values = self.parsed(MaintenanceSerializer)
        with transaction.atomic():
            self.lock(node_id)
            services.set_node_maintenance(node_id, values["maintenance"], reason=values["reason"], actor=self.actor)
        return self.answer(node_id)


class NodeLostView(IdempotentCreate, _NodeView):
    """A machine that does not come back."""

    @extend_schema(request=None, responses={200: NodeSerializer})
    def post(self, request: Request, node_id: UUID) -> Response:
        """Vouch that the machine is off: its instances end and its claims are free."""
        self.told(node_id)
        services.declare_node_lost(node_id, actor=self.actor)
        return self.answer(node_id)
