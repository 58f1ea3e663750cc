"""Making, changing and revoking API keys. The secret leaves this module once, as a return value."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.digests import digest_secret
from tenants.models import ApiKey, Tenant
from tenants.policies.rbac import ACTIONS
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.state_notices import tell_compromised_key

KEY_PREFIX: Final = "sk-gh-"
_SECRET_BYTES: Final = 32
MAX_RPM: Final = 10_000_000
MAX_LIFE: Final = timedelta(days=36_500)
"""Furthest expiry: times near the year 9999 cannot be shown in every zone."""
CHANGEABLE: Final = frozenset(
    {"name", "scopes", "allowed_models", "rpm_limit", "keep_alive", "expires_at", "store_conversations"}
)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key's row and its secret, which is shown now or never."""

    key: ApiKey
    secret: str


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
    store_conversations: bool = False,
    lineage: UUID | None = None,
) -> NewKey:
    """A new key of `tenant`; `rpm_limit` in requests a minute.

    `keep_alive`: streams that have nothing to say are sent comments, which some clients cannot read. `lineage`: of a
    key that takes another's place, whose limits it shares.

    Raises InvalidInput for an empty name, an unknown scope, a limit below 1, an expiry that is past or over a
    hundred years ahead.
    """
    secret = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    key = ApiKey(
        tenant=tenant,
        prefix=KEY_PREFIX,
        last_four=secret[-4:],
        digest=digest_secret(secret),
        created_by_id=created_by,
        lineage=lineage,
    )
    said = {
        "name": name,
        "scopes": scopes,
        "allowed_models": allowed_models,
        "rpm_limit": rpm_limit,
        "keep_alive": keep_alive,
        "expires_at": expires_at,
        "store_conversations": store_conversations,
    }
    _set(key, said)
    key.save(force_insert=True)
    record_audit("api_key.created", subject=key, actor=actor, tenant_id=tenant.pk, after=_told(key))
    bump_epoch(Section.KEYS, key.pk)
    return NewKey(key, secret)


@transaction.atomic
def change_api_key(key_id: UUID, *, actor: Actor, **values: Any) -> ApiKey:
    """Other `values` for some of CHANGEABLE, in force within a second everywhere.

    Raises InvalidInput, ApiKey.DoesNotExist, and Conflict for a key that is revoked, or one whose successor is there
    and that is to last longer.
    """
    key = ApiKey.objects.select_for_update().get(pk=key_id)
    if key.revoked_at is not None:
        raise Conflict("This key is revoked.")
    before, ended = _told(key), key.expires_at
    _set(key, values)
    if key.replaced_by_id is not None and ended is not None and (key.expires_at is None or key.expires_at > ended):
        raise Conflict("This key was rotated: its end may only come earlier.")
    after = _told(key)
    changed = {name for name in after if before[name] != after[name]}
    if changed:
        key.save(update_fields=sorted(CHANGEABLE))
        record_audit(
            "api_key.changed",
            subject=key,
            actor=actor,
            tenant_id=key.tenant_id,
            before={name: before[name] for name in changed},
            after={name: after[name] for name in changed},
        )
        bump_epoch(Section.KEYS, key.pk)
    return key


@transaction.atomic
def revoke_api_key(
    key_id: UUID, *, actor: Actor, compromised: bool = False, known_good_at: datetime | None = None
) -> ApiKey:
    """Refuse the key from now on (within a second everywhere). Revoking twice changes nothing.

    `compromised`: others know the secret, or may; the key is listed as that, also one that was revoked before.
    `known_good_at`: until when its use was surely its owner's; from then on (else from its creation) it is suspect.
    Raises ApiKey.DoesNotExist, and InvalidInput for a time that is not of the key's life.
    """
    key = ApiKey.objects.select_for_update().get(pk=key_id)
    now = timezone.now()
    if known_good_at is not None and not (compromised and key.created_at <= known_good_at <= now):
        raise InvalidInput("known_good_at", "Give a time between the making of a compromised key and now.")
    marked = compromised and key.compromised_at is None
    if key.revoked_at is None or marked:
        key.revoked_at = key.revoked_at or now
        if marked:
            key.compromised_at, key.known_good_at = now, known_good_at
        key.save(update_fields=["revoked_at", "compromised_at", "known_good_at"])
        record_audit(
            "api_key.compromised" if marked else "api_key.revoked",
            subject=key,
            actor=actor,
            tenant_id=key.tenant_id,
            after={"known_good_at": known_good_at.isoformat() if known_good_at else None} if marked else None,
        )
        if marked:
            tell_compromised_key(key, actor=actor)
        bump_epoch(Section.KEYS, key.pk)
    return key


def _set(key: ApiKey, values: Mapping[str, Any]) -> None:
    unknown = sorted(set(values) - CHANGEABLE)
    if unknown:
        raise InvalidInput(unknown[0], "A key has no such field, or it cannot be changed.")
    if "name" in values:
        key.name = values["name"].strip()
        if not key.name or len(key.name) > 80:
            raise InvalidInput("name", "A key needs a name of 1 to 80 characters.")
    if "scopes" in values:
        key.scopes = sorted(set(values["scopes"]))
        if not key.scopes or not set(key.scopes) <= ACTIONS:
            raise InvalidInput("scopes", f"Scopes are some of {', '.join(sorted(ACTIONS))}.")
    if "rpm_limit" in values:
        key.rpm_limit = values["rpm_limit"]
        if key.rpm_limit is not None and not 1 <= key.rpm_limit <= MAX_RPM:
            raise InvalidInput("rpm_limit", f"Requests a minute must be between 1 and {MAX_RPM}.")
    if "expires_at" in values and values["expires_at"] != key.expires_at:
        key.expires_at = values["expires_at"]
        if key.expires_at is not None and key.expires_at <= timezone.now():
            raise InvalidInput("expires_at", "The expiry lies in the past.")
        if key.expires_at is not None and key.expires_at > timezone.now() + MAX_LIFE:
            raise InvalidInput("expires_at", "The expiry lies more than a hundred years ahead: leave it out for never.")
    if "allowed_models" in values:
        key.allowed_models = list(values["allowed_models"])
        if any(not 0 < len(pattern) <= 200 for pattern in key.allowed_models):
            raise InvalidInput("allowed_models", "Models are names or patterns of 1 to 200 characters.")
    if "keep_alive" in values:
        key.keep_alive = values["keep_alive"]
    if "store_conversations" in values:
        key.store_conversations = values["store_conversations"]


def _told(key: ApiKey) -> dict[str, Any]:
    """For the audit log; never the secret."""
    return {
        "name": key.name,
        "scopes": key.scopes,
        "models": key.allowed_models,
        "rpm_limit": key.rpm_limit,
        "keep_alive": key.keep_alive,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "store_conversations": key.store_conversations,
    }
