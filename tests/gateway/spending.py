"""Several relays spend budgets at the same time: the house, an engine that counts, and clients that do not behave.

Each budget is one tenant's, with a model of its own, so that the engine's counts can be told apart.
"""

import asyncio
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis
from django.db import connection
from django.db.models import Sum

from bench.house import wait_until
from bench.rows import Key, attach, make_key, make_tenant
from core.embedded.process import stop
from gateway.relay.limiting.layout import area
from gateway.relay.limiting.place import LOOK_SECONDS
from gateway.services.limit_compare import Compared
from gateway.services.limit_counters import LimitCounters
from gateway.services.limit_keeper import LimitKeeper
from gpupool.models import Instance
from tenants.actor import SYSTEM
from tenants.models import Tenant, UsageRecord
from tenants.policies.pricing import PriceTag
from tenants.services.limits import create_limit
from tenants.services.prices import fix_currency, set_price
from tests.doubles.engine import DONE, Received, Wire, chunk
from tests.doubles.engine import completion as completion_of
from tests.gateway.cases.desk import Engines
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
PROMPT_TOKENS: Final = 5
MOST_TOKENS: Final = 16
PRICE: Final = PriceTag(
    input_micros=1_000_000, cached_input_micros=1_000_000, output_micros=2_000_000, request_micros=9
)
PATIENT_REFUSALS: Final = 100
"""So many in a row take longer than a relay stalls, which may hold what is left of a budget meanwhile."""

_TOKEN_SECONDS: Final = 0.006  # slower than what limits count for who leaves


