"""Limiters on a real Valkey, whose clock a test may set: what `TIME` answers is read from a key instead."""

import asyncio
import hashlib
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import redis

from core.clock import Clock, ManualClock
from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.book import Held
from gateway.relay.limiting.layout import area, recall_channel
from gateway.relay.limiting.limiter import ValkeyLimiter
from gateway.relay.limiting.scripts import Script
from gateway.relay.limiting.store import Store, StoreUnavailable
from gateway.relay.rows import LimitRow
from gateway.relay.subscriber import Subscriber
from gateway.relay.valkey import ValkeyClient

YEAR = datetime.now(UTC).year + 1
"""All of it is later than now, by which the server lets keys expire."""

NOON = int(datetime(YEAR, 7, 1, 12, tzinfo=UTC).timestamp())


def a_limit(
    metric: str = "requests",
    window: str = "minute",
    amount: int = 10,
    *,
    refill: float | None = None,
    zone: str = "UTC",
    boost: tuple[int, float] | None = None,
    limit_id: UUID | None = None,
) -> LimitRow:
    """A tenant's limit of its own."""
    return LimitRow(
        id=limit_id or uuid4(),
        tenant_id=uuid4(),
        subtree=False,
        key_id=None,
        model="",
        metric=metric,
        window=window,
        amount=amount,
        refill_per_second=refill,
        boost_amount=boost[0] if boost else None,
        boost_until=boost[1] if boost else None,
        counts_from=0.0,
        time_zone=zone,
        tenant_slug="acme",
    )


class Counters:
    """What stands in Valkey, and a keeper's part of the protocol as far as tests need one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.prefix = f"{uuid4().hex}:"
        self.area = area(self.prefix)
        self.client: Any = redis.Redis.from_url(url, decode_responses=True)

    def begin(self, state: str = "ready", *, run: str | None = None) -> str:
        """A new generation."""
        generation = uuid4().hex
        fields = {"id": generation, "state": state, "since": "0"}
        if run is not None:
            fields["run"] = run
        self.client.delete(self.area + "gen")
        self.client.hset(self.area + "gen", mapping=fields)
        return generation

    def lose(self) -> None:
        """Everything, as a server without its file."""
        clock = self.client.hgetall(self.area + "clock")
        for key in self.client.scan_iter(self.area + "*", count=1000):
            self.client.delete(key)
        if clock:
            self.client.hset(self.area + "clock", mapping=clock)

    def set_time(self, seconds: float) -> None:
        whole, micros = divmod(round(seconds * 1e6), 1_000_000)
        self.client.hset(self.area + "clock", mapping={"s": whole, "us": micros})

    def hash(self, name: str) -> dict[str, int]:
        found = self.client.hgetall(self.area + name)
        return {field: int(float(value)) for field, value in found.items()}

    def counter(self, kind: str, limit: LimitRow) -> dict[str, int]:
        """The one counter of a limit; empty when it was never used."""
        names = sorted(self.client.scan_iter(f"{self.area}{kind}:{limit.id.hex}*", count=1000))
        assert len(names) <= 1, names
        return self.hash(names[0].removeprefix(self.area)) if names else {}

    def lapse(self, process_id: UUID) -> None:
        """Its time is over, as after 10 s of silence."""
        self.client.zadd(self.area + "procs", {process_id.hex: 1.0})


class TimedStore(Store):
    """Scripts that take the time from the key `clock`; answers can be lost on their way, and are else waited for."""

    drop_answers = 0
    drop_calls = 0

    async def call(self, script: Script, *values: object, deadline_seconds: float | None = None) -> list[Any]:
        if self.drop_calls:
            self.drop_calls -= 1
            raise StoreUnavailable("not sent")
        answer = await super().call(timed(script), *values)
        if self.drop_answers:
            self.drop_answers -= 1
            raise StoreUnavailable("no answer")
        return answer

    async def _load(self) -> None:
        for script in _TIMED.values():
            await self._client.call("SCRIPT", "LOAD", script.text)


_TIMED: dict[str, Script] = {}


def timed(script: Script) -> Script:
    if script.digest not in _TIMED:
        text = script.text.replace(b"redis.call('TIME')", b"redis.call('HMGET', P .. 'clock', 's', 'us')")
        _TIMED[script.digest] = Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
    return _TIMED[script.digest]


class Process:
    """One gateway process as limits see it. With a `timed` clock nothing runs by itself: call `join` and `tell`."""

    def __init__(self, counters: Counters, *, clock: Clock, timed: bool = False, deadline_seconds: float = 10) -> None:
        self.id = uuid4()
        self.client = ValkeyClient(counters.url, deadline_seconds=deadline_seconds)
        self.limiter = ValkeyLimiter(self.client, prefix=counters.prefix, process_id=self.id, clock=clock)
        self.store: TimedStore | None = None
        if timed:
            self.store = TimedStore(self.client, prefix=counters.prefix, process_hex=self.id.hex)
            self.limiter._store = self.store
        self.subscriber = Subscriber(counters.url, recall_channel(counters.prefix), self.limiter.recalled)
        self.sequence = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> "Process":
        """Run as in a gateway, and wait until it may admit."""
        self._tasks = [asyncio.create_task(self.subscriber.run()), asyncio.create_task(self.limiter.run())]
        async with asyncio.timeout(10):
            await self.subscriber.subscribed.wait()
            await self.limiter._joined.wait()
        return self

    async def reserve(self, limits: Sequence[LimitRow], bound: Charge) -> Held:
        """As a pipeline does."""
        return self.limiter.reserve_now(limits, bound) or await self.limiter.reserve(limits, bound)

    async def live(self, times: "Times", seconds: float) -> None:
        """Let time pass while it does what `run` does."""
        while seconds > 0:
            times.advance(min(seconds, 2.0))
            await self.limiter.tell(rotate=True)
            seconds -= 2.0

    def settle(self, held: Held, used: Charge | None) -> int:
        """With the next row of its spool."""
        self.sequence += 1
        held.settle(used, self.sequence)
        return self.sequence

    async def kill(self) -> None:
        """Gone, without a word."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    async def stop(self) -> None:
        """As on SIGTERM."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.limiter.close()
        await self.client.close()


class Times:
    """Valkey's clock and the processes', moved together."""

    def __init__(self, counters: Counters, start: float = NOON) -> None:
        self.counters = counters
        self.local = ManualClock()
        self.now = start
        counters.set_time(start)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.local.advance(seconds)
        self.counters.set_time(self.now)


async def until(condition: Any, what: str, *, seconds: float = 30.0) -> None:
    """Poll on the loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)
