"""The control API of healing: what went wrong and what was done, answers to errors, devices taken out and back."""

from typing import Any
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
from core.api.paging import NewestFirst
from gpupool.api.base import PoolView
from gpupool.models import Device, DeviceEvent, HealingAction, HealingActionState, XidRule
from gpupool.policies.remedy import LIMIT_POWER, REMEDY_OF, WORDS, Remedy
from gpupool.policies.xid import Provenance, Rule, Verb, all_rules, rule_for
from gpupool.reads import healing as reads
from gpupool.services.device_isolation import give_back_device, isolate_device
from gpupool.services.power_limit import LEAST_WATTS, MOST_WATTS, limit_power
from gpupool.services.xid_rules import drop_xid_rule, set_xid_rule

_LARGEST_CODE = (1 << 31) - 1


class EventSerializer(serializers.ModelSerializer[DeviceEvent]):
    """One thing that a node's agent noticed. `verdict` says what healing decided, or why not yet."""

    node = serializers.CharField(source="node.name")
    device = serializers.CharField(source="device.stable_id", allow_null=True, default=None)
    simulated = serializers.BooleanField(source="node.simulated", read_only=True, help_text="It is made up.")

    class Meta:
        model = DeviceEvent
        fields = (
            "id", "node", "device", "boot_id", "sequence", "source", "kind", "code", "text", "data", "at",
            "received_at", "decided", "verdict", "simulated",
        )  # fmt: skip


class ActionSerializer(serializers.ModelSerializer[HealingAction]):
    """One thing that healing does, or would do, with its reason."""

    node = serializers.CharField(source="node.name")
    device = serializers.CharField(source="device.stable_id", allow_null=True, default=None)
    instance_id = serializers.UUIDField(allow_null=True)
    event_id = serializers.UUIDField(allow_null=True)
    simulated = serializers.BooleanField(
        source="node.simulated", read_only=True, help_text="Its node is made up: nothing is done."
    )

    class Meta:
        model = HealingAction
        fields = (
            "id", "node", "device", "instance_id", "event_id", "action", "state", "reason", "outcome", "created_at",
            "started_at", "finished_at", "simulated",
        )  # fmt: skip


class EventQuery(Query):
    node = serializers.CharField(required=False, max_length=120, help_text="a node's name")
    device = serializers.CharField(required=False, max_length=200, help_text="a device's stable id")
    kind = serializers.CharField(required=False, max_length=24)
    source = serializers.CharField(required=False, max_length=16)  # type: ignore[assignment]  # a parameter's name
    code = serializers.IntegerField(required=False, min_value=0, max_value=_LARGEST_CODE)
    decided = serializers.BooleanField(required=False)


class ActionQuery(Query):
    node = serializers.CharField(required=False, max_length=120, help_text="a node's name")
    device = serializers.CharField(required=False, max_length=200, help_text="a device's stable id")
    action = serializers.ChoiceField(choices=[*(remedy.value for remedy in Remedy), LIMIT_POWER], required=False)
    state = serializers.ChoiceField(choices=HealingActionState.choices, required=False)


class EventListView(PoolView, ListAPIView[DeviceEvent]):
    """What agents noticed, newest first. The same error twice is two events."""

    serializer_class = EventSerializer
    pagination_class = NewestFirst
    query_class = EventQuery
    queryset = DeviceEvent.objects.none()

    def get_queryset(self) -> QuerySet[DeviceEvent]:
        return reads.list_events(self.query)


class ActionListView(PoolView, ListAPIView[HealingAction]):
    """What healing did, does and would do, newest first."""

    serializer_class = ActionSerializer
    pagination_class = NewestFirst
    query_class = ActionQuery
    queryset = HealingAction.objects.none()

    def get_queryset(self) -> QuerySet[HealingAction]:
        return reads.list_actions(self.query)


class RuleSerializer(serializers.Serializer[Any]):
    """What is done about a code, and whose word that is."""

    code = serializers.IntegerField()
    meaning = serializers.CharField()
    answer = serializers.ChoiceField(choices=[verb.value for verb in Verb], source="verb")
    done_as = serializers.SerializerMethodField(help_text="what that is here, in words")
    note = serializers.CharField(allow_blank=True)
    provenance = serializers.CharField(help_text="whose word it is: an operator's, NVIDIA's or the design papers'")

    def get_done_as(self, rule: Rule) -> str:
        return WORDS[REMEDY_OF[rule.verb]]


class RuleListSerializer(serializers.Serializer[Any]):
    results = RuleSerializer(many=True)