@dataclass(slots=True)
class Worked:
    """What the engine did for one model, and how much of that for answers that were broken off."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    broken_output: int = 0

    def spent(self, metric: str) -> int:
        """Of a budget, had all of it been billed: also what was made for who left."""
        if metric == "requests":
            return self.requests
        tokens = self.input_tokens + self.output_tokens
        return tokens if metric == "tokens" else 9 * self.requests + self.input_tokens + 2 * self.output_tokens


class CountingEngine:
    """Takes as long as its answer has tokens, a number by chance; counts what it does; tells it as vLLM does."""

    def __init__(self, engines: Engines) -> None:
        self.worked: dict[str, Worked] = {}
        self.port = engines.start(self._serve).port

    @property
    def requests(self) -> int:
        return sum(worked.requests for worked in self.worked.values())

    async def _serve(self, request: Received, wire: Wire) -> None:
        if request.method != "POST":
            await _whole(wire, self._metrics(request))
            return
        if request.path.endswith("/tokenize"):  # near a limit, bounds are counted again
            await _whole(wire, json.dumps({"count": PROMPT_TOKENS, "tokens": [*range(PROMPT_TOKENS)]}).encode())
            return
        body = request.json
        worked = self.worked.setdefault(body["model"], Worked())
        worked.requests += 1
        worked.input_tokens += PROMPT_TOKENS
        length = random.randint(1, body["max_tokens"])  # chance, not secrecy
        made = 0
        try:
            if body.get("stream"):
                await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
                await wire.chunk(chunk(role=True))
            for _ in range(length):
                await asyncio.sleep(_TOKEN_SECONDS)
                wire.check()
                made += 1
                worked.output_tokens += 1
                if body.get("stream"):
                    await wire.chunk(chunk("x"))
            if body.get("stream"):
                await wire.chunk(chunk(finish="stop"), chunk(usage=(PROMPT_TOKENS, length)), DONE)
                await wire.end_chunks()
            else:
                await _whole(wire, json.dumps(completion_of("x", usage=(PROMPT_TOKENS, length))).encode())
        except (OSError, asyncio.CancelledError):
            worked.broken_output += made
            raise

    def _metrics(self, request: Received) -> bytes:
        if not request.path.endswith("/metrics"):
            return b"{}"
        read = sum(worked.input_tokens for worked in self.worked.values())
        made = sum(worked.output_tokens for worked in self.worked.values())
        return f"vllm:prompt_tokens_total {read}\nvllm:generation_tokens_total {made}\n".encode()


async def _whole(wire: Wire, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    await wire.send(head.encode() + body)


@dataclass(slots=True)
class Budget:
    """A tenant that may spend so much in a month; without a metric, anything."""

    name: str
    metric: str
    amount: int
    tenant: Tenant
    key: Key
    instance: Instance

    def spent(self) -> int:
        """Of the metric, as the ledger has it; what was reserved for lost requests included."""
        rows = UsageRecord.objects.filter(tenant_id=self.tenant.pk)
        if self.metric == "requests":
            return rows.count()
        names = {"tokens": ("input_tokens", "output_tokens", "reserved_input", "reserved_output")}
        columns = names.get(self.metric, ("cost_micros", "reserved_micros"))
        return sum(rows.aggregate(total=Sum(column))["total"] or 0 for column in columns)


@dataclass(slots=True)
class Told:
    """What clients of one budget were told."""

    statuses: Counter[str] = field(default_factory=Counter)
    unavailable: list[float] = field(default_factory=list)  # moments of 503, monotonic
    longest_seconds: float = 0.0


class SpendingHouse(TestHouse):
    """A drain and several relays on one port."""

    __test__ = False

    counting: CountingEngine
    budgets: dict[str, Budget]

    def settle_in_for(self, engines: Engines, budgets: dict[str, tuple[str, int]], *, relays: int) -> None:
        """`budgets`: name -> metric (empty: none) and amount."""
        self.environ |= {"GATEHOUSE_TEMPLATE_TOKENS": "8", "GATEHOUSE_SNAPSHOT_POLL_SECONDS": "0.05"}
        self.counting = CountingEngine(engines)
        fix_currency("USD")
        self.budgets = {}
        for name, (metric, amount) in budgets.items():
            tenant = make_tenant(name, models=(f"model-{name}",))
            instance = attach(f"model-{name}", self.counting.port)
            set_price(f"model-{name}", PRICE, actor=SYSTEM)
            if metric:
                create_limit(tenant=tenant, metric=metric, window="month", amount=amount, actor=SYSTEM)
            self.budgets[name] = Budget(name, metric, amount, tenant, make_key(tenant, name), instance)
        self.start("drain")
        for number in range(relays):  # the door is open as soon as the first is there: the others are waited for below
            self.start_relay(number)
        wait_until(lambda: self.joined() == relays, "all relays count together")
        whole = time.monotonic()
        wait_until(lambda: time.monotonic() - whole > 3 * LOOK_SECONDS, "each has looked, and knows it")

    def start_relay(self, number: int) -> None:
        self.start("relay")
        self._processes[f"relay-{number}"] = self._processes.pop("relay")

    def stop_all(self) -> None:
        for name in [name for name in self._processes if name != "drain"]:
            stop(self._processes.pop(name), grace_seconds=5.0)
        super().stop_all()

    def valkey(self) -> "redis.Redis":
        return redis.Redis.from_url(self.environ["VALKEY_STATE_URL"], decode_responses=True, socket_timeout=5.0)

    def generation(self) -> dict[str, str]:
        with self.valkey() as client:
            found: Any = client.hgetall(area(self.environ["GATEHOUSE_VALKEY_PREFIX"]) + "gen")
            return dict(found)

    def joined(self) -> int:
        """How many processes share counters that may be used."""
        if self.generation().get("state") != "ready":
            return 0
        with self.valkey() as client:
            found: Any = client.zcard(area(self.environ["GATEHOUSE_VALKEY_PREFIX"]) + "procs")
            return int(found)

    def orphans(self) -> set[str]:
        with self.valkey() as client:
            found: Any = client.smembers(area(self.environ["GATEHOUSE_VALKEY_PREFIX"]) + "orphans")
            return set(found)

    def spools(self) -> set[str]:
        folder = self.folder / "var" / "spool"
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def reconcile(self) -> dict[str, Compared]:
        """Counters beside the ledger, set right; by the budget's name."""
        with self.valkey() as client:
            keeper = LimitKeeper(
                LimitCounters(client, prefix=self.environ["GATEHOUSE_VALKEY_PREFIX"]),
                spools=Path(self.environ["GATEHOUSE_VAR_DIR"]) / "spool",
                recover=lambda: 0,
                stop=threading.Event(),
            )
            found = keeper.compare_now()
        names = {budget.tenant.pk: name for name, budget in self.budgets.items()}
        return {names[one.limit.tenant_id]: one for one in found if one.limit.tenant_id is not None}

    def all_in_ledger(self) -> None:
        """Wait until no process owes the ledger anything."""
        with self.valkey() as client:
            wait_until(
                lambda: all(
                    mark >= int(said) for said, mark in _reported(client, area(self.environ["GATEHOUSE_VALKEY_PREFIX"]))
                ),
                "the ledger has what was reported",
            )


