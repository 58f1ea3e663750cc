"""The one way into the audit log."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import connection, models

from tenants.actor import Actor
from tenants.models import AuditEvent


def record_audit(
    action: str,
    *,
    subject: models.Model,
    actor: Actor,
    tenant_id: UUID | None = None,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> None:
    """Append one row, in the caller's transaction. `before` and `after` carry JSON values, never secrets.

    Raises RuntimeError outside a transaction: a row must stand or fall with the write it tells of.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("record_audit outside a transaction")
    AuditEvent.objects.create(
        action=action,
        actor_kind=actor.kind,
        actor_id=actor.id,
        request_id=actor.request_id,
        subject_type=subject._meta.label,
        subject_id=subject.pk if isinstance(subject.pk, UUID) else None,
        tenant_id=tenant_id,
        before=dict(before or {}),
        after=dict(after or {}),
        transaction=_Transaction(),
    )


class _Transaction(models.Func):
    """The number of the transaction that asks."""

    template = "pg_current_xact_id()::text::bigint"
    output_field = models.BigIntegerField()
