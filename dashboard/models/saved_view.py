"""A filter of a list that a person gave a name."""

from django.conf import settings
from django.db import models

from core.models import TimeOrderedModel


class SavedView(TimeOrderedModel):
    """One person's; `query` is what stands in the address behind the question mark."""

    person = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    tenant_id = models.UUIDField(null=True, blank=True)  # of a portal's page
    table = models.CharField(max_length=60)  # dashboard.tables.Table.name
    name = models.CharField(max_length=80)
    query = models.CharField(max_length=1000)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["person", "tenant_id", "table", "name"], name="dashboard_savedview_once", nulls_distinct=False
            )
        ]

    def __str__(self) -> str:
        return self.name