def _reported(client: "redis.Redis", prefix: str) -> Iterator[tuple[str, int]]:
    through: Any = client.hgetall(prefix + "through")
    with connection.cursor() as cursor:
        cursor.execute("SELECT replace(process_id::text, '-', ''), sequence FROM tenants_ledgermark")
        marks = dict(cursor.fetchall())
    for process, said in through.items():
        yield said, marks.get(process, 0)


class Spenders:
    """Clients in parallel, spread over budgets (all, or those of `of`); a tenth leave in the middle.

    They end when refused for good.
    """

    def __init__(
        self,
        house: SpendingHouse,
        *,
        clients: int,
        refusals: int = 3,
        pause_seconds: float = 0.0,
        of: Sequence[str] = (),
        until: Callable[[], bool] | None = None,
    ) -> None:
        names = of or [*house.budgets]
        self.told = {name: Told() for name in names}
        self._house = house
        self._refusals = refusals
        self._pause_seconds = pause_seconds
        self._until = until
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._spend, args=(house.budgets[names[number % len(names)]], number))
            for number in range(clients)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self._threads), "clients did not come to an end"

    def _spend(self, budget: Budget, number: int) -> None:
        chance = random.Random(number)
        refused = 0
        client: http.client.HTTPConnection | None = None
        while refused < self._refusals and not (self._until is not None and self._until()):
            if client is None:
                client = http.client.HTTPConnection("127.0.0.1", self._house.relay_port, timeout=30)
            begun = time.monotonic()
            word, alive = self._ask(client, budget, chance)
            with self._lock:
                told = self.told[budget.name]
                told.statuses[word] += 1
                told.longest_seconds = max(told.longest_seconds, time.monotonic() - begun)
                if word == "503":
                    told.unavailable.append(time.monotonic())
            if not alive:
                client.close()
                client = None
            if word == "insufficient_quota":
                refused += 1
            elif word == "200":
                refused = 0
            pause = self._pause_seconds if word in ("200", "left") else 0.05
            if pause:
                time.sleep(pause)
        if client is not None:
            client.close()

    def _ask(self, client: http.client.HTTPConnection, budget: Budget, chance: random.Random) -> tuple[str, bool]:
        """What came of it, and whether the connection can be used again."""
        streamed, leaves = chance.random() < 0.5, chance.random() < 0.1
        body = {"model": f"model-{budget.name}", "messages": [{"role": "user", "content": "Hi"}], "stream": streamed}
        body |= {"max_tokens": MOST_TOKENS}
        try:
            client.request("POST", CHAT, json.dumps(body), {"Authorization": f"Bearer {budget.key.secret}"})
            if leaves and not streamed:
                time.sleep(0.01)
                return "left", False
            answer = client.getresponse()
            if leaves and answer.status == 200:
                answer.read(40)
                return "left", False
            content = answer.read()
        except (OSError, http.client.HTTPException):
            return "broken", False
        if answer.status == 429:
            return str(json.loads(content)["error"]["code"]), True
        if streamed and answer.status == 200 and not content.endswith(b"data: [DONE]\n\n"):
            return "broken", False
        return str(answer.status), True
