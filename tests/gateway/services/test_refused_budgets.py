"""People are told of a budget that refuses, also while the ledger has it half empty."""

import asyncio
import dataclasses
from datetime import timedelta
from uuid import uuid4

import pytest
import redis
from django.conf import settings
from django.utils import timezone
from pytest_django import Settings

from core.clock import SystemClock
from core.errors import QuotaExceeded
from gateway.relay.limiting import layout
from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.limiter import ValkeyLimiter
from gateway.relay.valkey import ValkeyClient
from gateway.services import refused_budgets
from gateway.services.refused_budgets import tell_refusing_budgets
from gateway.services.snapshot_source import limit_rows
from tenants.actor import SYSTEM
from tenants.models import Notice, UsageMinute
from tenants.services.limits import create_limit
from tests.factories import make_tenant
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db


async def reserve(url: str, rows: list, tokens: list[int]) -> int:  # type: ignore[type-arg]
    """How many of these reservations, none of which ends, are refused by a limiter over a real Valkey."""
    client = ValkeyClient(url, deadline_seconds=30.0)
    limiter = ValkeyLimiter(client, prefix=settings.GATEHOUSE.valkey_prefix, process_id=uuid4(), clock=SystemClock())
    await limiter.join()
    refused = 0
    for count in tokens:
        try:
            await limiter.reserve(rows, Charge(input_tokens=count))
        except QuotaExceeded:
            refused += 1
    await client.close()
    return refused


def test_a_budget_that_refuses_is_told_of_once(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stay_within_a_day()
    monkeypatch.setattr(refused_budgets, "_DEADLINE_SECONDS", 30.0)  # a Valkey that stalls is waited for
    tenant = make_tenant()
    limits = [
        create_limit(metric="tokens", window=window, amount=1000, tenant=tenant, actor=SYSTEM)
        for window in ("day", "month")
    ]
    other = create_limit(metric="requests", window="day", amount=1000, tenant=tenant, actor=SYSTEM)
    now = timezone.now()
    minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    UsageMinute.objects.create(tenant_id=tenant.pk, model="m", minute=minute, requests=1, input_tokens=1)
    with redis.Redis.from_url(valkey_url) as client:
        area = layout.area(settings.GATEHOUSE.valkey_prefix)
        client.hset(area + "gen", mapping={"id": uuid4().hex, "state": "ready", "since": "0"})
    rows = list(limit_rows([*(limit.pk for limit in limits), other.pk]))
    assert asyncio.run(reserve(valkey_url, rows, [700])) == 0
    assert tell_refusing_budgets(now=now) == 0
    assert asyncio.run(reserve(valkey_url, rows, [700])) == 1
    assert tell_refusing_budgets(now=now) == 2
    assert tell_refusing_budgets(now=now) == 0
    told = {(notice.kind, notice.payload["limit"], notice.payload["share"]) for notice in Notice.objects.all()}
    assert told == {("budget_refusing", str(limit.pk), 100) for limit in limits}


def test_without_valkey_nothing_is_told(settings: Settings) -> None:
    settings.GATEHOUSE = dataclasses.replace(settings.GATEHOUSE, valkey_state_url="redis://127.0.0.1:1/0")
    tenant = make_tenant()
    create_limit(metric="tokens", window="day", amount=1000, tenant=tenant, actor=SYSTEM)
    minute = timezone.now().replace(second=0, microsecond=0) + timedelta(minutes=1)
    UsageMinute.objects.create(tenant_id=tenant.pk, model="m", minute=minute, requests=1, input_tokens=1)
    assert tell_refusing_budgets(now=timezone.now()) == 0
