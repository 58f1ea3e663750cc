"""Reads about keys: whose limits they share, and what a compromised one may have been used for."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Q, QuerySet

from tenants.models import ApiKey, Tenant
from tenants.reads.usage import sum_usage


def list_keys(
    tenant: Tenant, *, include_revoked: bool = False, compromised: bool | None = None, name: str = ""
) -> QuerySet[ApiKey]:
    """The tenant's keys, newest first; compromised ones are revoked, and are listed when they are asked for."""
    keys = ApiKey.objects.filter(tenant=tenant).order_by("-id")
    if compromised is not None:
        keys = keys.filter(compromised_at__isnull=not compromised)
    if not include_revoked and compromised is not True:
        keys = keys.filter(revoked_at__isnull=True)
    return keys.filter(name__icontains=name) if name else keys


def list_compromised_keys() -> QuerySet[ApiKey]:
    """All tenants', newest key first."""
    return ApiKey.objects.filter(compromised_at__isnull=False).select_related("tenant").order_by("-id")


def keys_of_lineages(lineages: Iterable[UUID]) -> dict[UUID, UUID]:
    """Key -> lineage, of keys that were rotated out of these first keys; the first ones themselves are not told."""
    found = ApiKey.objects.filter(lineage__in=[*lineages])
    return {key_id: lineage for key_id, lineage in found.values_list("pk", "lineage") if lineage is not None}


def keys_under_limits_of(key: ApiKey) -> Q:
    """Rows (by `key_id`) whose use counts under the limits of this key: its own, and of all its lineage."""
    others = ApiKey.objects.filter(lineage=key.limits_id).values("pk")
    return Q(key_id=key.limits_id) | Q(key_id__in=others)


@dataclass(frozen=True, slots=True)
class Exposure:
    """What a key was used for in a time in which others may have used it; whole minutes."""

    since: datetime
    until: datetime | None  # None: it works still
    requests: int
    input_tokens: int
    output_tokens: int
    cost_micros: int
    models: tuple[str, ...]
    last_used_at: datetime | None


def exposure_of(key: ApiKey, now: datetime) -> Exposure:
    """Use since it was last known to be the owner's own, or of all its life where nobody said."""
    since = key.known_good_at or key.created_at
    names = ("requests", "input_tokens", "output_tokens", "cost_micros")
    rows = sum_usage(
        [key.tenant_id],
        starts=[since.replace(second=0, microsecond=0)],
        until=(now + timedelta(minutes=1)).replace(second=0, microsecond=0),
        by=["model"],
        sums=names,
        key_ids=[key.pk],
    )
    sums = {name: sum(row[name] for row in rows) for name in names}
    models = tuple(sorted(row["model"] for row in rows))
    return Exposure(since=since, until=key.revoked_at, models=models, last_used_at=key.last_used_at, **sums)
