"""Anthropic's Messages, as the OpenAPI schema describes them."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


class AnthropicMessageSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(["user", "assistant"])
    content = serializers.JSONField(help_text="Text, or a list of content blocks.")


@extend_schema_serializer(component_name="CountTokens")
class CountTokensRequestSerializer(serializers.Serializer[Any]):
    """A Messages request without what is only of use for an answer."""

    model = serializers.CharField(help_text="A name from /v1/models.")
    messages = AnthropicMessageSerializer(many=True, allow_empty=False)
    system = serializers.JSONField(required=False, help_text="Text, or a list of text blocks.")
    tools = serializers.ListField(child=serializers.DictField(), required=False)
    tool_choice = serializers.DictField(required=False)


@extend_schema_serializer(component_name="Messages")
class MessagesRequestSerializer(CountTokensRequestSerializer):
    """A conversation to be answered."""

    max_tokens = serializers.IntegerField(min_value=1)
    stream = serializers.BooleanField(required=False, default=False)
    stop_sequences = serializers.ListField(child=serializers.CharField(), required=False)
    temperature = serializers.FloatField(required=False)
    top_p = serializers.FloatField(required=False)
    top_k = serializers.IntegerField(required=False)
    metadata = serializers.DictField(required=False)


class AnthropicUsageSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()


class MessageResponseSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    type = serializers.CharField(default="message")
    role = serializers.CharField(default="assistant")
    model = serializers.CharField()
    content = serializers.ListField(child=serializers.DictField(), help_text="Blocks: text, thinking, tool_use.")
    stop_reason = serializers.CharField(allow_null=True)
    stop_sequence = serializers.CharField(allow_null=True)
    usage = AnthropicUsageSerializer()


class CountTokensResponseSerializer(serializers.Serializer[Any]):
    input_tokens = serializers.IntegerField()
