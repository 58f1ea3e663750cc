"""Answers of the Responses API that are kept, so that a later request can go on from them."""

from django.db import models

from core.models import TimeOrderedModel


class StoredResponse(TimeOrderedModel):
    """One response with the conversation before it. Belongs to its tenant: any of its keys may read and delete it.

    The primary key is the id of the request that made it; clients see it as `resp_` and its hex digits.
    """

    tenant_id = models.UUIDField()
    key_id = models.UUIDField()
    model = models.CharField(max_length=200)  # the name at the door
    previous_id = models.UUIDField(null=True, blank=True)
    input = models.JSONField()  # the items of this request, without those of the responses before it
    response = models.JSONField()  # as it was told; its `output` are the items that the model said
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["tenant_id", "id"]), models.Index(fields=["expires_at"])]

    def __str__(self) -> str:
        return f"resp_{self.pk.hex}"
