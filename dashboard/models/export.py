"""Tables that are too long for an answer: a worker writes them, and who asked fetches them."""

from django.conf import settings
from django.db import models

from core.models import TimeOrderedModel


class ExportState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    WRITING = "writing", "Writing"
    READY = "ready", "Ready"
    FAILED = "failed", "Failed"


class Export(TimeOrderedModel):
    """One CSV; its lines are ExportPart rows, deleted with it after a day."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    tenant_id = models.UUIDField(null=True, blank=True)  # of a portal's page
    table = models.CharField(max_length=60)  # dashboard.tables.Table.name
    path = models.CharField(max_length=300)  # of the page whose table it is
    query = models.CharField(max_length=1000)
    state = models.CharField(max_length=8, choices=ExportState, default=ExportState.WAITING)
    rows = models.BigIntegerField(default=0)
    reason = models.CharField(max_length=500, blank=True)  # why it failed, in a sentence
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.table} {self.state}"


class ExportPart(models.Model):
    """A compressed piece of an export."""

    export = models.ForeignKey(Export, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()
    content = models.BinaryField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["export", "number"], name="dashboard_exportpart_once")]
