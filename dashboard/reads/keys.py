"""Keys of all tenants, as the console finds them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q, QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from tenants.models import ApiKey, Tenant

KEY_STATES: Final[Mapping[str, str | Promise]] = {
    "active": pgettext_lazy("key", "Active"),
    "expired": _("Expired"),
    "revoked": _("Revoked"),
    "leaked": _("Leaked"),
    "idle": _("Works, but unused for 90 days"),
}
IDLE_AFTER: Final = timedelta(days=90)
_MOST_TENANTS: Final = 500


def state_of(key: ApiKey, now: datetime) -> str:
    """active, expired or revoked."""
    if key.revoked_at is not None:
        return "revoked"
    return "active" if key.is_usable(now) else "expired"


def find_keys(*, search: str, state: str, tenant: str, now: datetime) -> QuerySet[ApiKey]:
    """Keys that fit everything given, with their tenants; not sorted yet.

    `search` is part of a name, what is shown of a secret (`sk-gh-abcd…wxyz`, its start or its last four characters),
    or part of a tenant's name or address.
    """
    keys = ApiKey.objects.select_related("tenant", "created_by")
    if tenant:
        keys = keys.filter(tenant__slug=tenant)
    if search:
        keys = keys.filter(_matches(search))
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=now)
    match state:
        case "active":
            return keys.filter(alive, revoked_at__isnull=True)
        case "expired":
            return keys.filter(revoked_at__isnull=True, expires_at__lte=now)
        case "revoked":
            return keys.filter(revoked_at__isnull=False)
        case "leaked":
            return keys.filter(compromised_at__isnull=False)
        case "idle":
            unused = Q(last_used_at__lt=now - IDLE_AFTER) | Q(last_used_at=None, created_at__lt=now - IDLE_AFTER)
            return keys.filter(alive, unused, revoked_at__isnull=True)
    return keys


def _matches(search: str) -> Q:
    start, dots, end = search.partition("…")
    if not dots:
        start, dots, end = search.partition("...")
    if dots:
        shown = Q(prefix__startswith=start[:16]) if start else Q()
        return shown & Q(last_four=end[-4:]) if end else shown
    # As ids, which the planner looks up: a join would compare every key's tenant with the words.
    owners = Tenant.objects.filter(Q(slug__icontains=search) | Q(name__icontains=search))
    ids = list(owners.values_list("pk", flat=True)[:_MOST_TENANTS])
    return Q(name__icontains=search) | Q(last_four=search) | Q(prefix=search) | Q(tenant_id__in=ids)
