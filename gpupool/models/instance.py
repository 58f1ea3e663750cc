"""Instances: engine processes that serve one model version, launched by an agent or attached by address."""

from django.db import models

from core.models import TimeOrderedModel
from gpupool.models.catalog import ModelVersion
from gpupool.models.inventory import Node


class InstanceState(models.TextChoices):
    REQUESTED = "requested", "Requested"
    PLACING = "placing", "Placing"
    STAGING = "staging", "Staging"
    LOADING = "loading", "Loading"
    WARMING = "warming", "Warming"
    READY = "ready", "Ready"
    ASLEEP = "asleep", "Asleep"
    DRAINING = "draining", "Draining"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
    UNKNOWN = "unknown", "Unknown"


class InstanceDesire(models.TextChoices):
    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"


class Instance(TimeOrderedModel):
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="instances")
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.PROTECT, related_name="instances")
    attached = models.BooleanField(default=False)
    engine = models.CharField(max_length=32)
    state = models.CharField(max_length=12, choices=InstanceState, default=InstanceState.REQUESTED)
    desire = models.CharField(max_length=8, choices=InstanceDesire, default=InstanceDesire.RUNNING)
    reason = models.TextField(blank=True)  # why it is in this state, in a sentence
    host = models.CharField(max_length=255, blank=True)
    port = models.PositiveIntegerField(null=True, blank=True)
    base_path = models.CharField(max_length=200, blank=True)
    tls = models.BooleanField(default=False)  # https
    credential_variable = models.CharField(max_length=120, blank=True)  # environment variable with the engine's key
    lease_id = models.BigIntegerField(null=True, blank=True)
    fencing_token = models.BigIntegerField(default=0)
    pid = models.PositiveIntegerField(null=True, blank=True)
    process_started_at = models.DateTimeField(null=True, blank=True)
    slots = models.PositiveIntegerField(null=True, blank=True)
    memory_rss_bytes = models.BigIntegerField(null=True, blank=True)
    running_requests = models.PositiveIntegerField(null=True, blank=True)
    waiting_requests = models.PositiveIntegerField(null=True, blank=True)
    kv_used = models.FloatField(null=True, blank=True)
    restarts = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    state_changed_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["version", "state"])]
        constraints = [
            models.UniqueConstraint(
                fields=["host", "port", "base_path", "version"],
                condition=models.Q(attached=True) & ~models.Q(state="stopped"),
                name="gpupool_instance_attached_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.engine} {self.id}"
