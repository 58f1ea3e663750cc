"""Reads what those who decide on a request for more should see: what it would mean for each model that it is about."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Q

from gateway.policies.capacity import Impact, Load, Promise, impact, rate_of, tightest
from gpupool.selectors import list_models, list_ready_endpoints
from tenants.models import AccessRequest, Grant, GrantEffect, Limit, PrincipalKind, RequestKind, TenantState
from tenants.services.requests import find_limit

MOST_MODELS: Final = 20
"""Of a pattern that many models match, the first ones by name."""

_DAYS: Final = 7
_BUSY: Final = """
SELECT coalesce(max(busy), 0), coalesce(max(tokens), 0) FROM (
    SELECT sum(duration_ms) / 60000 AS busy, sum(input_tokens + output_tokens) / 60 AS tokens
    FROM tenants_usageminute WHERE minute >= %(day)s AND model = %(model)s GROUP BY minute
    UNION ALL
    SELECT sum(duration_ms) / 3600000, sum(input_tokens + output_tokens) / 3600
    FROM tenants_usagehour WHERE hour >= %(week)s AND model = %(model)s GROUP BY hour
) AS parts
"""
_ALL: Final = """
SELECT coalesce(sum(input_tokens + output_tokens), 0) FROM tenants_usagehour
WHERE hour >= %(week)s AND model = %(model)s
"""


class _Granted(NamedTuple):
    tenant_id: UUID
    pattern: str
    allow: bool


def impact_of(request: AccessRequest, *, now: datetime) -> list[Impact]:
    """For each model that the request is about; of a limit on all models, those that the tenant may use."""
    grants = _grants(now)
    names = _models(request, grants)
    endpoints = [each for each in list_ready_endpoints() if each.tenant_id in (None, request.tenant_id)]
    limits = list(
        Limit.objects.filter(Q(metric="concurrency") | Q(metric="tokens"), tenant__isnull=False, key__isnull=True)
    )
    of_tenants: dict[UUID | None, list[Limit]] = {}
    for limit in limits:
        of_tenants.setdefault(limit.tenant_id, []).append(limit)
    own = of_tenants.get(request.tenant_id, [])
    found = []
    for name in names:
        ready = [endpoint.slots for endpoint in endpoints if endpoint.model == name]
        users = _tenants_with(name, grants)
        others = [_promise(name, of_tenants.get(tenant, ()), now) for tenant in users if tenant != request.tenant_id]
        before = _promise(name, own, now) if request.tenant_id in users else None
        after = _promise(name, _with(request, own), now)
        found.append(impact(_load(name, ready, now), others=others, now=before, then=after))
    return found


def _models(request: AccessRequest, grants: Iterable[_Granted]) -> list[str]:
    private = {request.tenant_id, None}
    names = [model.name for model in list_models() if model.tenant_id in private]
    if request.kind == RequestKind.MODEL:
        return [name for name in names if fnmatchcase(name, request.what["model"])][:MOST_MODELS]
    if request.what["model"]:
        return [request.what["model"]]
    own = [grant for grant in grants if grant.tenant_id == request.tenant_id]
    return [name for name in names if _tenants_with(name, own)][:MOST_MODELS]


def _grants(now: datetime) -> list[_Granted]:
    """Of active tenants to themselves, in force."""
    grants = Grant.objects.filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=now),
        principal_kind=PrincipalKind.TENANT,
        tenant__state=TenantState.ACTIVE,
    )
    return [
        _Granted(tenant_id, pattern, effect == GrantEffect.ALLOW)
        for tenant_id, pattern, effect in grants.values_list("tenant_id", "model_pattern", "effect")
    ]


def _tenants_with(model: str, grants: Iterable[_Granted]) -> set[UUID]:
    """Tenants that a grant of their own allows the model."""
    allowed: set[UUID] = set()
    denied: set[UUID] = set()
    for grant in grants:
        if fnmatchcase(model, grant.pattern):
            (allowed if grant.allow else denied).add(grant.tenant_id)
    return allowed - denied


def _promise(model: str, limits: Sequence[Limit], now: datetime) -> Promise:
    """Of one tenant's limits."""
    return tightest(_promise_of(limit, now) for limit in limits if limit.model in ("", model))


def _promise_of(limit: Limit, now: datetime) -> Promise:
    boosted = limit.boost_amount is not None and limit.boost_until is not None and limit.boost_until > now
    amount = limit.boost_amount if boosted and limit.boost_amount is not None else limit.amount
    return Promise(
        amount if limit.metric == "concurrency" else None,
        rate_of(limit.metric, limit.window, amount, limit.refill_per_second),
    )


def _with(request: AccessRequest, limits: Sequence[Limit]) -> list[Limit]:
    """The tenant's limits as they would be; a key's own changes nothing for the tenant as a whole."""
    what: dict[str, Any] = request.what
    if request.kind == RequestKind.MODEL or what["key"] is not None:
        return list(limits)
    there = find_limit(request.tenant_id, what)
    asked = Limit(
        tenant=request.tenant,
        metric=what["metric"],
        window=what["window"],
        model=what["model"],
        amount=what["amount"],
        refill_per_second=there.refill_per_second if there is not None else None,
    )
    return [*(limit for limit in limits if there is None or limit.pk != there.pk), asked]


def _load(name: str, slots: Sequence[int | None], now: datetime) -> Load:
    asked: dict[str, Any] = {"day": now - timedelta(days=1), "week": now - timedelta(days=_DAYS), "model": name}
    with connection.cursor() as cursor:
        cursor.execute(_BUSY, asked)
        busy, peak_tokens = cursor.fetchone()
        cursor.execute(_ALL, asked)
        (all_tokens,) = cursor.fetchone()
    return Load(
        model=name,
        instances=len(slots),
        slots=None if None in slots else sum(count for count in slots if count is not None),
        peak_concurrency=float(busy),
        peak_tokens_per_second=float(peak_tokens),
        mean_tokens_per_second=float(all_tokens) / (_DAYS * 86_400),
    )
