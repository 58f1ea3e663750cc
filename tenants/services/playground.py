"""The key behind a person's playground: one for each person and tenant, of short life, its secret kept nowhere.

The browser never sees it. The secret is derived from the installation's own, the key's id and its expiry, whenever the
person's page asks a question; so a copy of the database opens nothing, and a secret ends with its hour. What is asked
counts for the tenant and under its limits as with any other key of it.
"""

import base64
import hashlib
import hmac
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.conf import settings
from django.db import transaction

from core.epochs import Section, bump_epoch
from core.ids import uuid7
from tenants.actor import Actor
from tenants.digests import digest_secret
from tenants.models import ApiKey, KeyPurpose, Tenant, User
from tenants.services.audit import record_audit
from tenants.services.keys import KEY_PREFIX

LIFE: Final = timedelta(hours=1)
LEAST_LEFT: Final = timedelta(minutes=15)
"""A question that is asked now must not lose its key half way."""

_NAME: Final = "Playground"


def playground_secret(tenant: Tenant, person: User, *, now: datetime, actor: Actor) -> str:
    """The secret that the person's next question is asked with. Makes the key, or renews it, where it must.

    Who may is the caller's to ask, at every question.
    """
    return _held(_find(tenant, person), now) or _open(tenant, person, now=now, actor=actor)


def _held(key: ApiKey | None, now: datetime) -> str | None:
    """The secret of a key that is good for one more question; None where it must be made or renewed."""
    if key is None or key.expires_at is None or key.expires_at - LEAST_LEFT <= now:
        return None
    secret = _secret(key.pk, key.expires_at)
    # Else its expiry was changed by somebody else, or our own secret was.
    return secret if hmac.compare_digest(digest_secret(secret), key.digest) else None


@transaction.atomic
def _open(tenant: Tenant, person: User, *, now: datetime, actor: Actor) -> str:
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)  # of two questions at once one makes the key
    expires_at = (now + LIFE).replace(microsecond=0)
    key = _find(tenant, person, lock=True)
    if (secret := _held(key, now)) is not None:  # another question was faster: its secret must not be made void
        return secret
    fresh = key is None
    if key is None:
        key = ApiKey(
            id=uuid7(),
            tenant=tenant,
            name=_NAME,
            prefix=KEY_PREFIX,
            scopes=["infer"],
            purpose=KeyPurpose.PLAYGROUND,
            created_by=person,
        )
    secret = _secret(key.pk, expires_at)
    key.expires_at, key.digest, key.last_four = expires_at, digest_secret(secret), secret[-4:]
    key.save(force_insert=fresh)
    record_audit(
        "playground.opened",
        subject=key,
        actor=actor,
        tenant_id=tenant.pk,
        after={"expires_at": expires_at.isoformat(), "renewed": not fresh},
    )
    bump_epoch(Section.KEYS, key.pk)
    return secret


def _find(tenant: Tenant, person: User, *, lock: bool = False) -> ApiKey | None:
    keys = ApiKey.objects.filter(
        tenant=tenant, created_by=person, purpose=KeyPurpose.PLAYGROUND, revoked_at__isnull=True
    )
    return (keys.select_for_update() if lock else keys).first()


def _secret(key_id: UUID, expires_at: datetime) -> str:
    root = hmac.digest(settings.SECRET_KEY.encode(), b"gatehouse playground keys", "sha256")
    made = hmac.digest(root, key_id.bytes + int(expires_at.timestamp()).to_bytes(8), hashlib.sha256)
    return KEY_PREFIX + base64.urlsafe_b64encode(made).decode().rstrip("=")
