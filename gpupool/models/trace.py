"""What is known of an instance beside its row: how it came to its state, and the end of its engine's log."""

from django.db import models
from django.utils import timezone

from core.models import TimeOrderedModel
from gpupool.models.instance import Instance


class InstanceEvent(TimeOrderedModel):
    """One step of an instance's life. The audit log has it too; this is what a page reads, and is deleted sooner."""

    instance = models.ForeignKey(Instance, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=5)  # state: it is so now; wish: somebody wants it so
    value = models.CharField(max_length=12)  # the state, or what is wished
    before = models.CharField(max_length=12, blank=True)  # empty: it is the first
    through = models.JSONField(default=list, blank=True)  # states that fell between two reports
    reason = models.CharField(max_length=1000, blank=True)
    by = models.CharField(max_length=8)  # kind of the actor: user, key, subject, node, system
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [
            models.Index(fields=["instance", "id"], name="gpupool_instanceevent_of"),
            models.Index(fields=["at"], name="gpupool_instanceevent_at"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.value} of {self.instance_id}"


class InstanceLog(TimeOrderedModel):
    """The last lines of an engine's log, which its node tells while somebody reads them and not longer."""

    instance = models.OneToOneField(Instance, on_delete=models.CASCADE, related_name="log")
    wanted_until = models.DateTimeField()
    text = models.TextField(blank=True)  # cleaned, secrets taken out
    cut = models.BooleanField(default=False)  # there is more before it
    told_at = models.DateTimeField(null=True)  # null: its node has not said anything yet

    class Meta:
        indexes = [models.Index(fields=["wanted_until"], name="gpupool_instancelog_wanted")]

    def __str__(self) -> str:
        return f"log of {self.instance_id}"
