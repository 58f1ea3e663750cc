"""`manage.py limits`: what an operator sees of counters and the ledger."""

import time
from io import StringIO
from typing import Any

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError, call_command

from core.ids import uuid7
from gateway.relay.limiting.layout import counter_of
from gateway.services.limit_counters import LOCK_SECONDS
from gateway.services.limit_keeper import LimitKeeper
from gateway.services.snapshot_source import limit_rows
from tenants.actor import SYSTEM
from tenants.services.ledger import Progress, record_usage
from tenants.services.limits import create_limit
from tests.factories import make_tenant
from tests.tenants.usage_rows import usage_row
from tests.waiting import stay_within_a_day

pytestmark = pytest.mark.django_db(transaction=True)


def _limits(*arguments: str) -> list[list[str]]:
    told = StringIO()
    call_command("limits", *arguments, stdout=told)
    return [line.split() for line in told.getvalue().splitlines()]


@pytest.mark.shows("G5")
def test_counters_stand_beside_the_ledger_and_are_set_right_when_told_to(valkey_url: str) -> None:
    stay_within_a_day()
    tenant = make_tenant("acme")
    create_limit(tenant=tenant, metric="requests", window="day", amount=10, actor=SYSTEM)
    [limit] = limit_rows(None)
    process = uuid7()
    row = usage_row(process, 1, tenant_id=tenant.pk, started_at=time.time())
    record_usage([row], progress={process: Progress(0, {1})})
    area = f"{settings.GATEHOUSE.valkey_prefix}lim:"
    with redis.Redis.from_url(valkey_url, decode_responses=True) as client:
        counter = area + counter_of(limit, time.time()).name
        client.hset(area + "gen", mapping={"id": uuid7().hex, "state": "ready"})
        client.hset(counter, mapping={"used": 4, "held": 2})
        shown = ["10", "requests", "a", "day", "acme", "4", "2", "1", "-3"]
        assert _limits()[1] == [*shown, "+0"]
        assert client.hget(counter, "used") == "4"
        assert _limits("--reconcile")[1] == [*shown, "-3"]
        assert client.hget(counter, "used") == "1"
        assert not client.exists(area + "keeper")


def test_it_says_why_nothing_was_compared(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommandError, match="rebuilt"):
        _limits()
    compare_now = LimitKeeper.compare_now

    def at_once(self: LimitKeeper, **more: Any) -> Any:
        return compare_now(self, **more, wait_seconds=0.0)

    monkeypatch.setattr(LimitKeeper, "compare_now", at_once)
    with redis.Redis.from_url(valkey_url) as client:
        client.set(f"{settings.GATEHOUSE.valkey_prefix}lim:keeper", "another", ex=LOCK_SECONDS)
    with pytest.raises(CommandError, match="another keeper"):
        _limits()
