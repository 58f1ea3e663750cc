"""Whose prices a person may see: names of models that others have to themselves tell what those work on."""

from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from uuid import UUID

from django.db.models import Q

from tenants.models import Grant, GrantEffect, Price, PrincipalKind, User
from tenants.policies.rbac import ACTIONS
from tenants.private_models import read_owners, read_version_owners
from tenants.selectors import list_tenants_for


def priced_models_for(person: User, now: datetime) -> list[str]:
    """Names in the price book that any tenant of the person, or one of its keys or subjects, may use for anything."""
    tenants = set(list_tenants_for(person).values_list("pk", flat=True))
    in_force = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    grants = list(Grant.objects.filter(in_force, tenant__in=tenants))
    owners = read_owners()
    names = Price.objects.order_by("model").values_list("model", flat=True).distinct()
    return [
        name
        for name in names
        if any(
            _may_use(name, [grant for grant in grants if grant.tenant_id == tenant_id])
            for tenant_id in tenants & {owners.get(name, tenant_id) for tenant_id in tenants}
        )
    ]


def versions_of_others(person: User) -> list[UUID]:
    """Versions in the price book that are another tenant's own: that one and the platform alone know what they cost."""
    tenants = set(list_tenants_for(person).values_list("pk", flat=True))
    priced = Price.objects.filter(version_id__isnull=False).order_by().values_list("version_id", flat=True).distinct()
    owners = read_version_owners([version_id for version_id in priced if version_id is not None])
    return [version_id for version_id, owner in owners.items() if owner not in tenants]


def _may_use(name: str, grants: Iterable[Grant]) -> bool:
    """By grants of one tenant. What is denied to one key or subject the others may have."""
    allowed: set[str] = set()
    denied: set[str] = set()
    for grant in grants:
        if fnmatchcase(name, grant.model_pattern):
            actions = ACTIONS if "*" in grant.actions else grant.actions
            if grant.effect == GrantEffect.ALLOW:
                allowed.update(actions)
            elif grant.principal_kind == PrincipalKind.TENANT:
                denied.update(actions)
    return bool(allowed - denied)
