"""The control API of placement: will it fit, and what would ease the pool. Nothing is changed by either."""

import math
from dataclasses import replace
from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from core.api.filters import Query
from gpupool.api.base import PoolView
from gpupool.api.resources import HELP, take_resources
from gpupool.engines.base import EngineArgumentsRefused
from gpupool.engines.registry import UnknownEngine, get_engine
from gpupool.models import ModelVersion
from gpupool.policies.estimate import Part
from gpupool.policies.estimate.kv_cache import CACHE_TYPES
from gpupool.policies.isolation import Isolation, IsolationRefused, parse_isolation
from gpupool.policies.placement import Need
from gpupool.policies.version_needs import (
    LARGEST_BYTES,
    LONGEST_TAG,
    MOST_DEVICES,
    PRECISIONS,
    PRIORITIES,
    STRATEGIES,
    TOPOLOGIES,
    shape_fault,
)
from gpupool.reads.dry_run import Answer, Question, answer, of_version
from gpupool.reads.estimates import Asked
from gpupool.reads.placement import mem_limit_bytes, shape_of
from gpupool.reads.rebalance import propose_moves
from tenants.models import Tenant

_ASKED = {
    "devices": "devices",
    "device_kind": "device_kind",
    "context_tokens": "context",
    "cache_type": "cache_type",
    "flash_attention": "flash_attention",
    "batch": "batch",
}
"""Fields of Asked by what they are called here."""
_NEEDS = ("topology", "strategy", "gpu_tag", "priority", "share", "host_memory_bytes", "precision")


def is_number(value: float) -> None:
    """Neither bound of a field refuses what is no number."""
    if not math.isfinite(value):
        raise ValidationError("It is a number.")


class DryRunSerializer(serializers.Serializer[Any]):
    """A version, or how one would be described. What is left out is as the version has it."""

    version = serializers.UUIDField(required=False)
    engine = serializers.CharField(required=False, max_length=32)
    artefact_uri = serializers.CharField(required=False, max_length=500)
    engine_args = serializers.DictField(required=False)
    device_kind = serializers.ChoiceField(choices=("cpu", "gpu"), required=False)
    devices = serializers.IntegerField(required=False, min_value=1, max_value=MOST_DEVICES)
    context_tokens = serializers.IntegerField(
        required=False, min_value=1, max_value=1 << 24, help_text="Tokens: of all slots (llama.cpp) or a sequence."
    )
    batch = serializers.IntegerField(
        required=False, min_value=1, max_value=65_536, help_text="Sequences of that length that are kept at once."
    )
    cache_type = serializers.ChoiceField(choices=sorted(CACHE_TYPES), required=False, help_text="Of the KV cache.")
    flash_attention = serializers.BooleanField(required=False)
    precision = serializers.ChoiceField(choices=PRECISIONS, required=False, help_text="That devices must compute in.")
    memory_bytes = serializers.IntegerField(
        required=False, min_value=1, max_value=LARGEST_BYTES, help_text="Of each device, instead of the estimate."
    )
    host_memory_bytes = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST_BYTES)
    share = serializers.FloatField(required=False, min_value=0.001, max_value=1, validators=(is_number,))
    whole_device = serializers.BooleanField(required=False)
    topology = serializers.ChoiceField(choices=TOPOLOGIES, required=False)
    strategy = serializers.ChoiceField(choices=STRATEGIES, required=False)
    gpu_tag = serializers.CharField(required=False, allow_blank=True, max_length=LONGEST_TAG)
    mem_limit_mb = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=2**31 - 1,
        help_text="At most so much of each device; with a tag 32,768 where it is left out.",
    )
    priority = serializers.ChoiceField(choices=PRIORITIES, required=False)
    isolation = serializers.DictField(required=False)
    request_shape = serializers.DictField(required=False, help_text="batch, sequence_length, precision.")
    tenant = serializers.SlugField(required=False, max_length=63, help_text="Whose it would be.")
    resources = serializers.DictField(required=False, help_text=HELP)


