"""OpenAI's Responses, as the OpenAPI schema describes them."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


@extend_schema_serializer(component_name="Responses")
class ResponsesRequestSerializer(serializers.Serializer[Any]):
    """Items of a conversation to be answered."""

    model = serializers.CharField(help_text="A name from /v1/models.")
    input = serializers.JSONField(help_text="Text, or a list of items.")
    instructions = serializers.CharField(required=False, allow_null=True)
    previous_response_id = serializers.CharField(required=False, allow_null=True)
    store = serializers.BooleanField(required=False, allow_null=True)
    stream = serializers.BooleanField(required=False, default=False, allow_null=True)
    max_output_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=1)
    temperature = serializers.FloatField(required=False, allow_null=True)
    top_p = serializers.FloatField(required=False, allow_null=True)
    tools = serializers.ListField(child=serializers.DictField(), required=False)
    tool_choice = serializers.JSONField(required=False)
    text = serializers.DictField(required=False, help_text="`format`: text, json_object or json_schema.")
    metadata = serializers.DictField(required=False, allow_null=True)


class ResponseUsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class ResponseSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    object = serializers.CharField()
    created_at = serializers.IntegerField()
    status = serializers.CharField(help_text="completed, incomplete or failed.")
    model = serializers.CharField()
    output = serializers.ListField(child=serializers.DictField(), help_text="Items: message, reasoning, function_call.")
    previous_response_id = serializers.CharField(allow_null=True)
    usage = ResponseUsageSerializer(allow_null=True)
