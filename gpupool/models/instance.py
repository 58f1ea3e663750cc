"""Instances: engine processes that serve one model version, launched by an agent or attached by address."""

from uuid import UUID

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
    ASLEEP = "asleep", "Asleep"  # its weights in host memory, its devices' memory given back
    STOPPED = "stopped", "Stopped"


class MemoryMode(models.TextChoices):
    """How full its KV cache is, and so how many requests it may have at once."""

    FULL = "full", "Full"
    MIXED = "mixed", "Mixed"
    CPU = "cpu", "CPU"


class Instance(TimeOrderedModel):
    version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="instances")
    node = models.ForeignKey(Node, null=True, blank=True, on_delete=models.PROTECT, related_name="instances")
    attached = models.BooleanField(default=False)
    engine = models.CharField(max_length=32)
    state = models.CharField(max_length=12, choices=InstanceState, default=InstanceState.REQUESTED)
    tenant_id = models.UUIDField(null=True, blank=True)  # it serves this tenant and no other
    priority = models.SmallIntegerField(default=0)  # higher ones are preempted and evicted last
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
    kv_capacity_bytes = models.BigIntegerField(null=True, blank=True)  # as the engine measured it
    weights_bytes = models.BigIntegerField(null=True, blank=True, editable=False)  # as well, and the next two
    compute_bytes = models.BigIntegerField(null=True, blank=True, editable=False)
    adapters_bytes = models.BigIntegerField(null=True, blank=True, editable=False)
    device_bytes = models.BigIntegerField(null=True, blank=True)  # in use on its devices now, by its processes
    device_peak_bytes = models.BigIntegerField(null=True, blank=True)
    host_memory_bytes = models.BigIntegerField(default=0)  # claimed on the host beside the devices
    memory_mode = models.CharField(max_length=8, choices=MemoryMode, default=MemoryMode.FULL)
    concurrency_cap = models.PositiveIntegerField(null=True, blank=True)  # what the mode allows; null: no cap
    guard_cap = models.PositiveIntegerField(null=True, blank=True)  # what its node's OOM guard allows; null: no cap
    guard_state = models.CharField(max_length=16, blank=True)  # of the OOM guard; empty: nothing to say
    last_used_at = models.DateTimeField(null=True, blank=True)  # when it last had a request, for eviction
    load_seconds = models.FloatField(null=True, blank=True)  # start to first token, the last time
    wake_seconds = models.FloatField(null=True, blank=True)  # asleep to ready, the last time
    started_from = models.CharField(max_length=8, blank=True)  # cold, staged: where its weights were when it started
    pooled = models.BooleanField(default=False)  # acquired for a tenant: kept beside the version's replicas
    acquisitions = models.PositiveIntegerField(default=0)  # how often it was acquired
    reuses = models.PositiveIntegerField(default=0)  # of them, those that found it there
    restarts = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    state_changed_at = models.DateTimeField(auto_now_add=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    lost_serving = models.BooleanField(default=False, editable=False)  # it served when its node fell silent

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

    @property
    def owner_id(self) -> UUID | None:
        """Whose it is: of the tenant that it is bound to now, else as its version is; None: everybody's."""
        return self.tenant_id or self.version.owner_id