class NewRuleSerializer(serializers.Serializer[Any]):
    answer = serializers.ChoiceField(choices=[verb.value for verb in Verb])
    note = serializers.CharField(required=False, default="", allow_blank=True, max_length=500)
    provenance = serializers.CharField(
        required=False, default=Provenance.OPERATOR.value, max_length=120, help_text="whose word it is, for people"
    )


class RuleListView(PoolView):
    """Every code that somebody has an answer to."""

    @extend_schema(operation_id="xid_rules_list", responses=RuleListSerializer)
    def get(self, request: Request) -> Response:
        """By code; operators' rules count before NVIDIA's catalogue, that before the design papers' codes."""
        return Response(RuleListSerializer({"results": all_rules(reads.overrides())}).data)


class RuleView(PoolView):
    """One code's answer."""

    conditional = ("PUT", "DELETE")

    @extend_schema(responses=RuleSerializer)
    def get(self, request: Request, code: int) -> Response:
        """The answer that counts. A code without one has the instances that it hit rebuilt, and is 404 here."""
        return tagged(_rule(code))

    @extend_schema(request=NewRuleSerializer, responses=RuleSerializer)
    def put(self, request: Request, code: int) -> Response:
        """Answer it otherwise. Take the ETag of what counts now; for a code without an answer say `If-Match: *`."""
        if code > _LARGEST_CODE:
            raise NotFound
        with transaction.atomic():
            values = self.parsed(NewRuleSerializer)
            check_match(request, _rule(code, missing={}))
            set_xid_rule(code, action=values.pop("answer"), actor=self.actor, **values)
        return tagged(_rule(code))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, code: int) -> Response:
        """Let the catalogue's answer count again."""
        with transaction.atomic():
            if not XidRule.objects.select_for_update().filter(code=min(code, _LARGEST_CODE)).exists():
                raise NotFound
            check_match(request, _rule(code))
            drop_xid_rule(code, actor=self.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _rule(code: int, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    rule = rule_for(code, reads.overrides())
    if rule is not None:
        return dict(RuleSerializer(rule).data)
    if missing is None:
        raise NotFound
    return missing


class OutageSerializer(serializers.ModelSerializer[Device]):
    """Whether a device is out of the pool, by whom, and why it is not back yet."""

    node = serializers.CharField(source="node.name")
    isolated_at = serializers.DateTimeField(allow_null=True)
    why_still = serializers.SerializerMethodField(help_text="why it is not given back yet; null: it is not out")

    class Meta:
        model = Device
        fields = ("id", "node", "stable_id", "health", "isolated_at", "isolated_by", "isolated_reason", "why_still")

    def get_why_still(self, device: Device) -> str | None:
        return reads.why_device_is_out(device, now=timezone.now())


class IsolateSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500)
    move_instances = serializers.BooleanField(
        required=False, default=True, help_text="stop what runs there, so that it is placed elsewhere"
    )


class DeviceOutageView(PoolView):
    """A device taken out, by hand or by healing."""

    @extend_schema(responses=OutageSerializer)
    def get(self, request: Request, device_id: UUID) -> Response:
        """Whether it is out, and why still."""
        return Response(OutageSerializer(_device(device_id)).data)

    @extend_schema(request=IsolateSerializer, responses=OutageSerializer)
    def put(self, request: Request, device_id: UUID) -> Response:
        """Take it out: nothing new is placed there, and healing leaves it alone, until a person gives it back."""
        values = self.parsed(IsolateSerializer)
        _device(device_id)
        return Response(OutageSerializer(isolate_device(device_id, actor=self.actor, **values)).data)

    @extend_schema(responses=OutageSerializer)
    def delete(self, request: Request, device_id: UUID) -> Response:
        """Give it back, whoever took it out."""
        _device(device_id)
        return Response(OutageSerializer(give_back_device(device_id, reason="", actor=self.actor)).data)


class PowerLimitSerializer(serializers.Serializer[Any]):
    watts = serializers.IntegerField(min_value=LEAST_WATTS, max_value=MOST_WATTS)
    reason = serializers.CharField(max_length=500)


class DevicePowerLimitView(PoolView):
    """How much power a GPU may draw."""

    @extend_schema(request=PowerLimitSerializer, responses={202: ActionSerializer})
    def put(self, request: Request, device_id: UUID) -> Response:
        """Have its node set it; the action says how that ended. A dry run until hardware actions are switched on."""
        values = self.parsed(PowerLimitSerializer)
        _device(device_id)
        action = limit_power(device_id, actor=self.actor, **values)
        return Response(ActionSerializer(action).data, status=status.HTTP_202_ACCEPTED)


def _device(device_id: UUID) -> Device:
    try:
        return reads.get_device(device_id)
    except Device.DoesNotExist as error:
        raise NotFound from error
