"""A keeper with a Valkey and a ledger of its own, for tests of what it does with counters."""

import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import redis
from django.utils import timezone

from gateway.relay.limiting.layout import Counter, counter_of
from gateway.services.limit_compare import Compared
from gateway.services.limit_counters import LimitCounters
from gateway.services.limit_keeper import KeeperTimes, LimitKeeper
from gateway.services.snapshot_source import limit_rows
from tenants.models import Limit
from tenants.services.ledger import Progress, record_usage
from tests.factories import make_tenant
from tests.gateway.services.limit_process import SaidProcess
from tests.tenants.usage_rows import usage_row
from tests.waiting import stay_within_a_day

PREFIX: Final = "keeping:"
AT_ONCE: Final = KeeperTimes(compare=0.0, look=0.01, slices=0.0, join=0.0, ledger=0.0)


class Rig:
    """A keeper with a Valkey and a ledger of its own."""

    def __init__(self, client: "redis.Redis", spools: Path) -> None:
        stay_within_a_day()
        self.client = client
        self.spools = spools
        self.recovered = 0
        self.tenant = make_tenant()
        self.keeper = self.new_keeper()

    def new_keeper(self, times: KeeperTimes = AT_ONCE) -> LimitKeeper:
        counters = LimitCounters(self.client, prefix=PREFIX)
        return LimitKeeper(counters, spools=self.spools, recover=self._recover, stop=threading.Event(), times=times)

    def _recover(self) -> int:
        self.recovered += 1
        return 0

    def limit(self, metric: str = "requests", window: str = "day", **more: Any) -> Limit:
        values: dict[str, Any] = {"tenant": self.tenant, "amount": 100, "counts_from": _today()}
        return Limit.objects.create(metric=metric, window=window, **(values | more))

    def counter(self, limit: Limit) -> Counter:
        [row] = limit_rows([limit.pk])
        return counter_of(row, time.time())

    def state(self, name: str) -> dict[str, str]:
        found: Any = self.client.hgetall(f"{PREFIX}lim:{name}")
        return dict(found)

    def counts(self, limit: Limit) -> tuple[int, int]:
        """used, held"""
        state = self.state(self.counter(limit).name)
        return int(state.get("used", 0)), int(state.get("held", 0))

    def set_used(self, limit: Limit, used: int) -> None:
        self.client.hset(f"{PREFIX}lim:{self.counter(limit).name}", "used", used)

    def process(self, process_id: UUID | None = None) -> SaidProcess:
        return SaidProcess(self.client, PREFIX, process_id)

    def spend(self, process: UUID, sequence: int, **more: Any) -> None:
        """A row of the process in the ledger, its mark included."""
        values = {"tenant_id": self.tenant.pk, "started_at": time.time()} | more
        row = usage_row(process, sequence, **values)
        record_usage([row], progress={process: Progress(0, {sequence})})

    def lose(self) -> None:
        self.client.flushdb()

    def compare(self) -> Compared:
        """Of the one limit that there is."""
        [found] = self.keeper.compare_now()
        return found


def _today() -> datetime:
    return timezone.now() - timedelta(days=40)
