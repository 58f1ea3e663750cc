"""What things cost: one currency, and a price book that is only ever added to."""

from django.db import models

from core.models import TimeOrderedModel


class Installation(models.Model):
    """What is fixed once for all, in one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    currency = models.CharField(max_length=3)  # ISO 4217
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.currency


class Price(TimeOrderedModel):
    """Prices of a model (or of one version of it) from a moment on, in millionths of the currency.

    A version's own prices come before its model's; of several the newest that is in effect counts. Tokens are priced
    by the million. Models are named by string: the catalogue stands above.
    """

    model = models.CharField(max_length=200)
    version_id = models.UUIDField(null=True, blank=True)
    effective_from = models.DateTimeField()
    input_micros = models.BigIntegerField(default=0)  # per million input tokens that were not cached
    cached_input_micros = models.BigIntegerField(default=0)  # per million cached input tokens
    output_micros = models.BigIntegerField(default=0)  # per million output tokens
    request_micros = models.BigIntegerField(default=0)  # per request
    gpu_second_micros = models.BigIntegerField(default=0)  # per second of one GPU (showback)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["model", "version_id", "effective_from"], name="tenants_price_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(
                    input_micros__gte=0,
                    cached_input_micros__gte=0,
                    output_micros__gte=0,
                    request_micros__gte=0,
                    gpu_second_micros__gte=0,
                ),
                name="tenants_price_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} from {self.effective_from:%Y-%m-%d}"
