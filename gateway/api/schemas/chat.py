"""Chat, completions and models, as the OpenAPI schema describes them."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


class MessageSerializer(serializers.Serializer[Any]):
    role = serializers.CharField(help_text="system, user, assistant or tool.")
    content = serializers.JSONField(help_text="Text, or a list of content parts.")


class StreamOptionsSerializer(serializers.Serializer[Any]):
    include_usage = serializers.BooleanField(required=False, help_text="End the stream with a chunk of token counts.")


class _SamplingSerializer(serializers.Serializer[Any]):
    model = serializers.CharField(help_text="A name from /v1/models.")
    stream = serializers.BooleanField(required=False, default=False, allow_null=True)
    stream_options = StreamOptionsSerializer(required=False, allow_null=True)
    max_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=0)
    n = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=128)
    temperature = serializers.FloatField(required=False, allow_null=True)
    top_p = serializers.FloatField(required=False, allow_null=True)
    seed = serializers.IntegerField(required=False, allow_null=True)


@extend_schema_serializer(component_name="Chat")
class ChatRequestSerializer(_SamplingSerializer):
    """Members that are not listed pass to the engine as they are."""

    messages = MessageSerializer(many=True, allow_empty=False)
    max_completion_tokens = serializers.IntegerField(required=False, allow_null=True, min_value=0)


@extend_schema_serializer(component_name="Completion")
class CompletionRequestSerializer(_SamplingSerializer):
    """Members that are not listed pass to the engine as they are."""

    prompt = serializers.JSONField(help_text="Text, a list of texts, or tokens.")


class UsageSerializer(serializers.Serializer[Any]):
    prompt_tokens = serializers.IntegerField()
    completion_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class ChatChoiceSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    message = MessageSerializer()
    finish_reason = serializers.CharField(allow_null=True)


class ChatResponseSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    object = serializers.CharField()
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = ChatChoiceSerializer(many=True)
    usage = UsageSerializer()


class CompletionChoiceSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField()
    text = serializers.CharField()
    finish_reason = serializers.CharField(allow_null=True)


class CompletionResponseSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    object = serializers.CharField()
    created = serializers.IntegerField()
    model = serializers.CharField()
    choices = CompletionChoiceSerializer(many=True)
    usage = UsageSerializer()


class ServedModelSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    object = serializers.CharField()
    created = serializers.IntegerField()
    owned_by = serializers.CharField()


class ServedModelListSerializer(serializers.Serializer[Any]):
    object = serializers.CharField()
    data = ServedModelSerializer(many=True)  # type: ignore[assignment]  # a name that Serializer has, too
