"""The control API of instances: what runs, asleep or awake, for whom, and how near it is to serving."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound
from rest_framework.generics import ListAPIView, RetrieveAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from core.api.idempotency import IdempotentCreate
from core.api.paging import NewestFirst
from gpupool import selectors, services
from gpupool.api.base import PoolView
from gpupool.api.serializers import AttachSerializer, ReasonSerializer
from gpupool.models import Instance, InstanceEvent, InstanceLog, InstanceState, ModelVersion
from gpupool.policies.instance import State
from gpupool.policies.tiers import Tier, tier_of
from gpupool.reads.instances import read_nearness
from gpupool.selectors import FIGURES, is_made_up, is_unseen
from gpupool.services.traces import ask_for_log
from tenants.services import InvalidInput


class InstanceSerializer(serializers.ModelSerializer[Instance]):
    """An instance; null where something is not known.

    Of a node that is silent (nothing was heard of it for 30 s, or it was found unreachable) what it told of its use
    counts no more: running_requests, waiting_requests, kv_used, device_bytes and memory_rss_bytes are null, and
    `heard_at` says since when. So are the first three of one whose engine does not answer its node, which is in
    state `unknown`.
    """

    model = serializers.CharField(source="version.model.name")
    version = serializers.CharField(source="version.name")
    node = serializers.CharField(source="node.name", allow_null=True, default=None)
    tier = serializers.SerializerMethodField(help_text="cold, staged, asleep or awake: where its weights are")
    simulated = serializers.SerializerMethodField(help_text="It computes nothing: its answers are made up.")
    heard_at = serializers.DateTimeField(
        source="node.last_seen_at",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="as of when its figures are: its node's last report; null: it has no node that reported anything",
    )

    class Meta:
        model = Instance
        fields = (
            "id", "model", "version", "engine", "attached", "state", "desire", "reason", "tier", "tenant_id", "pooled",
            "priority", "node", "host", "port", "base_path", "tls", "credential_variable", "slots", "pid",
            "memory_rss_bytes", "device_bytes", "device_peak_bytes", "host_memory_bytes", "kv_capacity_bytes",
            "running_requests", "waiting_requests", "kv_used", "heard_at", "memory_mode", "concurrency_cap",
            "guard_state", "restarts", "last_used_at", "load_seconds", "started_from", "wake_seconds", "simulated",
            "created_at", "state_changed_at", "ready_at",
        )  # fmt: skip
        extra_kwargs = {name: {"help_text": "null: not known now"} for name in FIGURES}

    def to_representation(self, instance: Instance) -> dict[str, Any]:
        told: dict[str, Any] = super().to_representation(instance)
        return {**told, **dict.fromkeys(FIGURES)} if is_unseen(instance) else told

    def get_simulated(self, instance: Instance) -> bool:
        return is_made_up(instance)

    def get_tier(self, instance: Instance) -> str:
        return tier_of(State(instance.state), has_process=instance.pid is not None or instance.attached)


class AcquireSerializer(serializers.Serializer[Any]):
    version = serializers.UUIDField(help_text="id of a version that serves")
    tenant = serializers.UUIDField(help_text="id of the tenant that it serves alone")


class AcquiredSerializer(serializers.Serializer[Any]):
    instance = InstanceSerializer()
    reused = serializers.BooleanField(help_text="it was there; else it is being started")
    tier = serializers.ChoiceField(choices=[tier.value for tier in Tier], help_text="how near it was to serving")


class SleepSerializer(ReasonSerializer):
    staged = serializers.BooleanField(
        required=False,
        default=False,
        help_text="end an engine that cannot sleep, and keep its weights in its node's memory",
    )


class LatencySerializer(serializers.Serializer[Any]):
    measured = serializers.IntegerField()
    median = serializers.FloatField(allow_null=True)
    longest = serializers.FloatField(allow_null=True)


class TierSerializer(serializers.Serializer[Any]):
    tier = serializers.CharField()
    instances = serializers.IntegerField(help_text="in this tier now")
    latency = LatencySerializer(help_text="seconds until an instance serves from there")


class NearnessSerializer(serializers.Serializer[Any]):
    tiers = TierSerializer(many=True)
    acquisitions = serializers.IntegerField(help_text="by tenants, ever")
    reuses = serializers.IntegerField(help_text="of them, those that found an instance there")
    reuse_ratio = serializers.FloatField(allow_null=True)


class LogSerializer(serializers.ModelSerializer[InstanceLog]):
    """The end of an engine's log, without control characters, and without what looks like a key or a password."""

    lines = serializers.SerializerMethodField(help_text="at most 200, the oldest first")

    class Meta:
        model = InstanceLog
        fields = ("instance_id", "told_at", "cut", "lines")
        read_only_fields = fields
        extra_kwargs = {
            "told_at": {"help_text": "null: its node has not told anything yet"},
            "cut": {"help_text": "there is more before it, or lines were shortened"},
        }

    def get_lines(self, log: InstanceLog) -> list[str]:
        return log.text.split("\n") if log.text else []


class InstanceEventSerializer(serializers.ModelSerializer[InstanceEvent]):
    """One step: a state that it came into, or what somebody wished of it."""

    through = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="states that fell between two reports"
    )

    class Meta:
        model = InstanceEvent
        fields = ("id", "kind", "value", "before", "through", "reason", "by", "at")
        read_only_fields = fields


class InstanceQuery(Query):
    """Filters of the list."""

    state = serializers.ChoiceField(choices=InstanceState.choices, required=False)
    tenant = serializers.UUIDField(required=False, help_text="those that serve this tenant alone")
    version = serializers.UUIDField(required=False)


