"""The pool in the backoffice. Leases, instances and devices are what agents and controller say: read-only here."""

from uuid import UUID

from django.contrib import admin
from django.http import HttpRequest

from core.epochs import Section
from gpupool.models import Device, Instance, InstanceState, Lease, Model, ModelVersion, Node
from tenants.breakglass import BreakGlassAdmin, ReadOnlyAdmin


@admin.register(Model)
class ModelAdmin(BreakGlassAdmin):
    section = Section.MODELS
    list_display = ("name", "tenant_id", "created_at")
    search_fields = ("name",)


@admin.register(ModelVersion)
class ModelVersionAdmin(BreakGlassAdmin):
    fixed_fields = ("model",)
    fields = (
        "model", "name", "engine", "artefact_uri", "served_name", "engine_args", "memory_bytes", "device_kind",
        "replicas", "state", "checks", "admitted_at",
    )  # fmt: skip
    readonly_fields = ("checks", "admitted_at")  # what admission found is nobody's to write
    list_display = ("model", "name", "engine", "replicas", "state")
    list_select_related = ("model",)

    def changed_by(self, obj: ModelVersion) -> list[tuple[Section, UUID]]:
        """The model is at the door while a version serves it, and its endpoints carry the version's name."""
        running = Instance.objects.filter(version=obj).exclude(state=InstanceState.STOPPED).order_by("pk")
        endpoints = [(Section.ENDPOINTS, pk) for pk in running.values_list("pk", flat=True)]
        return [(Section.MODELS, obj.model_id), *endpoints, (Section.POOL, obj.pk)]


@admin.register(Node)
class NodeAdmin(BreakGlassAdmin):
    section = Section.POOL
    list_display = ("name", "state", "cordoned", "address", "last_seen_at")
    fields = ("name", "cordoned", "state", "address", "agent_version", "last_seen_at")
    readonly_fields = ("name", "state", "address", "agent_version", "last_seen_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # `create_node` shows the token once; a form cannot


@admin.register(Device)
class DeviceAdmin(ReadOnlyAdmin):
    list_display = ("stable_id", "node", "kind", "vendor", "memory_bytes", "health", "present")
    list_select_related = ("node",)


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = ("device", "holder", "memory_bytes", "status", "fencing_token", "claimed_at", "released_at")
    list_select_related = ("device",)


@admin.register(Instance)
class InstanceAdmin(ReadOnlyAdmin):
    list_display = ("id", "version", "node", "state", "desire", "host", "port", "restarts")
    list_select_related = ("version", "node")
