"""Who changed what: append-only, held by triggers in the database."""

from django.db import models

from core.models import TimeOrderedModel


class AuditEvent(TimeOrderedModel):
    """One write. People are named by UUID only; secrets never stand in `before` or `after`."""

    at = models.DateTimeField(auto_now_add=True)
    actor_kind = models.CharField(max_length=12)
    actor_id = models.UUIDField(null=True)
    action = models.CharField(max_length=64)
    subject_type = models.CharField(max_length=64)
    subject_id = models.UUIDField(null=True)
    tenant_id = models.UUIDField(null=True)
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True)
    transaction = models.BigIntegerField(null=True)
    """PostgreSQL's number of the transaction that wrote it: what else that one wrote (ConfigurationChange) has it too.

    Numbers begin anew in another cluster (dump and restore); compare times beside them.
    """

    class Meta:
        indexes = [
            models.Index(fields=["tenant_id", "-id"]),
            models.Index(fields=["subject_type", "-id"], name="tenants_audit_kind"),
            models.Index(fields=["subject_id", "-id"], name="tenants_audit_subject"),
            models.Index(
                fields=["actor_id", "-id"], condition=models.Q(actor_id__isnull=False), name="tenants_audit_actor"
            ),
            models.Index(fields=["actor_kind", "-id"], name="tenants_audit_actor_kind"),
            # Prefixes are looked up in it, whatever the collation.
            models.Index(
                fields=["action", "-id"], opclasses=["varchar_pattern_ops", "uuid_ops"], name="tenants_audit_action"
            ),
            models.Index(fields=["request_id"], condition=~models.Q(request_id=""), name="tenants_audit_request"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.subject_type}:{self.subject_id}"
