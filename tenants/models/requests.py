"""What tenants ask for: a model, or more of what a limit holds back."""

from django.db import models

from core.models import TimeOrderedModel
from tenants.models.tenant import Tenant, User
from tenants.policies.requests import RequestState


class RequestKind(models.TextChoices):
    MODEL = "model", "A model"
    LIMIT = "limit", "A limit"


class AccessRequest(TimeOrderedModel):
    """One request; `what` says what exactly.

    Of a model: `model` (a name or pattern) and `actions`. Of a limit: `limit` (the id of one that exists, to be
    raised to `amount`), or `metric`, `window`, `model`, `key` and `amount` of a new one. With `until` it is for a time.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="access_requests")
    kind = models.CharField(max_length=8, choices=RequestKind)
    what = models.JSONField()
    reason = models.TextField(max_length=2000)
    until = models.DateTimeField(null=True, blank=True)
    state = models.CharField(
        max_length=12, choices=[(state.value, state.value) for state in RequestState], default=RequestState.OPEN.value
    )
    requested_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    decided_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True, blank=True)
    answer = models.TextField(max_length=2000, blank=True)
    grant_id = models.UUIDField(null=True, blank=True)  # that it became
    limit_id = models.UUIDField(null=True, blank=True)  # that it became, or raised
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-id"]), models.Index(fields=["state", "-id"])]

    def __str__(self) -> str:
        return f"{self.kind} request of {self.tenant_id}: {self.state}"
