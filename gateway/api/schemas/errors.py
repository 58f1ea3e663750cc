"""Errors in the shapes that clients know."""

from typing import Any

from rest_framework import serializers


class ErrorDetailSerializer(serializers.Serializer[Any]):
    message = serializers.CharField()
    type = serializers.CharField()
    param = serializers.CharField(allow_null=True)
    code = serializers.CharField()


class ErrorSerializer(serializers.Serializer[Any]):
    error = ErrorDetailSerializer()


class AnthropicErrorDetailSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    message = serializers.CharField()


class AnthropicErrorSerializer(serializers.Serializer[Any]):
    """As clients of Anthropic's API know errors."""

    type = serializers.CharField(default="error")
    error = AnthropicErrorDetailSerializer()
    request_id = serializers.CharField()
