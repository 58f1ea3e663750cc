"""Roles that an identity provider's claims stand for, and what they do at each log-in."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction

from tenants.actor import Actor
from tenants.models import Membership, PlatformRole, RoleMapping, RoleSource, Tenant, TenantRole, User
from tenants.policies.claims import Given, Rule, given_by
from tenants.services.audit import record_audit
from tenants.services.errors import InvalidInput
from tenants.services.invitations import withdraw_unbacked_invitations
from tenants.services.people import set_role_fields


@transaction.atomic
def create_role_mapping(
    *,
    claim: str,
    value: str,
    actor: Actor,
    platform_role: str = "",
    tenant: Tenant | None = None,
    tenant_role: str = "",
) -> RoleMapping:
    """Whoever logs in with `value` in `claim` has the role from then on, and no longer than it is there.

    Raises InvalidInput for an empty claim or value, not exactly one role, or a mapping that is there.
    """
    claim, value = claim.strip(), value.strip()
    for field, text in (("claim", claim), ("value", value)):
        if not 0 < len(text) <= 200:
            raise InvalidInput(field, "It has 1 to 200 characters.")
    if bool(platform_role) == bool(tenant_role):
        raise InvalidInput("tenant_role", "Give either a platform role, or a tenant and a role in it.")
    if platform_role and (platform_role not in PlatformRole.values or tenant is not None):
        raise InvalidInput("platform_role", "A platform role is superuser, operator or read_only, in no tenant.")
    if tenant_role and (tenant_role not in TenantRole.values or tenant is None):
        raise InvalidInput("tenant_role", f"A role in a tenant is one of {', '.join(TenantRole.values)}.")
    mapping, created = RoleMapping.objects.get_or_create(
        claim=claim, value=value, tenant=tenant, defaults={"platform_role": platform_role, "tenant_role": tenant_role}
    )
    if not created:
        raise InvalidInput("value", "There is a mapping of this claim and value here: delete it first.")
    record_audit(
        "role_mapping.created",
        subject=mapping,
        actor=actor,
        tenant_id=tenant.pk if tenant else None,
        after={"claim": claim, "value": value, "role": platform_role or tenant_role},
    )
    return mapping


@transaction.atomic
def delete_role_mapping(mapping_id: UUID, *, actor: Actor) -> None:
    """What it gave is taken at each person's next log-in. Raises RoleMapping.DoesNotExist."""
    mapping = RoleMapping.objects.select_for_update().get(pk=mapping_id)
    record_audit(
        "role_mapping.deleted",
        subject=mapping,
        actor=actor,
        tenant_id=mapping.tenant_id,
        before={
            "claim": mapping.claim,
            "value": mapping.value,
            "role": mapping.platform_role or mapping.tenant_role,
        },
    )
    mapping.delete()


def roles_given_by(claims: Mapping[str, Any]) -> Given:
    """What the mappings make of these claims."""
    rows = RoleMapping.objects.values_list("claim", "value", "platform_role", "tenant_id", "tenant_role")
    return given_by(claims, [Rule(*row) for row in rows])


@transaction.atomic
def apply_claims(user: User, claims: Mapping[str, Any], *, actor: Actor) -> User:
    """Give the roles that the claims stand for, and take those that claims gave and no longer do.

    What was given by hand stays as it is, also where claims would give less or more. The provider is the authority
    over what it gave: it may take a tenant's last owner.
    """
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    given = roles_given_by(claims)
    _apply_platform_role(user, given.platform_role, actor=actor)
    held = {one.tenant_id: one for one in Membership.objects.select_for_update().filter(user=user)}
    for tenant_id, role in given.tenant_roles.items():
        membership = held.pop(tenant_id, None)
        if membership is None:
            membership = Membership(tenant_id=tenant_id, user=user, role="", source=RoleSource.CLAIMS)
        if membership.source == RoleSource.CLAIMS and membership.role != role:
            before = {"role": membership.role} if membership.role else {}
            membership.role = role
            membership.save()
            record_audit(
                "membership.set",
                subject=membership,
                actor=actor,
                tenant_id=tenant_id,
                before=before,
                after={"user": str(user.pk), "role": role, "source": RoleSource.CLAIMS},
            )
    for membership in held.values():
        if membership.source == RoleSource.CLAIMS:
            record_audit(
                "membership.removed",
                subject=membership,
                actor=actor,
                tenant_id=membership.tenant_id,
                before={"user": str(user.pk), "role": membership.role, "source": RoleSource.CLAIMS},
            )
            membership.delete()
    withdraw_unbacked_invitations(user, actor=actor)
    return user


def _apply_platform_role(user: User, role: str, *, actor: Actor) -> None:
    by_hand = user.platform_role_source == RoleSource.MANUAL and user.platform_role != PlatformRole.NONE
    if by_hand or user.platform_role == role:
        return
    before = user.platform_role
    set_role_fields(user, role, source=RoleSource.CLAIMS if role else RoleSource.MANUAL)
    user.sessions_ended += 1
    user.save()
    record_audit(
        "user.changed",
        subject=user,
        actor=actor,
        before={"platform_role": before},
        after={"platform_role": role, "source": RoleSource.CLAIMS},
    )
