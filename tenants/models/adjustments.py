"""What changes a bill besides use: credits and corrections, each a row that is never changed."""

from django.db import models

from core.models import TimeOrderedModel


class AdjustmentKind(models.TextChoices):
    CREDIT = "credit", "Credit"  # given to the tenant: a negative amount
    CORRECTION = "correction", "Correction"  # of what was counted or priced wrongly: either sign


class Adjustment(TimeOrderedModel):
    """An amount on the statement of one month. Append-only, held by triggers; what is wrong is set right by another.

    `amount_micros` is in millionths of the currency and added to the month's cost: a credit is negative.
    No foreign keys: like the ledger's, these rows outlive what they name.
    """

    tenant_id = models.UUIDField()
    kind = models.CharField(max_length=10, choices=AdjustmentKind)
    amount_micros = models.BigIntegerField()
    month = models.CharField(max_length=7)  # 2026-11, of the tenant's calendar
    reason = models.CharField(max_length=200)
    usage_record_id = models.UUIDField(null=True)  # the ledger row that it is about
    created_by = models.UUIDField(null=True)  # a person; None: the system
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant_id", "month"])]
        constraints = [
            models.CheckConstraint(condition=~models.Q(amount_micros=0), name="tenants_adjustment_not_zero"),
            models.CheckConstraint(
                condition=~models.Q(kind="credit") | models.Q(amount_micros__lt=0), name="tenants_credit_is_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.month}"
