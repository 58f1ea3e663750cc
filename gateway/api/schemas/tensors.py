"""The Open Inference Protocol, as the OpenAPI schema describes it."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


class TensorSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    shape = serializers.ListField(child=serializers.IntegerField())
    datatype = serializers.CharField(help_text="BOOL, UINT8 to UINT64, INT8 to INT64, FP16 to FP64, BYTES.")
    parameters = serializers.JSONField(required=False)
    data = serializers.JSONField(help_text="The values in row-major order, flat or nested.")  # type: ignore[assignment]  # a name that Serializer has, too


class RequestedOutputSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    parameters = serializers.JSONField(required=False)


@extend_schema_serializer(component_name="Infer")
class InferRequestSerializer(serializers.Serializer[Any]):
    """Passed to the engine as it is. Binary tensors are refused."""

    id = serializers.CharField(required=False, help_text="Told again in the answer.")
    parameters = serializers.JSONField(required=False)
    inputs = TensorSerializer(many=True)
    outputs = RequestedOutputSerializer(many=True, required=False)


class InferResponseSerializer(serializers.Serializer[Any]):
    model_name = serializers.CharField(help_text="The name that was asked for.")
    model_version = serializers.CharField(required=False)
    id = serializers.CharField(required=False)
    parameters = serializers.JSONField(required=False)
    outputs = TensorSerializer(many=True)


class InferModelSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    platform = serializers.CharField(required=False)
    ready = serializers.BooleanField(required=False, help_text="Where `/ready` was asked for.")


class InferErrorSerializer(serializers.Serializer[Any]):
    """As clients of the Open Inference Protocol know errors."""

    error = serializers.CharField(help_text="What is wrong, in a sentence.")
