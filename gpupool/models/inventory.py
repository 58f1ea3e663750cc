"""Nodes and their devices, as their agents report them."""

from django.db import models

from core.models import TimeOrderedModel


class NodeState(models.TextChoices):
    EXPECTED = "expected", "Expected"  # has a token, never connected
    ONLINE = "online", "Online"
    UNREACHABLE = "unreachable", "Unreachable"


class Node(TimeOrderedModel):
    """A machine with an agent."""

    name = models.CharField(max_length=120, unique=True)
    state = models.CharField(max_length=12, choices=NodeState, default=NodeState.EXPECTED)
    cordoned = models.BooleanField(default=False)  # nothing new is placed there
    maintenance = models.BooleanField(default=False)  # cordoned, and what runs there moves away
    maintenance_reason = models.CharField(max_length=500, blank=True)
    simulated = models.BooleanField(default=False)  # its agent made its devices up, for demonstration
    capabilities = models.JSONField(default=dict, blank=True)  # what it can isolate by: see agent.capabilities
    token_digest = models.CharField(max_length=64, unique=True)
    token_last_four = models.CharField(max_length=4)
    token_revoked_at = models.DateTimeField(null=True, blank=True)
    boot_id = models.CharField(max_length=64, blank=True)
    address = models.CharField(max_length=255, blank=True)
    agent_version = models.CharField(max_length=32, blank=True)
    facts = models.JSONField(default=dict, blank=True)
    session_id = models.UUIDField(null=True, blank=True)  # the stream that speaks for it now
    last_seen_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name

    @property
    def token_mark(self) -> str:
        """Which token it has now: another one has another mark, and so has one that was revoked since."""
        return self.token_last_four + ("-revoked" if self.token_revoked_at else "")


class Device(TimeOrderedModel):
    """One device that instances can claim memory of. Null sizes are unknown, not zero."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="devices")
    stable_id = models.CharField(max_length=200)
    kind = models.CharField(max_length=8)  # cpu, gpu
    vendor = models.CharField(max_length=16)
    name = models.CharField(max_length=200)
    index = models.PositiveIntegerField(null=True)
    memory_bytes = models.BigIntegerField(null=True)
    memory_used_bytes = models.BigIntegerField(null=True)
    utilization = models.FloatField(null=True)
    temperature_celsius = models.FloatField(null=True)
    health = models.CharField(max_length=8, default="unknown")
    facts = models.JSONField(default=dict, blank=True)
    present = models.BooleanField(default=True)
    observed_at = models.DateTimeField(null=True)
    simulated = models.BooleanField(default=False)
    traceable_id = models.CharField(max_length=250, blank=True)  # A100_PCIe_0000:17:00.0_abc123de
    allocatable = models.BooleanField(default=True)  # not a MIG parent
    partition_of = models.CharField(max_length=200, blank=True)  # stable id of the whole that it is a part of
    tags = models.JSONField(default=list, blank=True)  # what `gpu_tag` is compared with, e.g. A100-40GB
    regions = models.JSONField(default=list, blank=True)  # discovery.base.MemoryRegion
    capability = models.JSONField(default=dict, blank=True)  # discovery.base.Capability
    links = models.JSONField(default=list, blank=True)  # discovery.base.Link
    telemetry = models.JSONField(default=dict, blank=True)  # newest readings, by DCGM-like names with units
    processes = models.JSONField(default=list, blank=True)  # discovery.base.DeviceProcess
    isolated_at = models.DateTimeField(null=True)  # taken out by healing or a person until given back
    isolated_reason = models.CharField(max_length=500, blank=True)
    isolated_by = models.CharField(max_length=8, blank=True)  # person, healing, support: who gives it back
    isolated_boot_id = models.CharField(max_length=64, blank=True)  # of its node then

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "stable_id"], name="gpupool_device_once")]

    def __str__(self) -> str:
        return self.stable_id
