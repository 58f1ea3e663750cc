"""Grants: what of the models a tenant, one of its keys or a token's subject may use. Deny wins."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import SYSTEM, Actor
from tenants.models import ApiKey, Grant, GrantEffect, PrincipalKind, Tenant
from tenants.policies.rbac import ACTIONS
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput

_AT_ONCE: Final = 500


@transaction.atomic
def grant_model(
    tenant: Tenant,
    *,
    model_pattern: str,
    actor: Actor,
    actions: Sequence[str] = ("infer", "embed"),
    effect: str = GrantEffect.ALLOW,
    key: ApiKey | None = None,
    subject_id: UUID | None = None,
    expires_at: datetime | None = None,
) -> Grant:
    """Allow (or deny) `actions` on models that match the pattern: to the tenant, to one of its keys, or to a subject.

    `subject_id` is a token's (tenants.principal.subject_uuid). The same principal, pattern and effect is one grant:
    granting again replaces its actions and expiry. Raises InvalidInput for an empty pattern, an unknown action or
    effect, two principals, another tenant's key, or a past expiry.
    """
    if not 0 < len(model_pattern) <= 200 or "\x00" in model_pattern:
        raise InvalidInput("model_pattern", "A pattern has 1 to 200 characters.")
    if not actions or set(actions) - ACTIONS - {"*"}:
        raise InvalidInput("actions", f"Actions are some of {', '.join(sorted(ACTIONS))}, or *.")
    if effect not in GrantEffect.values:
        raise InvalidInput("effect", "It is allow or deny.")
    if key is not None and subject_id is not None:
        raise InvalidInput("subject_id", "A grant is a key's or a subject's, not both.")
    if key is not None and key.tenant_id != tenant.pk:
        raise InvalidInput("key", "There is no such key in this tenant.")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("expires_at", "The expiry lies in the past.")
    kind = PrincipalKind.KEY if key else PrincipalKind.SUBJECT if subject_id else PrincipalKind.TENANT
    about: dict[str, Any] = {
        "tenant": tenant,
        "principal_kind": kind,
        "principal_id": key.pk if key else subject_id or tenant.pk,
        "model_pattern": model_pattern,
        "effect": effect,
    }
    before = Grant.objects.select_for_update().filter(**about).first()
    told_before = _told(before) if before else None
    grant, _ = Grant.objects.update_or_create(
        **about, defaults={"actions": sorted(set(actions)), "expires_at": expires_at}
    )
    record_audit("grant.set", subject=grant, actor=actor, tenant_id=tenant.pk, before=told_before, after=_told(grant))
    bump_epoch(Section.GRANTS, tenant.pk)
    return grant


@transaction.atomic
def remove_grant(grant_id: UUID, *, actor: Actor) -> None:
    """In force within a second everywhere. Raises Grant.DoesNotExist."""
    _remove(Grant.objects.select_for_update().get(pk=grant_id), "grant.removed", actor)


def remove_expired_grants(now: datetime) -> int:
    """Delete grants whose time is over, which allow and deny nothing any more; returns how many. Safe to run twice."""
    removed = 0
    while True:
        with transaction.atomic():
            over = Grant.objects.filter(expires_at__lte=now).order_by("pk")
            batch = list(over.select_for_update(skip_locked=True)[:_AT_ONCE])
            for grant in batch:
                _remove(grant, "grant.expired", SYSTEM)
        removed += len(batch)
        if len(batch) < _AT_ONCE:
            return removed


def _remove(grant: Grant, action: str, actor: Actor) -> None:
    record_audit(action, subject=grant, actor=actor, tenant_id=grant.tenant_id, before=_told(grant))
    bump_epoch(Section.GRANTS, grant.tenant_id)
    grant.delete()


def _told(grant: Grant) -> dict[str, Any]:
    return {
        "model": grant.model_pattern,
        "actions": grant.actions,
        "effect": grant.effect,
        "principal": grant.principal_kind,
        "principal_id": str(grant.principal_id),
        "expires_at": grant.expires_at.isoformat() if grant.expires_at else None,
    }
