"""Reads of this app."""

from collections.abc import Sequence
from uuid import UUID

from django.db.models import QuerySet

from tenants.models import ApiKey, Membership, Tenant, User


def get_tenant_for(user: User, slug: str) -> Tenant:
    """The tenant, if `user` is a member or may read the whole platform.

    Raises Tenant.DoesNotExist otherwise, also when the tenant exists: outsiders cannot probe names.
    """
    tenants = Tenant.objects.all()
    if not user.may_read_platform:
        tenants = tenants.filter(memberships__user=user)
    return tenants.get(slug=slug)


def list_tenants_for(user: User) -> QuerySet[Tenant]:
    """Tenants the user belongs to; all of them for platform roles."""
    tenants = Tenant.objects.order_by("slug")
    return tenants if user.may_read_platform else tenants.filter(memberships__user=user)


def get_role(user: User, tenant: Tenant) -> str | None:
    """The user's role in the tenant, None for outsiders."""
    return Membership.objects.filter(user=user, tenant=tenant).values_list("role", flat=True).first()


def list_api_keys(tenant: Tenant, *, include_revoked: bool = False) -> QuerySet[ApiKey]:
    keys = ApiKey.objects.filter(tenant=tenant).select_related("created_by").order_by("-id")
    return keys if include_revoked else keys.filter(revoked_at__isnull=True)


def get_key_names(key_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Names of keys, also revoked ones, for tables of usage."""
    return dict(ApiKey.objects.filter(pk__in=key_ids).values_list("pk", "name"))