class PartSerializer(serializers.Serializer[Part]):
    """Bytes."""

    layers = serializers.IntegerField()
    weights = serializers.IntegerField()
    kv_cache = serializers.IntegerField()
    compute = serializers.IntegerField(help_text="Activations and attention scratch.")
    graphs = serializers.IntegerField()
    overhead = serializers.IntegerField(source="context", help_text="Of driver, libraries and the process.")
    total = serializers.IntegerField()


class EstimateSerializer(serializers.Serializer[Any]):
    device_bytes = serializers.IntegerField(help_text="To be claimed of each device.")
    file_bytes = serializers.IntegerField()
    offloaded = serializers.BooleanField(help_text="Part of the model is in the host's memory.")
    measured = serializers.BooleanField(help_text="An engine has run so, and what it told is in here.")
    cards = PartSerializer(many=True)
    host = PartSerializer()


class VerdictSerializer(serializers.Serializer[Any]):
    device_id = serializers.UUIDField()
    node = serializers.CharField()
    stable_id = serializers.CharField()
    name = serializers.CharField()
    simulated = serializers.BooleanField()
    memory_bytes = serializers.IntegerField(allow_null=True)
    free_bytes = serializers.IntegerField(allow_null=True)
    fits = serializers.BooleanField()
    chosen = serializers.BooleanField()
    code = serializers.CharField(help_text="The filter that says no; empty for a device that fits.")
    reason = serializers.CharField()
    score = serializers.FloatField(allow_null=True)
    scores = serializers.DictField(child=serializers.FloatField())


class DryRunAnswerSerializer(serializers.Serializer[Any]):
    verdict = serializers.ChoiceField(choices=("fits", "preempts", "waits", "does_not_fit"))
    reason = serializers.CharField()
    memory_bytes = serializers.IntegerField(allow_null=True, help_text="Claimed of each device.")
    host_memory_bytes = serializers.IntegerField()
    devices_needed = serializers.IntegerField()
    estimate = EstimateSerializer(allow_null=True)
    estimate_reason = serializers.CharField(help_text="Why there is no estimate.")
    notes = serializers.ListField(child=serializers.CharField())
    device_count = serializers.IntegerField()
    fitting = serializers.IntegerField()
    devices = VerdictSerializer(many=True)
    preempted = serializers.ListField(child=serializers.UUIDField(), help_text="Instances that would have to go.")
    borrowed_from = serializers.ListField(child=serializers.CharField())
    nearness = serializers.FloatField(allow_null=True, help_text="Of several devices to each other, 0 to 1.")


class MoveSerializer(serializers.Serializer[Any]):
    """An instance that had better be elsewhere; shares are of measured memory after the move."""

    instance_id = serializers.UUIDField()
    from_device = serializers.UUIDField()
    from_label = serializers.CharField()
    to_device = serializers.UUIDField()
    to_label = serializers.CharField()
    memory_bytes = serializers.IntegerField()
    reason = serializers.CharField()
    from_share = serializers.FloatField(allow_null=True)
    to_share = serializers.FloatField()


class RebalanceQuery(Query):
    most = serializers.IntegerField(required=False, min_value=1, max_value=200)


class RebalanceSerializer(serializers.Serializer[Any]):
    moves = MoveSerializer(many=True)


class DryRunView(PoolView):
    """Will it fit?"""

    @extend_schema(request=DryRunSerializer, responses=DryRunAnswerSerializer)
    def post(self, request: Request) -> Response:
        """Place an instance without doing it: the estimate in parts, and of each device whether it fits, or why not."""
        values = self.parsed(DryRunSerializer)
        take_resources(values)
        return Response(DryRunAnswerSerializer(told(answer(question_of(values)))).data)


