"""Embeddings, rerank and tokenize, as the OpenAPI schema describes them."""

from typing import Any

from drf_spectacular.utils import extend_schema_serializer
from rest_framework import serializers


@extend_schema_serializer(component_name="Embeddings")
class EmbeddingsRequestSerializer(serializers.Serializer[Any]):
    """Members that are not listed pass to the engine as they are."""

    model = serializers.CharField(help_text="A name from /v1/models.")
    input = serializers.JSONField(help_text="Text, a list of texts, or tokens.")
    encoding_format = serializers.ChoiceField(["float", "base64"], required=False)
    dimensions = serializers.IntegerField(required=False, allow_null=True, min_value=1)


class EmbeddingSerializer(serializers.Serializer[Any]):
    object = serializers.CharField()
    index = serializers.IntegerField()
    embedding = serializers.JSONField(help_text="Numbers; or their bytes in base64, where that was asked for.")


class InputUsageSerializer(serializers.Serializer[Any]):
    prompt_tokens = serializers.IntegerField()
    total_tokens = serializers.IntegerField()


class EmbeddingsResponseSerializer(serializers.Serializer[Any]):
    object = serializers.CharField()
    data = EmbeddingSerializer(many=True)  # type: ignore[assignment]  # a name that Serializer has, too
    model = serializers.CharField()
    usage = InputUsageSerializer()


@extend_schema_serializer(component_name="Rerank")
class RerankRequestSerializer(serializers.Serializer[Any]):
    """Members that are not listed pass to the engine as they are."""

    model = serializers.CharField(help_text="A name from /v1/models.")
    query = serializers.CharField()
    documents = serializers.ListField(child=serializers.JSONField(), allow_empty=False)
    top_n = serializers.IntegerField(required=False, allow_null=True, min_value=1)


class RerankResultSerializer(serializers.Serializer[Any]):
    index = serializers.IntegerField(help_text="Which of the documents, from 0.")
    relevance_score = serializers.FloatField()


class RerankResponseSerializer(serializers.Serializer[Any]):
    model = serializers.CharField()
    results = RerankResultSerializer(many=True)
    usage = InputUsageSerializer(required=False)


@extend_schema_serializer(component_name="Tokenize")
class TokenizeRequestSerializer(serializers.Serializer[Any]):
    """Either `prompt` or `messages`. Members that are not listed pass to the engine as they are."""

    model = serializers.CharField(help_text="A name from /v1/models.")
    prompt = serializers.CharField(required=False)
    messages = serializers.ListField(child=serializers.JSONField(), required=False)
    add_special_tokens = serializers.BooleanField(required=False)


class TokenizeResponseSerializer(serializers.Serializer[Any]):
    count = serializers.IntegerField()
    max_model_len = serializers.IntegerField(required=False, allow_null=True)
    tokens = serializers.ListField(child=serializers.IntegerField())
