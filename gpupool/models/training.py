"""Fine-tuning: what a tenant uploads, the jobs that it asks for, and the adapters that come of them."""

from typing import Any

from django.db import models
from django.db.models import Q

from core.models import TimeOrderedModel
from gpupool.models.catalog import ModelVersion
from gpupool.policies.training import ENDED, JobState


class TrainingFile(TimeOrderedModel):
    """Examples that a tenant uploaded. The bytes lie in the training folder, by tenant and digest."""

    tenant_id = models.UUIDField()
    key_id = models.UUIDField(null=True)
    subject_id = models.UUIDField(null=True)
    filename = models.CharField(max_length=255)  # as the client calls it; never a path of ours
    purpose = models.CharField(max_length=32)
    bytes = models.BigIntegerField()
    examples = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant_id", "id"], name="gpupool_trainingfile_tenant")]

    def __str__(self) -> str:
        return f"{self.filename} of {self.tenant_id}"


class FineTuningJob(TimeOrderedModel):
    """One training, asked for by a key; its states are a table in gpupool.policies.training."""

    tenant_id = models.UUIDField()
    tenant_slug = models.CharField(max_length=64)
    key_id = models.UUIDField(null=True)
    subject_id = models.UUIDField(null=True)
    model = models.CharField(max_length=200)  # the base's name, as it was asked for
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="+")
    suffix = models.CharField(max_length=64, blank=True)
    training_file_id = models.UUIDField()
    validation_file_id = models.UUIDField(null=True)
    hyperparameters = models.JSONField(default=dict)
    method = models.CharField(max_length=16, default="supervised")
    seed = models.BigIntegerField(default=0)
    metadata = models.JSONField(default=dict)
    state = models.CharField(
        max_length=10, choices=[(state.value, state.value.title()) for state in JobState], default=JobState.QUEUED
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    trained_tokens = models.BigIntegerField(null=True)
    steps = models.PositiveIntegerField(null=True)  # the last that the trainer told of
    error_code = models.CharField(max_length=64, blank=True)
    error_message = models.CharField(max_length=1000, blank=True)

    # Its process. It outlives the worker that started it, so what is needed to find it again is kept here.
    runner_live = models.BooleanField(default=False)  # may exist; also of a job that was cancelled, until it is gone
    runner_host = models.CharField(max_length=255, blank=True)
    runner_pid = models.PositiveIntegerField(null=True)
    runner_mark = models.CharField(max_length=120, blank=True)  # boot and start time: pids come again
    seen_at = models.DateTimeField(null=True)  # when a worker of that host last looked after it
    read_bytes = models.BigIntegerField(default=0)  # of what the trainer told, how much is events already

    class Meta:
        indexes = [
            models.Index(fields=["tenant_id", "id"], name="gpupool_job_tenant"),
            models.Index(fields=["state", "id"], name="gpupool_job_state"),
            models.Index(fields=["id"], name="gpupool_job_live", condition=Q(runner_live=True)),
        ]

    def __str__(self) -> str:
        return f"fine-tuning of {self.model} ({self.state})"

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class FineTuningEvent(TimeOrderedModel):
    """What happened in a job; `data` has a step's measures where `kind` is metrics."""

    job = models.ForeignKey(FineTuningJob, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=8, default="message")  # message, metrics
    level = models.CharField(max_length=5, default="info")  # info, warn, error
    message = models.CharField(max_length=2000)
    data: Any = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["job", "id"], name="gpupool_event_job")]

    def __str__(self) -> str:
        return self.message


class AdapterState(models.TextChoices):
    STORED = "stored", "Stored"
    RETIRED = "retired", "Retired"


class Adapter(TimeOrderedModel):
    """Weights that go on top of the version that they were trained on, and on no other."""

    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="adapters")
    tenant_id = models.UUIDField(null=True)  # private to that tenant
    job = models.OneToOneField(FineTuningJob, null=True, on_delete=models.SET_NULL, related_name="adapter")
    name = models.CharField(max_length=400, unique=True)
    artefact_uri = models.CharField(max_length=500)  # a folder
    sha256 = models.CharField(max_length=64)  # of the weights
    size_bytes = models.BigIntegerField()
    rank = models.PositiveIntegerField()
    alpha = models.FloatField(default=0)
    target_modules = models.JSONField(default=list)
    state = models.CharField(max_length=10, choices=AdapterState, default=AdapterState.STORED)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant_id", "id"], name="gpupool_adapter_tenant")]

    def __str__(self) -> str:
        return self.name
