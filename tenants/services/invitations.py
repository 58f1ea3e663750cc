"""Invitations: a link, shown once, that makes whoever it was sent to a member. It needs no e-mail to work."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from celery import current_app
from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from core.sealing import seal, unseal
from tenants.actor import Actor, user_actor
from tenants.digests import digest_secret
from tenants.models import Invitation, Membership, Tenant, TenantRole, User
from tenants.policies.invitation_texts import invitation_text
from tenants.policies.roles import Standing, highest
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.mail import Mail, send_mail
from tenants.services.tenants import create_user

DEFAULT_DAYS: Final = 7
MOST_DAYS: Final = 90
MOST_OPEN: Final = 500
"""Open invitations of one tenant: enough for any department, and a bound on what one account may send."""
MAIL_PURPOSE: Final = "invitation link on its way"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class NewInvitation:
    """The row, and the link's secret part, which is shown now or never."""

    invitation: Invitation
    secret: str


def invitation_link(secret: str) -> str:
    """The address that the invited person opens."""
    path: str = reverse("invitation", args=[secret])
    return settings.GATEHOUSE.public_web_url.rstrip("/") + path


def mail_invitation(invitation_id: UUID, sealed_link: str) -> bool:
    """Send the link to whom it is for, unless it was withdrawn since; whether it was sent. Raises as `send_mail`."""
    invitation = Invitation.objects.select_related("tenant", "invited_by").get(pk=invitation_id)
    if invitation.state(timezone.now()) != "open":
        return False
    text = invitation_text(
        tenant=invitation.tenant.name,
        role=invitation.role,
        link=unseal(sealed_link, MAIL_PURPOSE),
        expires_at=invitation.expires_at,
        language=_language(invitation),
    )
    send_mail(Mail(to=invitation.email, subject=text.subject, body=text.body, id=invitation.pk))
    return True


def _language(invitation: Invitation) -> str:
    """Their own, where they have an account already; else that of who invites them."""
    person = User.objects.filter(email=invitation.email.lower()).first() or invitation.invited_by
    return "" if person is None else person.language


@transaction.atomic
def create_invitation(
    tenant: Tenant, *, email: str, role: str, standing: Standing, actor: Actor, days: int = DEFAULT_DAYS
) -> NewInvitation:
    """Invite `email`; an open invitation to the same address is replaced, so its link stops working.

    `standing` is whoever invites: PermissionDenied for a role above theirs. Raises InvalidInput for a wrong address,
    role or time, and for someone who is a member; Conflict beyond MOST_OPEN.
    """
    email = _clean_email(email)
    if role not in TenantRole.values:
        raise InvalidInput("role", f"A role is one of {', '.join(TenantRole.values)}.")
    if not 1 <= days <= MOST_DAYS:
        raise InvalidInput("days", f"An invitation is open for 1 to {MOST_DAYS} days.")
    if not standing.may_give(role):
        raise PermissionDenied("Nobody gives a role above their own.")
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    inviter = actor.id if actor.kind == "user" else None
    if inviter is not None and not _standing_now(inviter, tenant.pk).may_give(role):  # it was taken meanwhile
        raise PermissionDenied("Nobody gives a role above their own.")
    if Membership.objects.filter(tenant=tenant, user__email=email).exists():
        raise InvalidInput("email", "This person is a member already.")
    now = timezone.now()
    unused = Invitation.objects.filter(tenant=tenant, accepted_at__isnull=True, withdrawn_at__isnull=True)
    for earlier in unused.filter(email=email).select_for_update():  # it may just be accepted
        if not standing.may_give(earlier.role):
            raise PermissionDenied("Nobody takes back a role above their own.")
        earlier.withdrawn_at = now
        earlier.save(update_fields=["withdrawn_at"])
    if unused.filter(expires_at__gt=now).count() >= MOST_OPEN:
        raise Conflict(f"This tenant has {MOST_OPEN} open invitations: withdraw some first.")
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    invitation = Invitation.objects.create(
        tenant=tenant,
        email=email,
        role=role,
        digest=digest_secret(secret),
        invited_by_id=inviter,
        expires_at=now + timedelta(days=days),
    )
    if settings.GATEHOUSE.smtp_url is not None:
        sealed = seal(invitation_link(secret), MAIL_PURPOSE)  # what waits in the broker can be read there
        arguments = [str(invitation.pk), sealed]
        transaction.on_commit(lambda: current_app.send_task("tenants.tasks.mail_invitation", arguments), robust=True)
    record_audit(
        "invitation.created", subject=invitation, actor=actor, tenant_id=tenant.pk, after={"role": role, "days": days}
    )
    return NewInvitation(invitation, secret)


