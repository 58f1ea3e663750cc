"""What tenants and operators are told, and how far the telling has come."""

from typing import Final

from django.db import models
from django.utils import timezone

from core.models import TimeOrderedModel
from tenants.models.tenant import Tenant, User
from tenants.policies.deliveries import DeliveryState

URL_LENGTH: Final = 2000


class Notice(TimeOrderedModel):
    """Something that happened, told once. Without a tenant it is the platform's.

    `payload` holds plain JSON values that the texts are made of (see tenants.policies.notice_texts); people are named
    in it by UUID only.
    """

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=32)  # a NoticeKind; see tenants.policies.notices
    payload = models.JSONField(default=dict)
    dedupe_key = models.CharField(max_length=200, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-id"])]

    def __str__(self) -> str:
        return f"{self.kind} {self.dedupe_key}"


class Webhook(TimeOrderedModel):
    """An address that notices are posted to. Without a tenant it gets the platform's.

    The signing secret is not here: it is derived from the installation's own (see tenants.services.webhook_secrets).
    """

    tenant = models.ForeignKey(Tenant, null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=URL_LENGTH)
    events = models.JSONField(default=list, blank=True)  # kinds of notices; empty: all
    enabled = models.BooleanField(default=True)
    disabled_reason = models.CharField(max_length=200, blank=True)
    secret_version = models.PositiveIntegerField(default=1)
    rotated_at = models.DateTimeField(null=True, blank=True)  # for a while after, the secret before signs too
    failing_since = models.DateTimeField(null=True, blank=True)  # empty: the last attempt succeeded
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["tenant", "-id"])]

    def __str__(self) -> str:
        return f"webhook {self.pk}"


class Channel(models.TextChoices):
    EMAIL = "email", "E-mail"
    WEBHOOK = "webhook", "Webhook"


class Delivery(TimeOrderedModel):
    """One notice on its way to one person or one webhook. Its id is the message's id at every attempt.

    `next_attempt_at` of a delivery that is being attempted lies a while ahead: when whoever attempts it dies, it is
    attempted again then. So it is told at least once.
    """

    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="deliveries")
    channel = models.CharField(max_length=8, choices=Channel)
    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="+")  # of an e-mail
    webhook = models.ForeignKey(Webhook, null=True, blank=True, on_delete=models.CASCADE, related_name="deliveries")
    state = models.CharField(
        max_length=12,
        choices=[(state.value, state.value) for state in DeliveryState],
        default=DeliveryState.PENDING.value,
    )
    attempts = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(default=timezone.now)
    last_status = models.PositiveSmallIntegerField(null=True, blank=True)  # of HTTP
    last_error = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["notice", "user", "webhook"], name="tenants_delivery_once", nulls_distinct=False
            )
        ]
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=models.Q(state="pending"), name="tenants_delivery_due"),
            models.Index(fields=["webhook", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.channel} {self.state}"
