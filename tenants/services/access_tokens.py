"""Secrets with which people's scripts use the control API. Like keys, they are told once and kept as digests."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

from tenants.actor import Actor
from tenants.digests import digest_secret
from tenants.models import AccessToken, User
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput
from tenants.services.keys import MAX_LIFE

_PREFIX: Final = "at-gh-"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class NewAccessToken:
    """A token's row and its secret, which is shown now or never."""

    token: AccessToken
    secret: str


@transaction.atomic
def create_access_token(
    user: User,
    *,
    name: str,
    actor: Actor,
    expires_at: datetime | None = None,
    made_with: AccessToken | None = None,
) -> NewAccessToken:
    """A secret with all rights of `user` in the control API, for as long as they have them.

    One that is `made_with` another ends no later: whoever finds that one has nothing when its time is over. Raises
    InvalidInput for a name that is empty or longer than 80, or an expiry that is past, over a hundred years ahead, or
    after that of the other; PermissionDenied where that, or the person's sessions, ended since the request was let in.
    """
    name, now = name.strip(), timezone.now()
    if not 0 < len(name) <= 80:
        raise InvalidInput("name", "A token needs a name of 1 to 80 characters.")
    if expires_at is not None and not now < expires_at <= now + MAX_LIFE:
        raise InvalidInput("expires_at", "The expiry lies in the past, or more than a hundred years ahead.")
    _check_still_let_in(user, made_with)
    end = made_with.expires_at if made_with is not None else None
    if end is not None:
        expires_at = expires_at or end
        if expires_at > end:
            raise InvalidInput("expires_at", "A token makes none that outlives it.")
    secret = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    token = AccessToken.objects.create(
        user=user, name=name, last_four=secret[-4:], digest=digest_secret(secret), expires_at=expires_at
    )
    record_audit("access_token.created", subject=token, actor=actor, after={"user": str(user.pk), "name": name})
    return NewAccessToken(token, secret)


def _check_still_let_in(user: User, made_with: AccessToken | None) -> None:
    """The person's row is locked as by a reset: what asks beside one is before it, and revoked, or refused."""
    now = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    ended = now.sessions_ended != user.sessions_ended
    if ended or (made_with is not None and not AccessToken.objects.filter(pk=made_with.pk).exists()):
        raise PermissionDenied("You were logged out meanwhile.")


@transaction.atomic
def delete_access_token(token_id: UUID, *, actor: Actor) -> None:
    """Refuse the token from now on. Raises AccessToken.DoesNotExist."""
    _delete(AccessToken.objects.select_for_update().get(pk=token_id), actor)


@transaction.atomic
def delete_access_tokens_of(user: User, *, actor: Actor) -> int:
    """Refuse all of the person's tokens from now on; returns how many there were."""
    tokens = list(AccessToken.objects.select_for_update().filter(user=user).order_by("pk"))
    for token in tokens:
        _delete(token, actor)
    return len(tokens)


def _delete(token: AccessToken, actor: Actor) -> None:
    record_audit(
        "access_token.deleted", subject=token, actor=actor, before={"user": str(token.user_id), "name": token.name}
    )
    token.delete()