@transaction.atomic
def withdraw_invitation(tenant: Tenant, invitation_id: UUID, *, standing: Standing, actor: Actor) -> Invitation:
    """Its link stops working; withdrawing twice changes nothing.

    Raises Invitation.DoesNotExist, Conflict for one that was accepted, PermissionDenied for a role above one's own.
    """
    invitation = Invitation.objects.select_for_update().get(tenant=tenant, pk=invitation_id)
    if invitation.accepted_at is not None:
        raise Conflict("It was accepted: remove the member instead.")
    if not standing.may_give(invitation.role):
        raise PermissionDenied("Nobody takes back a role above their own.")
    if invitation.withdrawn_at is None:
        _withdraw(invitation, actor)
    return invitation


@transaction.atomic
def withdraw_unbacked_invitations(user: User, *, actor: Actor, tenant_id: UUID | None = None) -> int:
    """Withdraw what `user` invited to, in the tenant or in all, and could not invite to any more; returns how many.

    Part of whatever takes rights from them: a link that they sent themselves would let them in again.
    """
    waiting = Invitation.objects.select_for_update().filter(
        invited_by=user, accepted_at__isnull=True, withdrawn_at__isnull=True, expires_at__gt=timezone.now()
    )
    if tenant_id is not None:
        waiting = waiting.filter(tenant_id=tenant_id)
    unbacked = [one for one in waiting.order_by("pk") if not _standing_now(user.pk, one.tenant_id).may_give(one.role)]
    for invitation in unbacked:
        _withdraw(invitation, actor)
    return len(unbacked)


def _standing_now(user_id: UUID, tenant_id: UUID) -> Standing:
    """Someone's roles as they are in the database; of those who are switched off, none."""
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None:
        return Standing("", None)
    membership = Membership.objects.filter(user=user, tenant_id=tenant_id).first()
    return Standing(user.active_platform_role, membership.role if membership is not None else None)


def _withdraw(invitation: Invitation, actor: Actor) -> None:
    invitation.withdrawn_at = timezone.now()
    invitation.save(update_fields=["withdrawn_at"])
    record_audit(
        "invitation.withdrawn",
        subject=invitation,
        actor=actor,
        tenant_id=invitation.tenant_id,
        before={"role": invitation.role},
    )


@transaction.atomic
def accept_invitation(secret: str, user: User, *, actor: Actor) -> Membership:
    """Make `user` a member; who has a higher role already keeps it.

    Raises Invitation.DoesNotExist for a link that is unknown, used, withdrawn or past its time, and PermissionDenied
    for another person than the one invited.
    """
    invitation = _open(secret)
    if user.email.lower() != invitation.email:
        raise PermissionDenied("This invitation is for another address.")
    return _accept(invitation, user, actor=actor)


@transaction.atomic
def accept_invitation_as_new(secret: str, *, display_name: str, password: str) -> User:
    """Make the person who was invited, with this password, and a member.

    Raises as `accept_invitation` does, and InvalidInput for a weak password or an address that has an account.
    """
    invitation = _open(secret)
    try:
        validate_password(password, User(email=invitation.email, display_name=display_name))
    except ValidationError as error:
        raise InvalidInput("password", " ".join(error.messages)) from error
    inviter = user_actor(invitation.invited_by_id) if invitation.invited_by_id else Actor("system")
    user = create_user(email=invitation.email, password=password, display_name=display_name.strip(), actor=inviter)
    _accept(invitation, user, actor=user_actor(user.pk))
    return user


@transaction.atomic
def accept_open_invitations(user: User, *, actor: Actor) -> list[Membership]:
    """All that are open for the address of someone whose provider has verified it."""
    waiting = Invitation.objects.select_for_update().filter(
        email=user.email.lower(),
        accepted_at__isnull=True,
        withdrawn_at__isnull=True,
        expires_at__gt=timezone.now(),
    )
    return [_accept(invitation, user, actor=actor) for invitation in waiting.select_related("tenant")]


def _open(secret: str) -> Invitation:
    return (
        Invitation.objects.select_for_update(of=("self",))
        .select_related("tenant")
        .get(
            digest=digest_secret(secret),
            accepted_at__isnull=True,
            withdrawn_at__isnull=True,
            expires_at__gt=timezone.now(),
        )
    )


def _accept(invitation: Invitation, user: User, *, actor: Actor) -> Membership:
    membership, created = Membership.objects.select_for_update().get_or_create(
        tenant=invitation.tenant, user=user, defaults={"role": invitation.role}
    )
    before = {} if created else {"role": membership.role}
    membership.role = highest([membership.role, invitation.role]) or invitation.role
    membership.source = "manual"
    membership.save(update_fields=["role", "source"])
    invitation.accepted_at, invitation.accepted_by = timezone.now(), user
    invitation.save(update_fields=["accepted_at", "accepted_by"])
    record_audit(
        "invitation.accepted",
        subject=invitation,
        actor=actor,
        tenant_id=invitation.tenant_id,
        before=before,
        after={"user": str(user.pk), "role": membership.role},
    )
    return membership


def _clean_email(email: str) -> str:
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError as error:
        raise InvalidInput("email", "This is no e-mail address.") from error
    if len(email) > 254:
        raise InvalidInput("email", "An address has at most 254 characters.")
    return email
