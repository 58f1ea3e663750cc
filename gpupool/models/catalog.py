"""The catalogue: models by the name that applications use, and their versions."""

from typing import Final
from uuid import UUID

from django.core.exceptions import ValidationError
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

    def clean(self) -> None:
        """For the backoffice; services take names by gpupool.services.names."""
        if ModelAlias.objects.filter(name=self.name).exists():
            raise ValidationError({"name": f"{self.name!r} is another name of a model already."})


class ModelAlias(TimeOrderedModel):
    """Another name at the door for a model; applications that call it see it again in their answers."""

    name = models.CharField(max_length=200, unique=True)
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="aliases")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class VersionState(models.TextChoices):
    DRAFT = "draft", "Draft"
    ADMITTED = "admitted", "Admitted"
    SERVING = "serving", "Serving"
    RETIRED = "retired", "Retired"


RUNS: Final = frozenset({VersionState.ADMITTED, VersionState.SERVING})
"""An admitted version's instances load before it serves, so that it can take another's place at once."""

PAPERS: Final = ("manifest", "card", "checks")
PAPERS_OF_VERSION: Final = tuple(f"version__{name}" for name in PAPERS)
"""Large, and for admission and pages alone: whoever looks every second defers them."""


class ModelVersion(TimeOrderedModel):
    """One artefact of a model and how an engine runs it."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    name = models.CharField(max_length=80)
    engine = models.CharField(max_length=32)
    artefact_uri = models.CharField(max_length=500, blank=True)  # empty: attached engines only
    served_name = models.CharField(max_length=200)  # the name that the engine knows it by
    engine_args = models.JSONField(default=dict, blank=True)
    memory_bytes = models.BigIntegerField(default=0)  # claimed on its device, estimate with KV cache and buffers
    host_memory_bytes = models.BigIntegerField(default=0)  # claimed of the host beside it (weights asleep, pinned)
    device_kind = models.CharField(max_length=8, default="gpu")  # cpu, gpu
    devices = models.PositiveSmallIntegerField(default=1)  # that one instance spans; memory_bytes is for each
    share = models.FloatField(null=True, blank=True)  # of each device's compute, 0 to 1; null: not limited
    whole_device = models.BooleanField(default=False)  # nobody beside it
    topology = models.CharField(max_length=10, default="preferred")  # required, preferred, any: links between devices
    strategy = models.CharField(max_length=6, default="spread")  # spread, pack
    gpu_tag = models.CharField(max_length=80, blank=True)  # only on devices with this tag
    mem_limit_mb = models.PositiveIntegerField(null=True, blank=True)  # at most so much of each device may be claimed
    priority = models.SmallIntegerField(default=0)  # -1 low, 0 normal, 1 high
    isolation = models.JSONField(default=dict, blank=True)  # see policies.isolation: sandbox, mps, cgroup
    request_shape = models.JSONField(default=dict, blank=True)  # batch, sequence_length, precision: for placement
    tenant_id = models.UUIDField(null=True, blank=True)  # a version of that tenant's own, of a model that others share
    manifest = models.JSONField(default=dict, blank=True)  # sha256 by file: see policies.manifest
    card = models.JSONField(default=dict, blank=True)  # model-card.yaml, as it was read
    checks = models.JSONField(default=dict, blank=True)  # what admission found: manifest, card, signature, sbom
    admitted_at = models.DateTimeField(null=True, blank=True)
    last_stable_at = models.DateTimeField(null=True, blank=True)  # when an instance of it was last ready
    rolled_back_at = models.DateTimeField(null=True, blank=True, editable=False)  # what failed before is answered
    replicas = models.PositiveIntegerField(default=0)  # instances the controller keeps
    idle_sleep_seconds = models.FloatField(null=True, blank=True)  # without requests until it sleeps; null: the setting
    device_seconds = models.FloatField(null=True, blank=True)  # longest load onto its devices; null: the setting
    state_reason = models.TextField(blank=True)  # why it is in its state, where something else than a person decided
    state = models.CharField(max_length=10, choices=VersionState, default=VersionState.DRAFT)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="gpupool_version_once")]

    def __str__(self) -> str:
        return f"{self.model_id} {self.name}"

    @property
    def owner_id(self) -> UUID | None:
        """Whose it is alone; None: everybody's who may use the model."""
        return self.tenant_id or self.model.tenant_id
