"""Reads of this app."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from tenants.models import AccessToken, ApiKey, Membership, PlatformMinute, Tenant, User


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


def list_api_keys(tenant: Tenant, *, include_revoked: bool = False, search: str = "") -> QuerySet[ApiKey]:
    """The tenant's keys, newest first; `search` matches the name, or is the secret's last four characters."""
    keys = ApiKey.objects.filter(tenant=tenant).select_related("created_by").order_by("-id")
    if search:
        keys = keys.filter(Q(name__icontains=search) | Q(last_four=search))
    return keys if include_revoked else keys.filter(revoked_at__isnull=True)


def get_api_key(tenant: Tenant, key_id: UUID) -> ApiKey:
    """Raises ApiKey.DoesNotExist, also for another tenant's key."""
    return ApiKey.objects.get(tenant=tenant, pk=key_id)


def get_access_token(digest: str) -> AccessToken:
    """The token of that digest, with its person. Raises AccessToken.DoesNotExist, also for an expired one."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return AccessToken.objects.select_related("user").get(alive, digest=digest)


def count_usable_keys(tenant: Tenant, *, at_most: int) -> int:
    """Keys that are neither revoked nor expired; counting stops at `at_most`."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return ApiKey.objects.filter(alive, tenant=tenant, revoked_at__isnull=True)[:at_most].count()


@dataclass(frozen=True, slots=True)
class PlatformRates:
    """The platform's last minute, from two rollup minutes; all tenants together."""

    requests_per_second: float
    tokens_per_second: float
    requests: float
    failures: float


def platform_rates(now: datetime) -> PlatformRates:
    """A sliding minute out of the running and the previous rollup minute, weighted by how much of it is left.

    Requests count where they ended. Reads two rows.
    """
    this_minute = now.replace(second=0, microsecond=0)
    previous = this_minute - timedelta(minutes=1)
    weight = 1.0 - (now - this_minute).total_seconds() / 60.0
    sums = PlatformMinute.objects.in_bulk([previous, this_minute])

    def slid(name: str) -> float:
        return float(getattr(sums.get(this_minute), name, 0) + weight * getattr(sums.get(previous), name, 0))

    return PlatformRates(slid("requests") / 60.0, slid("tokens") / 60.0, slid("requests"), slid("failures"))
