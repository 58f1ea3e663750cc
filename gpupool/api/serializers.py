"""Shapes of the control API: what it takes and what it tells."""

from typing import Any

from rest_framework import serializers


class AttachSerializer(serializers.Serializer[Any]):
    url = serializers.CharField(
        max_length=500, help_text="where the engine answers, for example http://host:8000 or https://host"
    )
    engine = serializers.CharField(max_length=32)
    model = serializers.CharField(max_length=200, help_text="the name that applications use; made where missing")
    served_name = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    version = serializers.CharField(max_length=80, required=False, default="", allow_blank=True)
    credential_variable = serializers.CharField(
        max_length=120,
        required=False,
        default="",
        allow_blank=True,
        help_text="variable GATEHOUSE_ENGINE_KEY... in the environment of relay and controller: the engine's key",
    )
    slots = serializers.IntegerField(required=False, allow_null=True, default=None, min_value=1, max_value=100_000)


class EngineSerializer(serializers.Serializer[Any]):
    """An engine that can be used here, what it can do, and its switch."""

    name = serializers.CharField()
    title = serializers.CharField()
    package = serializers.CharField(help_text="the package that brought it")
    protocol = serializers.CharField(help_text="the words it is spoken to in")
    versions = serializers.CharField(help_text="of the engine itself, for example >=0.6; empty: any")
    capabilities = serializers.ListField(child=serializers.CharField())
    launchable = serializers.BooleanField(help_text="the pool can start it; else a running one is attached")
    batching = serializers.CharField(help_text="continuous, slots, server; empty: not known")
    grain = serializers.CharField(help_text="what keeps its models apart: process, shared, outside (whoever starts it)")
    logprobs = serializers.BooleanField(
        allow_null=True, help_text="answers tell probabilities of tokens; null: not known"
    )
    counts_tokens = serializers.BooleanField(help_text="it tells how many tokens it has worked on")
    tells_memory = serializers.BooleanField(help_text="it tells what it made of its memory")
    enabled = serializers.BooleanField()
    instances = serializers.IntegerField(help_text="that have not stopped")
    serving = serializers.IntegerField(help_text="of those, that take requests, or would if it were enabled")


class BrokenPluginSerializer(serializers.Serializer[Any]):
    """An engine that a package names, but that cannot be used."""

    name = serializers.CharField()
    package = serializers.CharField()
    reason = serializers.CharField()


class EnginesSerializer(serializers.Serializer[Any]):
    results = EngineSerializer(many=True)
    broken = BrokenPluginSerializer(many=True)


class EngineSwitchSerializer(serializers.Serializer[Any]):
    enabled = serializers.BooleanField()


class ReasonSerializer(serializers.Serializer[Any]):
    """Why an instance is stopped, put to sleep, woken or released, for the audit log and the instance itself."""

    reason = serializers.CharField(max_length=500, required=False, default="", allow_blank=True)
