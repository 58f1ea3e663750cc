"""Budgets of days and months at a key that was used before: only what comes after counts, and in its own zone (G29).

Real processes; the counters are lost and built anew from a ledger that has all that was ever spent.
"""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
import redis
from django.utils import timezone

from bench.house import wait_until
from core.ids import uuid7_from
from gateway.relay.limiting.layout import area
from gateway.services.limit_counters import LimitCounters
from gateway.services.limit_keeper import LimitKeeper
from tenants.actor import SYSTEM
from tenants.models import ApiKey, Limit, UsageRecord
from tenants.services.departments import change_tenant
from tenants.services.ledger import record_usage
from tenants.services.limits import change_limit, create_limit, delete_limit
from tests.house import TestHouse
from tests.tenants.usage_rows import usage_row
from tests.waiting import stay_within_a_day

TOKYO: Final = ZoneInfo("Asia/Tokyo")
CHAT: Final = "/v1/chat/completions"
FAR: Final = 1_000_000


def ask(house: TestHouse, **more: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **more}
    with house.client() as client:
        return client.post(CHAT, json=body)


def spent(house: TestHouse, *, since: datetime) -> int:
    rows = UsageRecord.objects.filter(key_id=house.key.id, started_at__gte=since)
    return sum((row.input_tokens or 0) + (row.output_tokens or 0) for row in rows)


class Counts:
    """What the shared counters have."""

    def __init__(self, house: TestHouse) -> None:
        self._house = house
        self.client = redis.Redis.from_url(house.environ["VALKEY_STATE_URL"], decode_responses=True)
        self.area = area(house.environ["GATEHOUSE_VALKEY_PREFIX"])

    def counter(self, limit: Limit) -> str:
        names: Any = self.client.keys(f"{self.area}c:{limit.pk.hex}:*")
        return str(names[0]) if names else ""

    def used(self, limit: Limit) -> int:
        """0 also where nothing was counted yet."""
        return int(self.client.hget(self.counter(limit), "used") or 0)

    def start(self, limit: Limit) -> datetime:
        return datetime.fromtimestamp(int(self.counter(limit).rpartition(":")[2]), UTC)

    def lose(self) -> None:
        """As a Valkey that lost its data; the keeper builds them anew."""
        for name in self.client.scan_iter(f"{self.area}*"):
            self.client.delete(name)
        wait_until(lambda: self.client.hget(self.area + "gen", "state") == "ready", "counters are built anew")

    def reconcile(self) -> None:
        """Beside the ledger, and set right; as the drain does by itself every half minute."""
        folder = Path(self._house.environ["GATEHOUSE_VAR_DIR"]) / "spool"
        counters = LimitCounters(self.client, prefix=self._house.environ["GATEHOUSE_VALKEY_PREFIX"])
        LimitKeeper(counters, spools=folder, recover=lambda: 0, stop=threading.Event()).compare_now()


@pytest.fixture
def counts(house: TestHouse) -> Iterator[Counts]:
    counts = Counts(house)
    wait_until(lambda: counts.client.hget(counts.area + "gen", "state") == "ready", "counters")
    yield counts
    counts.client.close()


def limited(house: TestHouse, window: str, *, amount: int = FAR) -> Limit:
    key = ApiKey.objects.get(pk=house.key.id)
    return create_limit(tenant=house.tenant, key=key, metric="tokens", window=window, amount=amount, actor=SYSTEM)


def served_under(house: TestHouse, limit: Limit) -> None:
    """Until the door has it; each try is spent under it or before it."""
    wait_until(
        lambda: ask(house).headers.get("x-ratelimit-limit-tokens") == str(limit.amount), f"{limit} at the door"
    )  # fmt: skip


def settled(house: TestHouse, counts: Counts, limit: Limit) -> int:
    """What the ledger has since the limit is there; the counter comes to the same."""
    last = ask(house)
    house.ledger_row(last.headers["x-request-id"])
    told = 0

    def same() -> bool:
        nonlocal told
        told = spent(house, since=limit.counts_from)
        return counts.used(limit) == told

    wait_until(same, f"what {limit} counts", seconds=60)  # at the latest when it is compared, each half minute
    return told


@pytest.mark.shows("G29")
@pytest.mark.parametrize("window", ["month", "day"])
def test_what_an_old_key_spent_before_its_budget_is_not_carried_in(
    house: TestHouse, counts: Counts, window: str
) -> None:
    stay_within_a_day()
    for _ in range(3):
        house.ledger_row(ask(house).headers["x-request-id"])
    before = spent(house, since=timezone.now() - timedelta(hours=1))
    assert before > 0
    limit = limited(house, window)
    served_under(house, limit)
    mine = settled(house, counts, limit)
    assert 0 < mine <= spent(house, since=timezone.now() - timedelta(hours=1)) - before

    counts.lose()
    assert counts.used(limit) == mine  # the ledger has all of it, and this month's
    served_under(house, limit)
    mine = settled(house, counts, limit)

    counts.client.hset(counts.counter(limit), "used", mine + before)  # as if it had been carried in
    counts.reconcile()
    assert counts.used(limit) == mine
    delete_limit(limit.pk, actor=SYSTEM)


@pytest.mark.shows("G29")
def test_a_day_in_tokyo_begins_at_its_own_midnight(house: TestHouse, counts: Counts) -> None:
    stay_within_a_day(TOKYO)
    change_tenant(house.tenant.pk, time_zone="Asia/Tokyo", actor=SYSTEM)
    today = timezone.now().astimezone(TOKYO).replace(hour=0, minute=0, second=0, microsecond=0)
    assert today.astimezone(UTC).hour == 15
    process = uuid4()
    for number, at in enumerate((today - timedelta(seconds=1), today), start=1):
        row_id = uuid7_from(int(at.timestamp() * 1000), 0, number)
        values = {"tenant_id": house.tenant.pk, "key_id": house.key.id, "started_at": at.timestamp()}
        tokens = {"input_tokens": 10_000 * number, "output_tokens": 0}
        record_usage([usage_row(process, number, id=row_id, **values, **tokens)])
    limit = limited(house, "day")
    Limit.objects.filter(pk=limit.pk).update(counts_from=today - timedelta(days=3))  # it has been there for long
    limit = change_limit(limit.pk, amount=50_000, actor=SYSTEM)
    counts.lose()
    served_under(house, limit)
    last = house.ledger_row(ask(house).headers["x-request-id"])
    wait_until(lambda: counts.used(limit) == spent(house, since=today), "today's tokens")
    assert 20_000 < counts.used(limit) < 30_000  # of yesterday's 10,000 none
    assert counts.start(limit) == today

    change_limit(limit.pk, amount=counts.used(limit) + 1, actor=SYSTEM)
    wait_until(lambda: ask(house).status_code == 429, "too much for what is left")
    most = (today + timedelta(days=1) - timezone.now()).total_seconds()
    refused = ask(house)
    least = (today + timedelta(days=1) - timezone.now()).total_seconds()
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert least - 1 <= int(refused.headers["retry-after"]) <= most + 1
    assert last.started_at >= today