class RebalanceView(PoolView):
    """Moves that would ease the pool."""

    query_class = RebalanceQuery

    @extend_schema(responses=RebalanceSerializer)
    def get(self, request: Request) -> Response:
        """Proposals only: nobody carries them out."""
        moves, labels = propose_moves(most=self.query.get("most", 20))
        rows = [
            {
                "instance_id": one.instance_id,
                "from_device": one.from_device,
                "from_label": labels[one.from_device],
                "to_device": one.to_device,
                "to_label": labels[one.to_device],
                "memory_bytes": one.memory_bytes,
                "reason": one.reason,
                "from_share": one.from_share,
                "to_share": one.to_share,
            }
            for one in moves
        ]
        return Response(RebalanceSerializer({"moves": rows}).data)


def question_of(values: dict[str, Any]) -> Question:
    """The question that these values ask. Raises ValidationError naming a field."""
    version_id: UUID | None = values.get("version")
    question = _of_description(values) if version_id is None else _of_version(version_id, values)
    need = replace(question.need, **{name: values[name] for name in _NEEDS if name in values})
    if "whole_device" in values:
        need = replace(need, whole=values["whole_device"])
    if "gpu_tag" in values or "mem_limit_mb" in values:
        need = replace(need, mem_limit_bytes=mem_limit_bytes(need.gpu_tag, values.get("mem_limit_mb")))
    if "isolation" in values:
        need = replace(need, isolation=_isolation(values["isolation"]))
    if "request_shape" in values:
        if (found := shape_fault(values["request_shape"])) is not None:
            raise ValidationError({found[0]: [found[1]]})
        need = replace(need, shape=shape_of(values["request_shape"]))
    if "tenant" in values:
        need = replace(need, tenant_id=_tenant(values["tenant"]))
    return replace(question, need=need, memory_bytes=values.get("memory_bytes"))


def told(made: Answer) -> dict[str, Any]:
    """As the serializer wants it."""
    estimate = made.estimate
    return {
        "verdict": made.verdict,
        "reason": made.reason,
        "memory_bytes": made.memory_bytes,
        "host_memory_bytes": made.need.host_memory_bytes,
        "devices_needed": made.need.devices,
        "estimate": estimate,
        "estimate_reason": made.estimate_reason,
        "notes": made.notes,
        "device_count": made.device_count,
        "fitting": made.fitting,
        "devices": made.devices,
        "preempted": made.preempted,
        "borrowed_from": made.borrowed_from,
        "nearness": made.nearness,
    }


def _of_version(version_id: UUID, values: dict[str, Any]) -> Question:
    for name in ("engine", "artefact_uri", "engine_args"):
        if name in values:
            raise ValidationError({name: ["This is the version's own: name a version, or describe one."]})
    try:
        version = ModelVersion.objects.select_related("model").get(pk=version_id)
    except ModelVersion.DoesNotExist as error:
        raise ValidationError({"version": ["There is no such version."]}) from error
    return of_version(version, **_asked(values))


def _of_description(values: dict[str, Any]) -> Question:
    engine, uri = values.get("engine"), values.get("artefact_uri", "")
    if not engine:
        raise ValidationError({"version": ["Name a version, or describe one by its engine and artefact."]})
    try:
        room = get_engine(engine)
        if room.launch is not None:
            room.launch.check_args(values.get("engine_args", {}))
    except UnknownEngine as error:
        raise ValidationError({"engine": [str(error)]}) from error
    except EngineArgumentsRefused as error:
        raise ValidationError({"engine_args": [str(error)]}) from error
    asked = Asked(
        engine=engine,
        artefact_uri=uri,
        engine_args=values.get("engine_args", {}),
        **_asked(values),
    )
    return Question(need=Need(asked.device_kind, 0, devices=asked.devices), asked=asked)


def _asked(values: dict[str, Any]) -> dict[str, Any]:
    return {field: values[name] for name, field in _ASKED.items() if name in values}


def _isolation(asked: dict[str, Any]) -> Isolation:
    try:
        return parse_isolation(asked)
    except IsolationRefused as error:
        raise ValidationError({"isolation": [str(error)]}) from error


def _tenant(slug: str) -> UUID:
    try:
        return Tenant.objects.get(slug=slug).pk
    except Tenant.DoesNotExist as error:
        raise ValidationError({"tenant": ["There is no such tenant."]}) from error
