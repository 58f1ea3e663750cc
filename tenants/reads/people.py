"""People, members, invitations, mappings: who is where, and how they came."""

from uuid import UUID

from allauth.mfa.models import Authenticator
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from tenants.digests import digest_secret
from tenants.models import Invitation, Membership, RoleMapping, Tenant, User


def list_members(tenant: Tenant) -> QuerySet[Membership]:
    """With their people, newest first."""
    return Membership.objects.filter(tenant=tenant).select_related("user").order_by("-id")


def get_member(tenant: Tenant, user_id: UUID) -> Membership:
    """Raises Membership.DoesNotExist."""
    return list_members(tenant).get(user_id=user_id)


def list_invitations(tenant: Tenant, *, open_only: bool = False) -> QuerySet[Invitation]:
    """Newest first."""
    found = Invitation.objects.filter(tenant=tenant).select_related("invited_by").order_by("-id")
    if open_only:
        found = found.filter(accepted_at__isnull=True, withdrawn_at__isnull=True, expires_at__gt=timezone.now())
    return found


def get_invitation(tenant: Tenant, invitation_id: UUID) -> Invitation:
    """Raises Invitation.DoesNotExist, also for another tenant's."""
    return list_invitations(tenant).get(pk=invitation_id)


def get_open_invitation(secret: str) -> Invitation:
    """The invitation behind a link. Raises Invitation.DoesNotExist for one that is unknown, used, withdrawn or past."""
    return Invitation.objects.select_related("tenant", "invited_by").get(
        digest=digest_secret(secret),
        accepted_at__isnull=True,
        withdrawn_at__isnull=True,
        expires_at__gt=timezone.now(),
    )


def has_open_invitation(email: str) -> bool:
    return Invitation.objects.filter(
        email=email.lower(), accepted_at__isnull=True, withdrawn_at__isnull=True, expires_at__gt=timezone.now()
    ).exists()


def list_people(*, search: str = "") -> QuerySet[User]:
    """Newest first, each with `second_factor`; `search` is part of an address."""
    strong = Authenticator.objects.filter(user=OuterRef("pk")).exclude(type=Authenticator.Type.RECOVERY_CODES)
    people = User.objects.annotate(second_factor=Exists(strong)).order_by("-id")
    return people.filter(email__icontains=search) if search else people


def list_role_mappings() -> QuerySet[RoleMapping]:
    return RoleMapping.objects.select_related("tenant").order_by("-id")
