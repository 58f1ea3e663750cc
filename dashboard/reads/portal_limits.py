"""What holds a tenant back: every limit in force, and how it stands now. All counters are read in one round trip."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from django.db.models import Q

from dashboard.reads.limits import Filled
from gpupool.reads.quota_use import read_quota_use
from tenants.models import ApiKey, Limit, Tenant
from tenants.policies.quota import POOLED
from tenants.reads.consumption import ancestors_of
from tenants.reads.forecasts import amount_in_force
from tenants.standing import Standing, read_standings

KEY_RATES: Final = 50
"""Keys whose own requests a minute are listed with the limits: those used last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitNow(Filled):
    """One limit. Amounts in its metric's units; None where it cannot be known now, which is not zero.

    `scope`: tenant, departments (with its own), key, above (of a department that this tenant belongs to), rate (that a
    key itself carries). `reset_seconds`: until all of it is back if nothing more is used. `estimated`: devices' limits
    count what is claimed; `in_use` is what processes have of it.
    """

    id: UUID
    scope: str
    of: str  # the key's name, or the department's
    model: str
    metric: str
    window: str
    amount: int
    refill_per_second: float | None = None
    raised_until: datetime | None = None
    used: int | None = None
    reserved: int | None = None
    reset_seconds: int | None = None
    in_use: int | None = None
    key_id: UUID | None = None
    may_ask: bool = False


def list_in_force(tenant: Tenant) -> list[Limit]:
    """The tenant's, its keys', and those of departments above that count it too. The platform's own are not told."""
    above = ancestors_of([tenant.pk]) - {tenant.pk} if tenant.parent_id else set()
    limits = Limit.objects.filter(Q(tenant=tenant) | Q(tenant__in=above, subtree=True))
    return list(limits.select_related("tenant", "key").order_by("key__name", "model", "metric", "window", "pk"))


def read_limits(tenant: Tenant, now: datetime, *, rates: int = KEY_RATES) -> list[LimitNow]:
    """Every limit in force, and the `rates` keys used last that carry requests a minute of their own."""
    limits = list_in_force(tenant)
    keys = list(
        ApiKey.objects.filter(tenant=tenant, rpm_limit__isnull=False, revoked_at__isnull=True)
        .exclude(expires_at__lte=now)
        .order_by("-last_used_at", "pk")[:rates]
        if rates
        else ()
    )
    counted = [limit.pk for limit in limits if limit.metric not in POOLED]
    standings = read_standings([*counted, *(key.pk for key in keys)])
    pooled = any(limit.metric in POOLED for limit in limits)
    mine = frozenset({tenant.pk})
    # Of a limit that counts others too, what they claimed and never what they use.
    held = {
        use.quota.quota_id: (use.held, use.used_bytes if use.quota.tenants == mine else None)
        for use in (read_quota_use(now) if pooled else ())
    }
    found = [_of_limit(limit, tenant, now, standings, held) for limit in limits]
    return [*found, *(_of_key(key, standings) for key in keys)]


def read_key_limits(key: ApiKey, now: datetime) -> list[LimitNow]:
    """Those of one key and of the lineage that it shares them with."""
    lineage = Q(key_id=key.limits_id) | Q(key__lineage=key.limits_id)
    limits = list(Limit.objects.filter(lineage, tenant=key.tenant_id).select_related("tenant", "key").order_by("pk"))
    asked = [limit.pk for limit in limits] + ([key.pk] if key.rpm_limit is not None else [])
    standings = read_standings(asked)
    found = [_of_limit(limit, None, now, standings, {}) for limit in limits]
    return [*found, *([_of_key(key, standings)] if key.rpm_limit is not None else [])]


def _of_limit(
    limit: Limit,
    tenant: Tenant | None,
    now: datetime,
    standings: Mapping[UUID, Standing],
    held: Mapping[UUID, tuple[int, int | None]],
) -> LimitNow:
    amount = amount_in_force(limit, now)
    standing = standings.get(limit.pk)
    used = standing.used if standing else None
    in_use: int | None = None
    if limit.metric in POOLED and limit.pk in held:
        used, in_use = held[limit.pk]
    own = tenant is None or limit.tenant_id == tenant.pk
    return LimitNow(
        id=limit.pk,
        scope="key" if limit.key_id else "above" if not own else "departments" if limit.subtree else "tenant",
        of=limit.key.name if limit.key else limit.tenant.name if limit.tenant and not own else "",
        model=limit.model,
        metric=limit.metric,
        window=limit.window,
        amount=amount,
        refill_per_second=limit.refill_per_second,
        raised_until=limit.boost_until if amount != limit.amount else None,
        used=used,
        reserved=standing.reserved if standing else None,
        reset_seconds=standing.reset_seconds if standing else None,
        in_use=in_use,
        key_id=limit.key_id,
        may_ask=own,
    )


def _of_key(key: ApiKey, standings: Mapping[UUID, Standing]) -> LimitNow:
    standing = standings.get(key.pk)
    return LimitNow(
        id=key.pk,
        scope="rate",
        of=key.name,
        model="",
        metric="requests",
        window="minute",
        amount=key.rpm_limit or 1,
        used=standing.used if standing else None,
        reserved=standing.reserved if standing else None,
        reset_seconds=standing.reset_seconds if standing else None,
        key_id=key.pk,
    )


def nearest(limits: Sequence[LimitNow], number: int) -> list[LimitNow]:
    """The fullest, of those that one can say it of; those of the tenant itself before others as full."""
    order = ("tenant", "departments", "above", "key", "rate")
    return sorted(limits, key=lambda one: (-(one.share or 0), order.index(one.scope), one.metric))[:number]
