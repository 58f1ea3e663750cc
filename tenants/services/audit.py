"""The one way into the audit log."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django.db import connection, models, transaction

from core import bus
from tenants.actor import Actor
from tenants.models import AuditEvent

MASK: Final = "***"
_ABOUT_PEOPLE: Final = ("membership.", "user.", "tenant.", "second_factor.", "backoffice.", "login_link.")
"""Writes after which somebody may see more or less than before: open sockets are looked at anew."""
_APP: Final = AuditEvent._meta.app_label
_TYPED: Final = frozenset({"name", "slug", "display_name", "email", "note", "reason", "url", "jwks_url"})
"""What people type to name or explain their own things: it may be a person's name, and the log is for ever.

That it changed is told here; from what to what is in the configuration's history, which can be erased.
"""
_TYPED_BY_TENANTS: Final = frozenset({"name", "suffix", "value"})
"""The same of rows that are a tenant's, of any app: private models, adapters, values that roles are mapped from."""


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

    What people typed freely, and whatever looks like a mail address, is masked.
    Raises RuntimeError outside a transaction: a row must stand or fall with the write it tells of.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("record_audit outside a transaction")
    typed = _typed(subject, tenant_id)
    AuditEvent.objects.create(
        action=action,
        actor_kind=actor.kind,
        actor_id=actor.id,
        request_id=actor.request_id,
        subject_type=subject._meta.label,
        subject_id=subject.pk if isinstance(subject.pk, UUID) else None,
        tenant_id=tenant_id,
        before=_masked(before or {}, typed),
        after=_masked(after or {}, typed),
        transaction=_Transaction(),
    )
    if action.startswith(_ABOUT_PEOPLE):
        transaction.on_commit(lambda: bus.hint(bus.PEOPLE, 0))


def _typed(subject: models.Model, tenant_id: UUID | None) -> frozenset[str]:
    """Names of members that are masked."""
    ours = _TYPED if subject._meta.app_label == _APP else frozenset()
    return ours if tenant_id is None else ours | _TYPED_BY_TENANTS


def _masked(values: Mapping[str, Any], typed: frozenset[str]) -> dict[str, Any]:
    return {name: MASK if _is_masked(name, value, typed) else value for name, value in values.items()}


def _is_masked(name: str, value: Any, typed: frozenset[str]) -> bool:
    return isinstance(value, str) and value != "" and (name in typed or "@" in value)


class _Transaction(models.Func):
    """The number of the transaction that asks."""

    template = "pg_current_xact_id()::text::bigint"
    output_field = models.BigIntegerField()
