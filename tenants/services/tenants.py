"""Tenants, people and memberships."""

from typing import Final
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from core.epochs import Section, bump_epoch
from tenants.actor import Actor
from tenants.models import (
    Membership,
    PlatformRole,
    RoleSource,
    SlaTier,
    Tenant,
    TenantRole,
    TenantState,
    User,
)
from tenants.services.audit import record_audit
from tenants.services.errors import Conflict, InvalidInput
from tenants.services.state_notices import tell_tenant_state

MOST_RETENTION_DAYS: Final = 3650


def _clean(instance: Tenant | User) -> None:
    try:
        instance.full_clean()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise InvalidInput(field, " ".join(messages)) from error


def _insert(instance: Tenant | User, *, unique: str) -> None:
    try:
        with transaction.atomic():
            instance.save(force_insert=True)
    except IntegrityError as error:  # made by another since it was looked for
        raise InvalidInput(unique, "It was taken at this moment.") from error


@transaction.atomic
def create_tenant(
    *, slug: str, name: str, actor: Actor, sla_tier: str = SlaTier.BRONZE, time_zone: str = "UTC"
) -> Tenant:
    """Raises InvalidInput for a taken or malformed slug, an unknown tier or zone."""
    tenant = Tenant(slug=slug, name=name, sla_tier=sla_tier, time_zone=time_zone)
    _clean(tenant)
    _insert(tenant, unique="slug")
    record_audit("tenant.created", subject=tenant, actor=actor, tenant_id=tenant.pk, after={"slug": slug})
    bump_epoch(Section.GRANTS, tenant.pk)
    return tenant


@transaction.atomic
def set_tenant_state(tenant_id: UUID, state: TenantState, *, actor: Actor) -> Tenant:
    """Suspend or reactivate; takes effect within a second everywhere.

    Raises Tenant.DoesNotExist, and Conflict for one that is being erased.
    """
    tenant = Tenant.objects.select_for_update().get(pk=tenant_id)
    if tenant.erasing_at is not None:
        raise Conflict("This tenant is being erased.")
    if tenant.state != state:
        before, tenant.state = tenant.state, state
        tenant.save(update_fields=["state"])
        record_audit(
            "tenant.state_changed",
            subject=tenant,
            actor=actor,
            tenant_id=tenant.pk,
            before={"state": before},
            after={"state": state},
        )
        tell_tenant_state(tenant, actor=actor)
        bump_epoch(Section.GRANTS, tenant.pk)
    return tenant


@transaction.atomic
def create_user(
    *,
    email: str,
    password: str | None,
    actor: Actor,
    display_name: str = "",
    platform_role: str = PlatformRole.NONE,
) -> User:
    """A person; without a password they cannot log in with one. Raises InvalidInput for a taken address."""
    superuser = platform_role == PlatformRole.SUPERUSER
    user = User(
        email=email.lower(),
        display_name=display_name,
        platform_role=platform_role,
        is_staff=superuser,
        is_superuser=superuser,
    )
    user.set_password(password)
    _clean(user)
    _insert(user, unique="email")
    record_audit("user.created", subject=user, actor=actor, after={"platform_role": platform_role})
    return user


@transaction.atomic
def add_member(tenant: Tenant, user: User, *, role: TenantRole, actor: Actor) -> Membership:
    """Make `user` a member, or change the role they have."""
    membership, created = Membership.objects.select_for_update().get_or_create(
        tenant=tenant, user=user, defaults={"role": role}
    )
    before = {} if created else {"role": membership.role}
    if created or membership.role != role:
        membership.role, membership.source = role, RoleSource.MANUAL
        membership.save(update_fields=["role", "source"])
        record_audit(
            "membership.set",
            subject=membership,
            actor=actor,
            tenant_id=tenant.pk,
            before=before,
            after={"user": str(user.pk), "role": role},
        )
    return membership
