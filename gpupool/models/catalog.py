"""The catalogue: models by the name that applications use, and their versions."""

from django.db import models

from core.models import TimeOrderedModel


class Model(TimeOrderedModel):
    """A name at the door. `tenant_id` makes it private to one tenant."""

    name = models.CharField(max_length=200, unique=True)
    description = models.TextField(blank=True)
    tenant_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    DRAFT = "draft", "Draft"
    ADMITTED = "admitted", "Admitted"
    SERVING = "serving", "Serving"
    RETIRED = "retired", "Retired"


class ModelVersion(TimeOrderedModel):
    """One artefact of a model and how an engine runs it."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    name = models.CharField(max_length=80)
    engine = models.CharField(max_length=32)
    artefact_uri = models.CharField(max_length=500, blank=True)  # empty: attached engines only
    served_name = models.CharField(max_length=200)  # the name that the engine knows it by
    engine_args = models.JSONField(default=dict, blank=True)
    memory_bytes = models.BigIntegerField(default=0)  # claimed on its device, estimate with KV cache and buffers
    device_kind = models.CharField(max_length=8, default="gpu")  # cpu, gpu
    replicas = models.PositiveIntegerField(default=0)  # instances the controller keeps
    state = models.CharField(max_length=10, choices=VersionState, default=VersionState.DRAFT)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="gpupool_version_once")]

    def __str__(self) -> str:
        return f"{self.model_id} {self.name}"
