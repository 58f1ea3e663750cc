"""A tenant as busy as one looks: keys of several people, usage of some days, limits, refusals, prices, a statement."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.utils import timezone

from gpupool.models import Reservation
from tenants import services
from tenants.actor import SYSTEM
from tenants.models import (
    ApiKey,
    RefusalMinute,
    Tenant,
    TenantDay,
    TenantHour,
    UsageDay,
    UsageHour,
    UsageMinute,
    User,
    Webhook,
)
from tenants.policies.pricing import PriceTag
from tenants.services.adjustments import adjust_bill
from tenants.services.limits import create_limit
from tenants.services.prices import set_price
from tenants.services.requests import request_limit, request_model

MILLION = 1_000_000


def used(
    key: ApiKey, *, at: datetime, model: str, requests: int, tokens: int, cost_micros: int = 0, failures: int = 0
) -> None:
    """Adds to the sums of its minute, hour and day: `tokens` in and a quarter as many out."""
    minute = at.astimezone(UTC).replace(second=0, microsecond=0)
    hour, day = minute.replace(minute=0), minute.replace(minute=0, hour=0)
    for rollup, column, moment, of_key in (
        (UsageMinute, "minute", minute, {"key_id": key.pk}),
        (UsageHour, "hour", hour, {"key_id": key.pk}),
        (UsageDay, "day", day, {"key_id": key.pk}),
        (TenantHour, "hour", hour, {}),
        (TenantDay, "day", day, {}),
    ):
        named: dict[str, Any] = {"tenant_id": key.tenant_id, "model": model, column: moment} | of_key
        row, _ = rollup.objects.get_or_create(**named)
        row.requests += requests
        row.failures += failures
        row.input_tokens += tokens
        row.cached_tokens += tokens // 3
        row.output_tokens += tokens // 4
        row.cost_micros += cost_micros
        row.ttft_ms += 240.0 * requests
        row.ttft_count += requests
        row.save()


def refused(tenant: Tenant, key: ApiKey, *, at: datetime, metric: str, window: str, refusals: int, model: str) -> None:
    """Requests that a limit refused in one minute."""
    RefusalMinute.objects.create(
        tenant_id=tenant.pk,
        key_id=key.pk,
        model=model,
        code="rate_limit_exceeded",
        status=429,
        metric=metric,
        window=window,
        minute=at.astimezone(UTC).replace(second=0, microsecond=0),
        refusals=refusals,
    )


def busy(tenant: Tenant, maker: User, *, days: int = 8) -> list[ApiKey]:
    """Its keys, most used first."""
    now = timezone.now()
    names = ("prod-web", "prod-batch", "prod-agents", "prod-eval")
    keys = [services.create_api_key(tenant, name=name, actor=SYSTEM, created_by=maker.pk).key for name in names]
    for day in range(days):
        weekend = 0.4 if day % 7 in (5, 6) else 1.0
        for place, key in enumerate(keys):
            for model, part in (("qwen3-8b", 1.0), ("gpt-oss-20b", 0.7), ("bge-m3", 0.2)):
                size = int(part * weekend * (900_000 >> place) * (1 + (day * 7 + place) % 5 / 10))
                at = now - timedelta(days=day, minutes=7 + 11 * place)
                used(
                    key, at=at, model=model, requests=size // 900, tokens=size, cost_micros=size // 2, failures=day % 2
                )
    for minute in range(5, 60, 9):
        at = now - timedelta(minutes=minute)
        refused(tenant, keys[1], at=at, metric="requests", window="minute", refusals=minute, model="qwen3-8b")
        refused(tenant, keys[2], at=at, metric="output_tokens", window="minute", refusals=4, model="gpt-oss-20b")
    ApiKey.objects.filter(pk__in=[key.pk for key in keys]).update(last_used_at=now - timedelta(seconds=40))
    create_limit(tenant=tenant, metric="requests", window="minute", amount=3000, actor=SYSTEM)
    create_limit(tenant=tenant, metric="concurrency", window="standing", amount=200, actor=SYSTEM)
    create_limit(
        tenant=tenant, metric="money", window="month", amount=50 * MILLION, alert_shares=[50, 90], actor=SYSTEM
    )
    create_limit(tenant=tenant, key=keys[1], metric="output_tokens", window="minute", amount=250_000, actor=SYSTEM)
    create_limit(tenant=tenant, metric="gpus", window="standing", amount=4, actor=SYSTEM)
    tag = PriceTag(input_micros=MILLION // 2, cached_input_micros=MILLION // 10, output_micros=2 * MILLION)
    set_price("qwen3-8b", tag, actor=SYSTEM)
    request_limit(tenant, metric="requests", window="minute", amount=6000, reason="The launch.", actor=SYSTEM)
    request_model(tenant, model="llama-70b", reason="To compare it.", actor=SYSTEM)
    month = f"{now.astimezone(ZoneInfo(tenant.time_zone)):%Y-%m}"
    adjust_bill(tenant, kind="credit", amount_micros=-5 * MILLION, reason="The outage.", month=month, actor=SYSTEM)
    Webhook.objects.create(tenant=tenant, url="https://hooks.example.com/gatehouse")
    Reservation.objects.create(tenant_id=tenant.pk, devices=2, gpu_tag="h100")
    return keys