class TierQuery(Query):
    """Which instances."""

    version = serializers.UUIDField(required=False)


class InstanceListView(PoolView, ListAPIView[Instance]):
    serializer_class = InstanceSerializer
    pagination_class = NewestFirst
    query_class = InstanceQuery

    def get_queryset(self) -> QuerySet[Instance]:
        rows = selectors.list_instances()
        asked = {"state": "state", "tenant": "tenant_id", "version": "version_id"}
        return rows.filter(**{column: self.query[name] for name, column in asked.items() if name in self.query})

    @extend_schema(request=AttachSerializer, responses={200: InstanceSerializer, 201: InstanceSerializer})
    def post(self, request: Request) -> Response:
        """Attach an engine that already runs. It takes requests once the controller's probe has found it."""
        values = self.parsed(AttachSerializer)
        try:
            attached = services.attach_engine(
                values["url"],
                engine=values["engine"],
                model_name=values["model"],
                served_name=values["served_name"],
                version_name=values["version"],
                credential_variable=values["credential_variable"],
                slots=values["slots"],
                actor=self.actor,
            )
        except InvalidInput as error:
            if error.field == "name":
                raise InvalidInput("model", error.message) from error
            raise
        code = status.HTTP_201_CREATED if attached.created else status.HTTP_200_OK
        return Response(InstanceSerializer(attached.instance).data, status=code)


class InstanceView(PoolView, RetrieveAPIView[Instance]):
    serializer_class = InstanceSerializer
    lookup_url_kwarg = "instance_id"

    def get_queryset(self) -> QuerySet[Instance]:
        return selectors.list_instances()


class InstanceStopView(PoolView):
    @extend_schema(request=ReasonSerializer, responses={202: InstanceSerializer})
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Take it out of routing, let its requests finish, stop it; an attached one is let go."""
        values = self.parsed(ReasonSerializer)
        return _told(lambda: services.stop_instance(instance_id, actor=self.actor, reason=values["reason"]))


class InstanceSleepView(PoolView):
    @extend_schema(request=SleepSerializer, responses={202: InstanceSerializer})
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Take it out of routing, let its requests finish, give its devices' memory back."""
        values = self.parsed(SleepSerializer)
        return _told(lambda: services.sleep_instance(instance_id, actor=self.actor, **values))


class InstanceWakeView(PoolView):
    @extend_schema(request=ReasonSerializer, responses={202: InstanceSerializer})
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Let it serve again. It waits where its devices' memory is claimed by others meanwhile."""
        values = self.parsed(ReasonSerializer)
        return _told(lambda: services.wake_instance(instance_id, actor=self.actor, reason=values["reason"]))


class InstanceReleaseView(PoolView):
    @extend_schema(request=ReasonSerializer, responses={202: InstanceSerializer})
    def post(self, request: Request, instance_id: UUID) -> Response:
        """Its tenant needs it no more for now: it sleeps, and is there when it is acquired again."""
        values = self.parsed(ReasonSerializer)
        return _told(lambda: services.release_instance(instance_id, actor=self.actor, reason=values["reason"]))


class InstanceLogView(PoolView):
    @extend_schema(responses={200: LogSerializer})
    def get(self, request: Request, instance_id: UUID) -> Response:
        """The last lines of its engine's log. Its node tells them while they are asked for: ask again after a second.

        400 for an attached engine, whose log lies where it was started.
        """
        try:
            log = ask_for_log(instance_id, actor=self.actor)
        except Instance.DoesNotExist as error:
            raise NotFound from error
        return Response(LogSerializer(log).data)


class InstanceEventListView(PoolView, ListAPIView[InstanceEvent]):
    """How it came to its state, the newest first; kept for 30 days."""

    serializer_class = InstanceEventSerializer
    pagination_class = NewestFirst
    queryset = InstanceEvent.objects.none()

    def get_queryset(self) -> QuerySet[InstanceEvent]:
        if getattr(self, "swagger_fake_view", False):  # the schema's generator has no instance
            return InstanceEvent.objects.none()
        return InstanceEvent.objects.filter(instance=Instance.objects.get(pk=self.kwargs["instance_id"])).order_by(
            "-pk"
        )


class InstanceAcquireView(IdempotentCreate, PoolView):
    @extend_schema(request=AcquireSerializer, responses={200: AcquiredSerializer, 201: AcquiredSerializer})
    def post(self, request: Request) -> Response:
        """An instance that serves one tenant alone: its own woken, a free one bound, or a new one."""
        values = self.parsed(AcquireSerializer)
        try:
            acquired = services.acquire_instance(values["version"], values["tenant"], actor=self.actor)
        except ModelVersion.DoesNotExist as error:
            raise InvalidInput("version", "There is no such version.") from error
        code = status.HTTP_200_OK if acquired.reused else status.HTTP_201_CREATED
        return Response(AcquiredSerializer(acquired).data, status=code)


class InstanceTiersView(PoolView):
    query_class = TierQuery

    @extend_schema(responses={200: NearnessSerializer})
    def get(self, request: Request) -> Response:
        """How many instances are cold, staged, asleep and awake, and how long it takes to serve from each."""
        return Response(NearnessSerializer(read_nearness(self.query.get("version"))).data)


def _told(call: Any) -> Response:
    try:
        instance = call()
    except Instance.DoesNotExist as error:
        raise NotFound from error
    return Response(InstanceSerializer(instance).data, status=status.HTTP_202_ACCEPTED)
