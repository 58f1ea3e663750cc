"""Another key in a key's place, with all that it had: name, scopes, models, habits, grants, and the same budget.

Limits of a key count for its lineage: the first key and all that were rotated out of it. So a rotation neither opens a
new budget nor doubles the old one while both keys work, and whoever rotates every minute gains nothing.
"""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, Grant, Limit, PrincipalKind
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.keys import NewKey, create_api_key, revoke_api_key

MOST_OVERLAP: Final = timedelta(days=90)


@transaction.atomic
def rotate_api_key(key_id: UUID, *, overlap: timedelta, actor: Actor, expires_at: datetime | None = None) -> NewKey:
    """A new key in the place of one that works; the old one works for `overlap` longer, or for as long as it had left.

    Without `expires_at` the new one lives as long as the old one was meant to. Raises ApiKey.DoesNotExist,
    InvalidInput for an overlap below 0 or over MOST_OVERLAP, and Conflict for a key that works no longer or was
    rotated before.
    """
    if not timedelta(0) <= overlap <= MOST_OVERLAP:
        raise InvalidInput("overlap_seconds", f"Between 0 and {MOST_OVERLAP.total_seconds():.0f} seconds.")
    old = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key_id)
    now = timezone.now()
    if not old.is_usable(now):
        raise Conflict("This key works no longer: make a new one.")
    if old.replaced_by_id is not None:
        raise Conflict("This key was rotated before: rotate the one in its place.")
    if old.purpose:
        raise Conflict("No application has this key, and it renews itself.")
    if expires_at is None and old.expires_at is not None:
        expires_at = now + (old.expires_at - old.created_at)
    new = _succeed(old, expires_at=expires_at, actor=actor)
    if overlap:
        old.expires_at = min(old.expires_at or now + overlap, now + overlap)
        old.save(update_fields=["expires_at", "replaced_by"])
        bump_epoch(Section.KEYS, old.pk)
    else:
        old.save(update_fields=["replaced_by"])
        revoke_api_key(old.pk, actor=actor)
    record_audit(
        "api_key.rotated",
        subject=old,
        actor=actor,
        tenant_id=old.tenant_id,
        after={
            "replaced_by": str(new.key.pk),
            "works_until": (old.expires_at if overlap and old.expires_at else now).isoformat(),
        },
    )
    return new


@transaction.atomic
def replace_api_key(key_id: UUID, *, actor: Actor) -> NewKey:
    """The same without an overlap, also for a key that works no longer; the new one does not expire.

    Raises ApiKey.DoesNotExist.
    """
    old = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key_id)
    revoke_api_key(old.pk, actor=actor)
    new = _succeed(old, expires_at=None, actor=actor)
    old.save(update_fields=["replaced_by"])
    return new


def pass_on_limits(old: ApiKey) -> None:
    """Before a key is deleted: if others of its lineage are left, its limits are theirs."""
    heir = ApiKey.objects.filter(tenant=old.tenant_id).exclude(pk=old.pk)
    heir = heir.filter(lineage=old.limits_id) | heir.filter(pk=old.limits_id)
    newest = heir.order_by("-id").first()
    if newest is not None:
        _move_limits(old, newest)


def _succeed(old: ApiKey, *, expires_at: datetime | None, actor: Actor) -> NewKey:
    """The successor, named in `old`, which is the caller's to save."""
    new = create_api_key(
        old.tenant,
        name=old.name,
        actor=actor,
        scopes=old.scopes,
        allowed_models=old.allowed_models,
        rpm_limit=old.rpm_limit,
        keep_alive=old.keep_alive,
        expires_at=expires_at,
        created_by=old.created_by_id,
        store_conversations=old.store_conversations,
        lineage=old.limits_id,
    )
    old.replaced_by = new.key
    _move_limits(old, new.key)
    grants = Grant.objects.filter(tenant=old.tenant_id, principal_kind=PrincipalKind.KEY, principal_id=old.pk)
    copies = [
        Grant(
            tenant_id=grant.tenant_id,
            principal_kind=PrincipalKind.KEY,
            principal_id=new.key.pk,
            model_pattern=grant.model_pattern,
            actions=grant.actions,
            effect=grant.effect,
            expires_at=grant.expires_at,
        )
        for grant in grants
    ]
    if copies:
        Grant.objects.bulk_create(copies)
        for copy in copies:
            record_audit(
                "grant.set",
                subject=copy,
                actor=actor,
                tenant_id=copy.tenant_id,
                after={"model": copy.model_pattern, "actions": copy.actions, "effect": copy.effect, "principal": "key"},
            )
        bump_epoch(Section.GRANTS, old.tenant_id)
    return new


def _move_limits(old: ApiKey, new: ApiKey) -> None:
    """So that they live as long as a key of the lineage does; in the snapshot they are the lineage's all the time."""
    held = {_about(limit) for limit in Limit.objects.filter(key=new)}
    for limit in Limit.objects.filter(key=old):
        if _about(limit) not in held:  # of two the heir's own counts
            limit.key = new
            limit.save(update_fields=["key"])
            bump_epoch(Section.LIMITS, limit.pk)


def _about(limit: Limit) -> tuple[str, str, str]:
    return limit.model, limit.metric, limit.window
