"""The history of what is configured: every row of it before and after each write, kept by triggers."""

from typing import Final

from django.db import models

HISTORY_TABLES: Final[dict[str, tuple[str, ...]]] = {
    # Table -> columns that stay out: what is secret, and what changes with use.
    "tenants_tenant": (),
    "tenants_grant": (),
    "tenants_limit": (),
    "tenants_price": (),
    "tenants_apikey": ("digest", "last_used_at"),
    "tenants_tokenissuer": (),
}


class ConfigurationChange(models.Model):
    """One write of one row of `HISTORY_TABLES`; `id` is the configuration's epoch.

    Written by a trigger, in the transaction of the write, whoever makes it: services, the back office, SQL. Changes of
    one object are in the order of their ids. `before` is null for an insert, `after` for a deletion. Unlike the audit
    log it may be erased, with the tenant that it tells of.
    """

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField()
    """When its transaction began: the same for all its changes."""
    transaction = models.BigIntegerField()
    """As in the audit log (AuditEvent.transaction)."""
    table = models.CharField(max_length=40)
    object_id = models.UUIDField()
    tenant_id = models.UUIDField(null=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["at"]),
            models.Index(fields=["transaction"]),
            models.Index(fields=["tenant_id", "-id"]),
        ]

    def __str__(self) -> str:
        return f"{self.id}: {self.table} {self.object_id}"
