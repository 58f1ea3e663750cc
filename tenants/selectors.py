"""Reads of this app."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.contrib.postgres.fields import ArrayField
from django.db.models import DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, Value
from django.utils import timezone

from tenants.models import AccessToken, ApiKey, Membership, PlatformMinute, Tenant, UsageMinute, User


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


def get_key_names(key_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Names of keys, also revoked ones, for tables of usage."""
    return dict(ApiKey.objects.filter(pk__in=key_ids).values_list("pk", "name"))


def get_access_token(digest: str) -> AccessToken:
    """The token of that digest, with its person. Raises AccessToken.DoesNotExist, also for an expired one."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return AccessToken.objects.select_related("user").get(alive, digest=digest)


def count_usable_keys(tenant: Tenant, *, at_most: int) -> int:
    """Keys that are neither revoked nor expired; counting stops at `at_most`."""
    alive = Q(expires_at__isnull=True) | Q(expires_at__gt=timezone.now())
    return ApiKey.objects.filter(alive, tenant=tenant, revoked_at__isnull=True)[:at_most].count()


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Sums over rollups. Tokens as the engines reported them; times in milliseconds."""

    requests: int
    failures: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    mean_ttft_ms: float | None  # None: nothing was streamed

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def cached_share(self) -> float | None:
        """Of the input tokens, 0 to 1; None without any."""
        return self.cached_tokens / self.input_tokens if self.input_tokens else None

    @property
    def failed_share(self) -> float | None:
        """Of the requests, 0 to 1; None without any."""
        return self.failures / self.requests if self.requests else None


_SUMMED = ("requests", "failures", "input_tokens", "cached_tokens", "output_tokens", "ttft_ms", "ttft_count")


def _minutes(tenant_id: UUID, since: datetime, until: datetime) -> QuerySet[UsageMinute]:
    return UsageMinute.objects.filter(tenant_id=tenant_id, minute__gte=since, minute__lt=until)


def usage_totals(tenant_id: UUID, *, since: datetime, until: datetime) -> UsageSums:
    """What the tenant used in [since, until), whole minutes."""
    return _sums(_minutes(tenant_id, since, until).aggregate(**{name: Sum(name, default=0) for name in _SUMMED}))


def _sums(sums: Mapping[str, Any]) -> UsageSums:
    return UsageSums(
        requests=sums["requests"],
        failures=sums["failures"],
        input_tokens=sums["input_tokens"],
        cached_tokens=sums["cached_tokens"],
        output_tokens=sums["output_tokens"],
        mean_ttft_ms=sums["ttft_ms"] / sums["ttft_count"] if sums["ttft_count"] else None,
    )


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """Tokens and requests of one model in one bucket; `bucket` is an index into the starts asked for."""

    bucket: int
    model: str
    requests: int
    input_tokens: int
    output_tokens: int


def _bucket(starts: Sequence[datetime]) -> Func:
    # Explicit boundaries: days of a zone with summer time are not all 24 hours long.
    return Func(
        F("minute"),
        Value(list(starts), output_field=ArrayField(DateTimeField())),
        function="width_bucket",
        output_field=IntegerField(),
    )


def usage_series(tenant_id: UUID, *, starts: Sequence[datetime], until: datetime) -> list[UsagePoint]:
    """Usage by bucket and model; bucket i reaches from starts[i] to the next start, the last one to `until`."""
    rows = (
        _minutes(tenant_id, starts[0], until)
        .annotate(bucket=_bucket(starts))
        .values("bucket", "model")
        .annotate(r=Sum("requests"), i=Sum("input_tokens"), o=Sum("output_tokens"))
        .order_by("bucket", "model")
    )
    return [UsagePoint(row["bucket"] - 1, row["model"], row["r"], row["i"], row["o"]) for row in rows]


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one key used; `by_bucket` holds its tokens for each bucket asked for."""

    key_id: UUID | None  # None: requests that no key made
    name: str
    masked: str
    last_used_at: datetime | None
    requests: int
    failures: int
    tokens: int
    by_bucket: Sequence[int]

    @property
    def failed_share(self) -> float | None:
        """Of the requests, 0 to 1; None without any."""
        return self.failures / self.requests if self.requests else None


def usage_by_key(tenant_id: UUID, *, starts: Sequence[datetime], until: datetime, limit: int) -> list[KeyUsage]:
    """The `limit` keys with the most tokens since starts[0], most first, revoked ones included."""
    minutes = _minutes(tenant_id, starts[0], until)
    tokens = Sum(F("input_tokens") + F("output_tokens"))
    rows = list(
        minutes.values("key_id")
        .annotate(tokens=tokens, r=Sum("requests"), f=Sum("failures"))
        .order_by("-tokens", "key_id")[:limit]
    )
    ids = [row["key_id"] for row in rows]
    keys = ApiKey.objects.in_bulk([key_id for key_id in ids if key_id])
    buckets: dict[UUID | None, list[int]] = {key_id: [0] * len(starts) for key_id in ids}
    for row in (
        minutes.filter(Q(key_id__in=[key_id for key_id in ids if key_id]) | Q(key_id__isnull=True))
        .annotate(bucket=_bucket(starts))
        .values("bucket", "key_id")
        .annotate(tokens=tokens)
    ):
        if row["key_id"] in buckets:
            buckets[row["key_id"]][row["bucket"] - 1] = row["tokens"]
    return [
        KeyUsage(
            key_id=row["key_id"],
            name=keys[row["key_id"]].name if row["key_id"] in keys else "",
            masked=keys[row["key_id"]].masked if row["key_id"] in keys else "",
            last_used_at=keys[row["key_id"]].last_used_at if row["key_id"] in keys else None,
            requests=row["r"],
            failures=row["f"],
            tokens=row["tokens"],
            by_bucket=buckets[row["key_id"]],
        )
        for row in rows
    ]


def usage_by_tenant(tenant_ids: Sequence[UUID], *, since: datetime, until: datetime) -> dict[UUID, UsageSums]:
    """What each of these tenants used in [since, until); tenants without usage are absent."""
    rows: Iterable[Mapping[str, Any]] = (
        UsageMinute.objects.filter(tenant_id__in=tenant_ids, minute__gte=since, minute__lt=until)
        .values("tenant_id")
        .annotate(**{f"sum_{name}": Sum(name) for name in _SUMMED})
    )
    return {row["tenant_id"]: _sums({name: row[f"sum_{name}"] for name in _SUMMED}) for row in rows}


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
