"""Shapes of versions in the control API."""

from typing import Any, Final

from rest_framework import serializers

from gpupool.api.resources import HELP as RESOURCES
from gpupool.models import ModelVersion
from gpupool.policies.manifest import CHUNK_BYTES, MOST_FILES
from gpupool.policies.simulated import is_simulated
from gpupool.policies.version_needs import (
    LARGEST_BYTES,
    LONGEST_TAG,
    MOST_DEVICES,
    PRIORITIES,
    STRATEGIES,
    TOPOLOGIES,
)

_HEX: Final = "^[0-9a-f]{64}$"
_NEEDS: Final = (
    "host_memory_bytes", "devices", "share", "whole_device", "topology", "strategy", "gpu_tag", "mem_limit_mb",
    "priority", "isolation", "request_shape", "idle_sleep_seconds", "device_seconds",
)  # fmt: skip


class VersionSerializer(serializers.ModelSerializer[ModelVersion]):
    """One artefact of a model, and how an engine runs it."""

    model = serializers.CharField(source="model.name", read_only=True)
    model_id = serializers.UUIDField(read_only=True)
    has_manifest = serializers.SerializerMethodField(help_text="Its files are checked before they are loaded.")
    has_card = serializers.SerializerMethodField()
    simulated = serializers.SerializerMethodField(help_text="Its instances compute nothing: answers are made up.")

    class Meta:
        model = ModelVersion
        fields = (
            "id", "model", "model_id", "name", "engine", "served_name", "artefact_uri", "engine_args", "memory_bytes",
            "device_kind", *_NEEDS, "tenant_id", "replicas", "state", "state_reason", "has_manifest", "has_card",
            "simulated", "checks", "admitted_at", "last_stable_at", "created_at",
        )  # fmt: skip
        read_only_fields = fields

    def get_simulated(self, version: ModelVersion) -> bool:
        return is_simulated(version.artefact_uri)

    def get_has_manifest(self, version: ModelVersion) -> bool:
        return bool(version.manifest)

    def get_has_card(self, version: ModelVersion) -> bool:
        return bool(version.card)


class _ManifestFileSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(max_length=1024, help_text="Within the artefact's folder.")
    bytes = serializers.IntegerField(min_value=0, max_value=LARGEST_BYTES)
    sha256 = serializers.RegexField(_HEX)
    tree = serializers.RegexField(
        _HEX, required=False, help_text="SHA-256 over the SHA-256 digests of its chunks: these are hashed side by side."
    )


class ManifestSerializer(serializers.Serializer[Any]):
    """The files of an artefact."""

    version = serializers.IntegerField(min_value=1, max_value=1, required=False, default=1)
    chunk_bytes = serializers.IntegerField(min_value=64 << 10, max_value=1 << 30, required=False, default=CHUNK_BYTES)
    files = serializers.ListField(child=_ManifestFileSerializer(), min_length=1, max_length=MOST_FILES)


class VersionChangeSerializer(serializers.Serializer[Any]):
    """What can be changed of a draft."""

    served_name = serializers.CharField(
        max_length=200,
        required=False,
        allow_blank=True,
        help_text="As the engine knows it; the model's name when empty.",
    )
    artefact_uri = serializers.CharField(
        max_length=500, required=False, allow_blank=True, help_text="package:MODULE/FILE or file:///PATH, on nodes."
    )
    engine_args = serializers.DictField(required=False)
    memory_bytes = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=LARGEST_BYTES,
        help_text="On each of its devices; 0: as it is estimated, where its files can be read here.",
    )
    device_kind = serializers.ChoiceField(choices=("cpu", "gpu"), required=False)
    host_memory_bytes = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST_BYTES)
    devices = serializers.IntegerField(required=False, min_value=1, max_value=MOST_DEVICES)
    share = serializers.FloatField(required=False, allow_null=True, help_text="Of each device's compute, 0 to 1.")
    whole_device = serializers.BooleanField(required=False)
    topology = serializers.ChoiceField(choices=TOPOLOGIES, required=False)
    strategy = serializers.ChoiceField(choices=STRATEGIES, required=False)
    gpu_tag = serializers.CharField(max_length=LONGEST_TAG, required=False, allow_blank=True)
    mem_limit_mb = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=2**31 - 1,
        help_text="At most so much of each device may be claimed; with a tag 32,768 where it is left out.",
    )
    priority = serializers.ChoiceField(choices=PRIORITIES, required=False)
    isolation = serializers.DictField(required=False, help_text="sandbox, cgroup, cpu_cores, mps, mps_clients.")
    request_shape = serializers.DictField(required=False, help_text="batch, sequence_length, precision.")
    idle_sleep_seconds = serializers.FloatField(required=False, allow_null=True)
    device_seconds = serializers.FloatField(required=False, allow_null=True)
    tenant_id = serializers.UUIDField(
        required=False, allow_null=True, help_text="A version of this tenant's own, of a model that others share."
    )


class NewVersionSerializer(VersionChangeSerializer):
    model = serializers.CharField(max_length=200, help_text="Name of a model.")
    name = serializers.CharField(max_length=80)
    engine = serializers.CharField(max_length=32)
    replicas = serializers.IntegerField(required=False, default=0, min_value=0, max_value=1000)
    manifest = ManifestSerializer(required=False)
    resources = serializers.DictField(required=False, help_text=RESOURCES)
    draft = serializers.BooleanField(required=False, default=False, help_text="It does not serve yet.")


class ReplicasSerializer(serializers.Serializer[Any]):
    replicas = serializers.IntegerField(min_value=0, max_value=1000)


class AdmitSerializer(serializers.Serializer[Any]):
    bundle = serializers.DictField(
        required=False, allow_null=True, default=None, help_text="Sigstore bundle of the manifest or its files."
    )
    sbom = serializers.DictField(
        required=False, allow_null=True, default=None, help_text="CycloneDX or SPDX 2, in JSON, of the artefact."
    )


class SwitchSerializer(serializers.Serializer[Any]):
    instead_of = serializers.UUIDField(help_text="The version that is retired in the same step.")


class CardSerializer(serializers.Serializer[Any]):
    card = serializers.DictField(read_only=True)
    faults = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="What admission would say against it."
    )


class _LineageAdapterSerializer(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    name = serializers.CharField()
    rank = serializers.IntegerField()
    sha256 = serializers.CharField()
    job_id = serializers.UUIDField(allow_null=True)
    training_file_sha256 = serializers.CharField(allow_null=True)


class LineageSerializer(serializers.Serializer[Any]):
    """Null where nobody said."""

    model = serializers.CharField()
    version = serializers.CharField()
    manifest_sha256 = serializers.CharField(allow_null=True)
    licence = serializers.CharField(allow_null=True)
    base_models = serializers.ListField(child=serializers.DictField())
    data_sets = serializers.ListField(child=serializers.DictField())
    undisclosed_data = serializers.CharField(allow_null=True)
    admitted_at = serializers.DateTimeField(allow_null=True)
    signature = serializers.DictField(allow_null=True)
    sbom = serializers.DictField(allow_null=True)
    adapters = _LineageAdapterSerializer(many=True)
