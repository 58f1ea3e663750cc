"""People: their platform role, whether they may log in, and ways back in when a second factor or provider breaks."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from tenants.actor import Actor, user_actor
from tenants.digests import digest_secret
from tenants.models import LoginLink, PlatformRole, RoleSource, User
from tenants.services.access_tokens import delete_access_tokens_of
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.invitations import withdraw_unbacked_invitations
from tenants.services.tenants import create_user

LINK_LIFE: Final = timedelta(minutes=15)
FIRST_LINK_LIFE: Final = timedelta(days=1)
"""Of the link with which someone new sets a password."""
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class NewLoginLink:
    """The row, and the link's secret part, which is shown now or never."""

    link: LoginLink
    secret: str


@transaction.atomic
def change_person(
    user_id: UUID,
    *,
    actor: Actor,
    platform_role: str | None = None,
    is_active: bool | None = None,
    display_name: str | None = None,
) -> User:
    """Change what is given. A lowered role and a deactivation end all sessions at once; role is by hand from then on.

    Raises User.DoesNotExist, InvalidInput for an unknown role, Conflict when no superuser could log in any more.
    """
    if platform_role is not None and platform_role not in PlatformRole.values:
        raise InvalidInput("platform_role", "A platform role is superuser, operator, read_only or empty.")
    if display_name is not None and len(display_name.strip()) > 120:
        raise InvalidInput("display_name", "A name has at most 120 characters.")
    user, superusers = lock_person(user_id)
    before = {"platform_role": user.platform_role, "is_active": user.is_active}
    if display_name is not None:
        user.display_name = display_name.strip()
    if platform_role is not None and platform_role != user.platform_role:
        set_role_fields(user, platform_role, source=RoleSource.MANUAL)
    if is_active is not None:
        user.is_active = is_active
    after = {"platform_role": user.platform_role, "is_active": user.is_active}
    if superusers == [user.pk] and not (user.is_active and user.platform_role == PlatformRole.SUPERUSER):
        raise Conflict("This is the last superuser: make someone else one first.")
    if after != before:
        user.sessions_ended += 1
    user.save()
    withdraw_unbacked_invitations(user, actor=actor)
    named = {"display_name": "changed"} if display_name is not None else {}
    record_audit("user.changed", subject=user, actor=actor, before=before, after={**after, **named})
    return user


def lock_person(user_id: UUID) -> tuple[User, list[UUID]]:
    """Someone, and the superusers who can log in. Raises User.DoesNotExist.

    These are locked first, all together: of two who demote each other the second must see the first.
    """
    superusers = list(
        User.objects.select_for_update()
        .filter(platform_role=PlatformRole.SUPERUSER, is_active=True)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    return User.objects.select_for_update().get(pk=user_id), superusers


def set_role_fields(user: User, platform_role: str, *, source: str) -> None:
    """The role, and what Django's own flags make of it; the caller saves."""
    user.platform_role, user.platform_role_source = platform_role, source
    user.is_staff = user.is_superuser = platform_role == PlatformRole.SUPERUSER


@transaction.atomic
def reset_second_factor(user_id: UUID, *, actor: Actor) -> User:
    """Forget authenticator app, passkeys and recovery codes, end all sessions, and revoke all access tokens.

    What was lost or stolen with the factor may have been the whole device. Raises User.DoesNotExist.
    """
    user = User.objects.select_for_update().get(pk=user_id)
    removed = sorted(Authenticator.objects.filter(user=user).values_list("type", flat=True))
    Authenticator.objects.filter(user=user).delete()
    user.sessions_ended += 1
    user.save(update_fields=["sessions_ended"])
    delete_access_tokens_of(user, actor=actor)
    record_audit("second_factor.reset", subject=user, actor=actor, before={"kinds": removed})
    return user


@transaction.atomic
def change_password(user_id: UUID, password: str, *, actor: Actor) -> User:
    """Sessions that were made with the old one end; access tokens stay, which no password is needed for.

    The caller has checked that it is no weak one.
    """
    user = User.objects.select_for_update().get(pk=user_id)
    user.set_password(password)
    user.save(update_fields=["password"])
    record_audit("user.password_changed", subject=user, actor=actor)
    return user


@transaction.atomic
def link_provider(user_id: UUID, provider: str, *, actor: Actor) -> User:
    """A provider's subject opens this account from now on, and its password no longer does; sessions end.

    Whoever invites an address can open the link, so a password may be somebody else's than the address. Who has a
    second factor is not to be linked, for the same reason. Raises User.DoesNotExist.
    """
    user = User.objects.select_for_update(no_key=True).get(pk=user_id)
    removed = user.has_usable_password()
    if removed:
        user.set_unusable_password()
        user.sessions_ended += 1
        user.save(update_fields=["password", "sessions_ended"])
    told = {"password": "removed"} if removed else {}
    record_audit("user.provider_linked", subject=user, actor=actor, after={"provider": provider, **told})
    return user


@transaction.atomic
def create_login_link(user: User, *, actor: Actor, life: timedelta = LINK_LIFE) -> NewLoginLink:
    """A link that logs in once, within `life`; earlier ones of the person stop working."""
    LoginLink.objects.filter(user=user, used_at__isnull=True).delete()
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    link = LoginLink.objects.create(user=user, digest=digest_secret(secret), expires_at=timezone.now() + life)
    record_audit("login_link.created", subject=link, actor=actor, after={"user": str(user.pk)})
    return NewLoginLink(link, secret)


@transaction.atomic
def create_person(*, email: str, display_name: str, platform_role: str, actor: Actor) -> NewLoginLink:
    """Someone with a platform role, and the link with which they come in the first time.

    Raises InvalidInput for a wrong or taken address and an unknown role.
    """
    user = create_user(
        email=email.strip(), password=None, display_name=display_name.strip(), platform_role=platform_role, actor=actor
    )
    return create_login_link(user, actor=actor, life=FIRST_LINK_LIFE)


def login_link(secret: str) -> str:
    """The address that its person opens."""
    path: str = reverse("login-link", args=[secret])
    return settings.GATEHOUSE.public_web_url.rstrip("/") + path


@transaction.atomic
def use_login_link(secret: str) -> User:
    """The person whose link it is; it works no second time.

    Raises LoginLink.DoesNotExist for one that is unknown, used or past its time, also of someone deactivated.
    """
    link = (
        LoginLink.objects.select_for_update(of=("self",))
        .select_related("user")
        .get(digest=digest_secret(secret), used_at__isnull=True, expires_at__gt=timezone.now(), user__is_active=True)
    )
    link.used_at = timezone.now()
    link.save(update_fields=["used_at"])
    record_audit("login_link.used", subject=link, actor=user_actor(link.user_id), after={"user": str(link.user_id)})
    return link.user
