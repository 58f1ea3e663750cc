"""Members of a tenant: their role, and their leaving. They come in by invitation or by claims."""

from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db import transaction

from tenants.actor import Actor
from tenants.models import Membership, RoleSource, Tenant, TenantRole
from tenants.policies.roles import Standing
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.invitations import withdraw_unbacked_invitations


@transaction.atomic
def change_member_role(tenant: Tenant, user_id: UUID, role: str, *, standing: Standing, actor: Actor) -> Membership:
    """Give a member another role; from then on it is one given by hand. Open invitations above it are withdrawn.

    `standing` is whoever does it: PermissionDenied when the old or the new role is above theirs. Raises
    Membership.DoesNotExist, InvalidInput for an unknown role, Conflict when a tenant would be left without owner.
    """
    if role not in TenantRole.values:
        raise InvalidInput("role", f"A role is one of {', '.join(TenantRole.values)}.")
    membership = lock_member(tenant, user_id)
    _check_reach(standing, membership.role, role)
    if membership.role == role:
        return membership
    if role != TenantRole.OWNER:
        _check_not_last_owner(membership)
    before = membership.role
    membership.role, membership.source = role, RoleSource.MANUAL
    membership.save(update_fields=["role", "source"])
    record_audit(
        "membership.set",
        subject=membership,
        actor=actor,
        tenant_id=tenant.pk,
        before={"role": before},
        after={"user": str(user_id), "role": role},
    )
    withdraw_unbacked_invitations(membership.user, actor=actor, tenant_id=tenant.pk)
    return membership


@transaction.atomic
def remove_member(tenant: Tenant, user_id: UUID, *, standing: Standing, actor: Actor) -> None:
    """From the next page and call on they are an outsider. What they made, such as keys, stays; whom they invited and
    who has not come yet is invited no longer.

    Raises as `change_member_role` does.
    """
    membership = lock_member(tenant, user_id)
    _check_reach(standing, membership.role)
    _check_not_last_owner(membership)
    record_audit(
        "membership.removed",
        subject=membership,
        actor=actor,
        tenant_id=tenant.pk,
        before={"user": str(user_id), "role": membership.role},
    )
    membership.delete()
    withdraw_unbacked_invitations(membership.user, actor=actor, tenant_id=tenant.pk)


def lock_member(tenant: Tenant, user_id: UUID) -> Membership:
    """The membership, with its tenant locked first: of two owners who demote each other the second sees the first."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
    members = Membership.objects.select_for_update(of=("self",)).select_related("user")
    return members.get(tenant=tenant, user_id=user_id)


def _check_reach(standing: Standing, *roles: str) -> None:
    if not all(standing.may_give(role) for role in roles):
        raise PermissionDenied("Nobody gives or takes a role above their own.")


def _check_not_last_owner(membership: Membership) -> None:
    if membership.role != TenantRole.OWNER:
        return
    others = Membership.objects.filter(tenant_id=membership.tenant_id, role=TenantRole.OWNER, user__is_active=True)
    if not others.exclude(pk=membership.pk).exists():
        raise Conflict("This is the tenant's last owner: make someone else an owner first.")
