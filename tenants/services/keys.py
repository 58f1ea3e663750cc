"""Making, rotating and revoking API keys. The secret leaves this module once, as a return value."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import ApiKey, Tenant
from tenants.policies.rbac import ACTIONS
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput

KEY_PREFIX: Final = "sk-gh-"
_SECRET_BYTES: Final = 32
MAX_RPM: Final = 10_000_000
MAX_LIFE: Final = timedelta(days=36_500)
"""Furthest expiry: times near the year 9999 cannot be shown in every zone."""


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key's row and its secret, which is shown now or never."""

    key: ApiKey
    secret: str


def digest_secret(secret: str) -> str:
    """SHA-256 of a key's secret, as hex. No salt or stretching: the secret is 256 random bits."""
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def create_api_key(
    tenant: Tenant,
    *,
    name: str,
    actor: Actor,
    scopes: Sequence[str] = ("infer", "embed"),
    allowed_models: Sequence[str] = (),
    rpm_limit: int | None = None,
    keep_alive: bool = True,
    expires_at: datetime | None = None,
    created_by: UUID | None = None,
) -> NewKey:
    """A new key of `tenant`; `rpm_limit` in requests a minute.

    `keep_alive`: streams that have nothing to say are sent comments, which some clients cannot read.

    Raises InvalidInput for an empty name, an unknown scope, a limit below 1, an expiry that is past or over a
    hundred years ahead.
    """
    name = name.strip()
    if not name or len(name) > 80:
        raise InvalidInput("name", "A key needs a name of 1 to 80 characters.")
    unknown = sorted(set(scopes) - ACTIONS)
    if unknown or not scopes:
        raise InvalidInput("scopes", f"Scopes are some of {', '.join(sorted(ACTIONS))}.")
    if rpm_limit is not None and not 1 <= rpm_limit <= MAX_RPM:
        raise InvalidInput("rpm_limit", f"Requests a minute must be between 1 and {MAX_RPM}.")
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("expires_at", "The expiry lies in the past.")
    if expires_at is not None and expires_at > timezone.now() + MAX_LIFE:
        raise InvalidInput("expires_at", "The expiry lies more than a hundred years ahead: leave it out for never.")
    if any(not 0 < len(pattern) <= 200 for pattern in allowed_models):
        raise InvalidInput("allowed_models", "Models are names or patterns of 1 to 200 characters.")
    secret = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        prefix=KEY_PREFIX,
        last_four=secret[-4:],
        digest=digest_secret(secret),
        scopes=sorted(set(scopes)),
        allowed_models=list(allowed_models),
        rpm_limit=rpm_limit,
        keep_alive=keep_alive,
        expires_at=expires_at,
        created_by_id=created_by,
    )
    record_audit(
        "api_key.created",
        subject=key,
        actor=actor,
        tenant_id=tenant.pk,
        after={
            "name": name,
            "scopes": key.scopes,
            "models": key.allowed_models,
            "rpm_limit": rpm_limit,
            "keep_alive": keep_alive,
        },
    )
    bump_epoch(Section.KEYS, key.pk)
    return NewKey(key, secret)


@transaction.atomic
def revoke_api_key(key_id: UUID, *, actor: Actor) -> ApiKey:
    """Refuse the key from now on (within a second everywhere). Revoking twice changes nothing.

    Raises ApiKey.DoesNotExist.
    """
    key = ApiKey.objects.select_for_update().get(pk=key_id)
    if key.revoked_at is None:
        key.revoked_at = timezone.now()
        key.save(update_fields=["revoked_at"])
        record_audit("api_key.revoked", subject=key, actor=actor, tenant_id=key.tenant_id)
        bump_epoch(Section.KEYS, key.pk)
    return key


@transaction.atomic
def replace_api_key(key_id: UUID, *, actor: Actor) -> NewKey:
    """A new key with the same name, scopes, models, limit and habits; the old one is revoked at once.

    Raises ApiKey.DoesNotExist.
    """
    old = ApiKey.objects.select_for_update().select_related("tenant").get(pk=key_id)
    revoke_api_key(old.pk, actor=actor)
    return create_api_key(
        old.tenant,
        name=old.name,
        actor=actor,
        scopes=old.scopes,
        allowed_models=old.allowed_models,
        rpm_limit=old.rpm_limit,
        keep_alive=old.keep_alive,
        created_by=old.created_by_id,
    )
