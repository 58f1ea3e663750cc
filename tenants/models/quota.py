"""Limits: how much of what, whose use counts, and over which time."""

from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from core.models import TimeOrderedModel
from tenants.models.access import ApiKey
from tenants.models.tenant import Tenant


class Metric(models.TextChoices):
    """What is counted. Tokens are input and output together; cached input counts as input."""

    REQUESTS = "requests", "Requests"
    TOKENS = "tokens", "Tokens"
    INPUT_TOKENS = "input_tokens", "Input tokens"
    OUTPUT_TOKENS = "output_tokens", "Output tokens"
    MONEY = "money", "Money"  # in millionths of the installation's currency
    CONCURRENCY = "concurrency", "Requests at once"
    HELD = "held_requests", "Requests held for a model to wake"
    GPUS = "gpus", "GPUs"
    GPU_MEMORY = "gpu_memory", "GPU memory"  # bytes


class Window(models.TextChoices):
    """Over which time."""

    MINUTE = "minute", "Any 60 seconds"
    BUCKET = "bucket", "Token bucket"  # `amount` is its capacity, `refill_per_second` what comes back
    DAY = "day", "Calendar day"  # in the tenant's zone
    MONTH = "month", "Calendar month"
    STANDING = "standing", "At any moment"


class Limit(TimeOrderedModel):
    """At most `amount` of `metric` in `window`, counted over everything that the scope takes in.

    The scope: all tenants (`tenant` empty), a tenant, a tenant with all its departments (`subtree`), or one key;
    with `model` only that model's requests. A request must pass all limits that take it in.
    """

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="limits")
    subtree = models.BooleanField(default=False)  # children's use counts too
    key = models.ForeignKey(ApiKey, null=True, blank=True, on_delete=models.CASCADE, related_name="limits")
    model = models.CharField(max_length=200, blank=True)  # a model's name; empty: all together
    metric = models.CharField(max_length=16, choices=Metric)
    window = models.CharField(max_length=8, choices=Window)
    amount = models.BigIntegerField()
    refill_per_second = models.FloatField(null=True, blank=True)
    boost_amount = models.BigIntegerField(null=True, blank=True)  # instead of `amount` until `boost_until`
    boost_until = models.DateTimeField(null=True, blank=True)
    alert_shares = models.JSONField(default=list, blank=True)  # percent of a calendar budget at which people are told
    counts_from = models.DateTimeField(default=timezone.now)  # what was spent before is not carried in
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "subtree", "key", "model", "metric", "window"],
                name="tenants_limit_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(condition=models.Q(amount__gte=1), name="tenants_limit_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} per {self.window}: {self.amount}"

    def clean(self) -> None:
        """What a form, unlike the services, would let through; relays rely on it."""
        if self.key is not None and self.key.tenant_id != self.tenant_id:
            raise ValidationError({"key": "The key belongs to another tenant."})


class LimitGeneration(models.Model):
    """The counters' generation that was last built, in one row: without one in Valkey, they were lost."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    generation = models.UUIDField()
    built_at = models.DateTimeField()

    def __str__(self) -> str:
        return str(self.generation)
