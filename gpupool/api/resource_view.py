"""A device's memories and what computes there, as the API shows them: see gpupool.discovery.resource_view."""

from typing import Any, Final

import msgspec
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from gpupool.discovery.resource_view import view_of_stored
from gpupool.models import Device

MEMORY_TYPES: Final = (
    (0, "VRAM"),
    (1, "pinned host memory"),
    (2, "memory that CPU and GPU have in common"),
    (3, "shared"),
)
_OF_DATA_SHEETS: Final = "From data sheets: not measured on this device; null where none is known."


class MemoryRegionViewSerializer(serializers.Serializer[Any]):
    base = serializers.IntegerField()
    size = serializers.IntegerField(allow_null=True, help_text="Bytes; null where it is not known.")
    mem_type = serializers.ChoiceField(choices=MEMORY_TYPES)
    mem_type_name = serializers.CharField()
    access = serializers.IntegerField(
        min_value=0, max_value=15, help_text="A mask: 1 read, 2 write, 4 atomic operations, 8 compute."
    )
    access_names = serializers.ListField(child=serializers.CharField())
    packed = serializers.IntegerField(help_text="Type in bits 0 to 2, access from bit 3 on.")
    latency_ns = serializers.FloatField(
        allow_null=True, help_text="Of the class of memory, from a catalogue: not measured on this device."
    )


class ResourceViewSerializer(serializers.Serializer[Any]):
    device_id = serializers.CharField()
    vendor = serializers.CharField()
    interface = serializers.CharField(help_text="cuda, hip, level-zero or cpu; empty where none is known.")
    regions = MemoryRegionViewSerializer(many=True)
    tensor_cores = serializers.BooleanField(allow_null=True)
    precisions = serializers.ListField(child=serializers.CharField())
    compute_units = serializers.IntegerField(allow_null=True)
    peak_tflops = serializers.FloatField(allow_null=True, help_text=f"Dense, at half precision. {_OF_DATA_SHEETS}")
    memory_bandwidth = serializers.FloatField(
        allow_null=True, help_text=f"Bytes a second of its own memory. {_OF_DATA_SHEETS}"
    )
    link_bandwidth = serializers.FloatField(
        allow_null=True, help_text=f"Bytes a second to all its peers together, both directions. {_OF_DATA_SHEETS}"
    )


@extend_schema_field(ResourceViewSerializer(allow_null=True))
class ResourceViewField(serializers.Field[Any, Any, Any, Any]):
    """Of a device's row; null where what its agent told has another shape."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(read_only=True, source="*", **kwargs)

    def to_representation(self, value: Device) -> dict[str, Any] | None:
        try:
            return view_of_stored(
                stable_id=value.stable_id, vendor=value.vendor, regions=value.regions, capability=value.capability
            )
        except (msgspec.ValidationError, ValueError, TypeError):
            return None
