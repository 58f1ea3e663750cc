"""What went wrong with devices and what was done about it."""

from typing import Final

from django.db import models

from core.models import TimeOrderedModel
from gpupool.models.instance import Instance
from gpupool.models.inventory import Device, Node


class DeviceEvent(TimeOrderedModel):
    """One thing that a node's agent noticed. Numbered by the agent, so that the same error twice is two events."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="events")
    device = models.ForeignKey(Device, null=True, on_delete=models.SET_NULL, related_name="events")
    boot_id = models.CharField(max_length=64)
    sequence = models.BigIntegerField()  # of this node and boot, from 1
    source = models.CharField(max_length=16)  # nvml, kernel_log, snapshot, guard, agent
    kind = models.CharField(max_length=24)  # xid, ecc, remap, recovery_action, lost, change, memory
    code = models.IntegerField(null=True)  # the XID, where it is one
    text = models.CharField(max_length=2000, blank=True)
    data = models.JSONField(default=dict, blank=True)
    at = models.DateTimeField()  # by the node's clock
    received_at = models.DateTimeField(auto_now_add=True)
    decided = models.BooleanField(default=False)  # healing has looked at it
    verdict = models.CharField(max_length=1000, blank=True)  # what it decided, or why not yet, in a sentence

    class Meta:
        constraints = [models.UniqueConstraint(fields=["node", "boot_id", "sequence"], name="gpupool_deviceevent_once")]
        indexes = [
            models.Index(fields=["node", "id"], name="gpupool_event_node"),
            models.Index(fields=["id"], name="gpupool_event_undecided", condition=models.Q(decided=False)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.code or ''} on {self.node_id}".strip()


class HealingActionState(models.TextChoices):
    DRY_RUN = "dry_run", "Dry run"  # what would have been done, were hardware actions switched on
    PENDING = "pending", "Pending"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    SUPERSEDED = "superseded", "Superseded"  # by a stronger one


OPEN_ACTIONS: Final = (HealingActionState.PENDING, HealingActionState.RUNNING)
"""Those that have no end yet."""


class HealingAction(TimeOrderedModel):
    """One thing that healing does, or would do, with its reason in words."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="healing")
    device = models.ForeignKey(Device, null=True, on_delete=models.SET_NULL, related_name="healing")
    instance = models.ForeignKey(Instance, null=True, on_delete=models.SET_NULL, related_name="healing")
    event = models.ForeignKey(DeviceEvent, null=True, on_delete=models.SET_NULL, related_name="actions")
    action = models.CharField(max_length=24)  # see policies.healing
    state = models.CharField(max_length=12, choices=HealingActionState, default=HealingActionState.PENDING)
    reason = models.CharField(max_length=1000)
    outcome = models.CharField(max_length=1000, blank=True)
    data = models.JSONField(default=dict, blank=True)  # what its end needs: boot id, a cordon of ours
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["node", "id"], name="gpupool_healing_node"),
            models.Index(fields=["state", "id"], name="gpupool_healing_state"),
        ]

    def __str__(self) -> str:
        return f"{self.action} ({self.state})"


class XidRule(TimeOrderedModel):
    """An operator's own answer to an error code, instead of the catalogue's."""

    code = models.IntegerField(unique=True)
    action = models.CharField(max_length=24)
    note = models.CharField(max_length=500, blank=True)
    provenance = models.CharField(max_length=120, default="operator")  # whose word it is
    changed_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.code}: {self.action}"
