"""Whatever happens, in whatever order: nothing is overspent, negative, leaked or counted twice.

Hypothesis drives three processes, the counters' clock and everything that can go wrong; a model beside them knows what
was admitted. The real Valkey is asked after every step.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from core.embedded.valkey import ValkeyServer
from core.errors import QuotaExceeded, RateLimited, StateStoreUnavailable
from gateway.relay.limiting import limiter as limiter_module
from gateway.relay.limiting.base import NOTHING, Charge
from gateway.relay.limiting.book import Held
from gateway.relay.limiting.layout import counter_of
from gateway.relay.limiting.place import State
from gateway.relay.rows import LimitRow
from tests.gateway.relay.limiting.valkey import Counters, Process, Times, a_limit

T = TypeVar("T")
PROCESSES = 3
_server: ValkeyServer
COUNTED: dict[str, Callable[[Charge], int]] = {
    "requests": lambda c: c.requests,
    "tokens": lambda c: c.input_tokens + c.output_tokens,
}


@pytest.fixture(autouse=True)
def _retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter_module, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(limiter_module, "_JOIN_WAIT_SECONDS", 0.001)


@dataclass(eq=False)
class Admitted:
    """A request as the model knows it."""

    process: Process
    held: Held
    limits: list[LimitRow]
    bound: Charge
    at: float
    used: Charge | None = None  # None: it runs, or nobody knows
    ended: bool = False
    sequence: int = 0
    known: bool = True  # whether its process still lives

    def counts(self, limit: LimitRow) -> int:
        if limit not in self.limits:
            return 0
        if limit.metric == "concurrency":
            return 0 if self.ended else 1
        return COUNTED[limit.metric](self.used if self.used is not None else self.bound)


class LimitsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.counters = Counters(_server.database_url(0))
        self.times = Times(self.counters)
        self.processes: list[Process] = []
        self.requests: list[Admitted] = []
        self.ledger: dict[str, int] = {}
        """Process -> last sequence that the ledger is known to have."""

    @initialize(
        small=st.integers(1, 60),
        large=st.integers(2_000, 20_000),
        gates=st.sampled_from([1, 3, 100]),
    )
    def begin(self, small: int, large: int, gates: int) -> None:
        self.counters.begin()
        self.limits = {
            "day": a_limit("tokens", "day", small),
            "month": a_limit("tokens", "month", large),
            "minute": a_limit("tokens", "minute", small),
            "rpm": a_limit("requests", "minute", large),
            "bucket": a_limit("tokens", "bucket", small, refill=0.5),
            "barrel": a_limit("requests", "bucket", large, refill=1.0),
            "gate": a_limit("concurrency", "standing", gates),
        }
        for _ in range(PROCESSES):
            self.processes.append(self._new())

    def teardown(self) -> None:
        try:
            if self.processes:
                self.settle_all()
        finally:
            for process in self.processes:
                self.loop.run_until_complete(process.client.close())
            self.counters.client.close()
            self.loop.close()

    def _new(self) -> Process:
        process = Process(self.counters, clock=self.times.local, timed=True)
        self.run(process.limiter.join())
        return process

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @rule(
        number=st.integers(0, PROCESSES - 1),
        names=st.sets(st.sampled_from(["day", "month", "minute", "rpm", "bucket", "barrel", "gate"]), min_size=1),
        units=st.integers(0, 30),
        count=st.integers(1, 30),
    )
    def reserve(self, number: int, names: set[str], units: int, count: int) -> None:
        process = self.processes[number]
        limits = tuple(self.limits[name] for name in sorted(names))
        bound = Charge(input_tokens=units // 2, output_tokens=units - units // 2)
        for _ in range(count):
            try:
                held = self.run(process.reserve(limits, bound))
            except (RateLimited, QuotaExceeded):
                break
            except StateStoreUnavailable:
                assert process.limiter._state is not State.JOINED
                break
            self.requests.append(Admitted(process, held, list(limits), bound, self.times.now))

    @rule(data=st.data(), known=st.booleans(), count=st.integers(1, 40))
    @precondition(lambda self: any(not r.ended and r.known for r in self.requests))
    def settle(self, data: st.DataObject, known: bool, count: int) -> None:
        running = [r for r in self.requests if not r.ended and r.known]
        first = data.draw(st.integers(0, len(running) - 1))
        for request in running[first : first + count]:
            used = data.draw(st.integers(0, request.bound.input_tokens)) if known else None
            forwarded = known and used and data.draw(st.booleans())
            self.end(
                request, Charge(used or 0, request.bound.output_tokens) if forwarded else None if not known else NOTHING
            )

    def end(self, request: Admitted, used: Charge | None) -> None:
        request.ended = True
        request.used = used
        if used is NOTHING:
            request.held.settle(NOTHING, 0)
        else:
            request.sequence = request.process.settle(request.held, used)

    @rule(number=st.integers(0, PROCESSES - 1), rotate=st.booleans())
    def tell(self, number: int, rotate: bool) -> None:
        self.wake(self.processes[number], rotate=rotate)

    def wake(self, process: Process, *, rotate: bool = True) -> None:
        """What `run` does when it comes to it."""
        if process.limiter._state is State.JOINED:
            self.run(process.limiter.tell(rotate=rotate))
        for _ in range(3):
            if process.limiter._state is not State.JOINED:
                self.run(process.limiter.join())

    @rule(
        seconds=st.sampled_from([0.1, 1.0, 2.5, 9.0, 30.0, 58.0, 61.0]), asleep=st.sets(st.integers(0, PROCESSES - 1))
    )
    def pass_time(self, seconds: float, asleep: set[int]) -> None:
        """Some processes sleep through it."""
        while seconds > 0:
            self.times.advance(min(seconds, 2.0))
            for number, process in enumerate(self.processes):
                if number not in asleep:
                    self.wake(process)
            seconds -= 2.0

    @rule()
    def pass_midnight(self) -> None:
        self.times.advance(86_400 - self.times.now % 86_400)

    @rule(number=st.integers(0, PROCESSES - 1), calls=st.integers(0, 2), answers=st.integers(0, 2))
    def lose_messages(self, number: int, calls: int, answers: int) -> None:
        store = self.processes[number].store
        assert store is not None
        store.drop_calls, store.drop_answers = calls, answers

    @rule(number=st.integers(0, PROCESSES - 1), name=st.sampled_from(["day", "month", "minute", "rpm", "gate"]))
    def recall(self, number: int, name: str) -> None:
        kind = {"minute": "w", "rpm": "w", "gate": "s"}.get(name, "c")
        limit = self.limits[name]
        for key in self.counters.client.scan_iter(f"{self.counters.area}{kind}:{limit.id.hex}*", count=1000):
            self.processes[number].limiter.recalled(key.removeprefix(self.counters.area))

    @rule(number=st.integers(0, PROCESSES - 1))
    def kill(self, number: int) -> None:
        """With SIGKILL; another takes its place. Its rows come into the ledger later (see the keeper)."""
        process = self.processes[number]
        for request in self.requests:
            if request.process is process:
                request.known = False
        self.run(process.client.close())
        self.processes[number] = self._new()

    @rule(data=st.data())
    def lose_everything(self, data: st.DataObject) -> None:
        """Valkey forgets; a keeper builds anew out of a ledger that is behind each process by so many rows."""
        client, area = self.counters.client, self.counters.area
        self.counters.lose()
        self.counters.begin("rebuilding")
        self.times.advance(0.5)  # processes hear of it
        marks: dict[str, int] = {}
        for process in self.processes:
            assert process.store is not None
            process.store.drop_calls = process.store.drop_answers = 0
            # Never behind what it had when counters were lost before: a ledger forgets no row that it acknowledged.
            process_hex = process.id.hex
            marks[process_hex] = data.draw(st.integers(self.ledger.get(process_hex, 0), process.sequence))
            self.ledger[process_hex] = marks[process_hex]
            process.limiter.acknowledged(data.draw(st.integers(0, marks[process.id.hex])))
            self.wake(process)
        if data.draw(st.booleans()):
            for request in [r for r in self.requests if r.known and not r.ended][:3]:
                self.end(request, None)
        for limit in self.limits.values():
            for request in self.requests:
                mark = marks.get(request.process.id.hex)  # a dead process's rows are all in the ledger
                if limit not in request.limits or (mark is not None and not 0 < request.sequence <= mark):
                    continue
                units = request.counts(limit)
                if limit.window in ("day", "month"):
                    counter = counter_of(limit, request.at)
                    client.hincrby(area + counter.name, "used", units)
                    client.hset(area + counter.name, "end", counter.end)
                elif limit.window == "minute" and units and request.at >= self.times.now - 60:
                    key, second = f"{area}w:{limit.id.hex}", int(request.at)
                    client.hincrby(key, str(second), units)
                    client.hincrby(key, "used", units)
                    client.hset(key, mapping={"last": int(self.times.now), "head": int(self.times.now) - 60})
            if limit.window == "bucket":
                fields = {"level": 0, "at": round(self.times.now * 1e6)}
                client.hset(f"{area}b:{limit.id.hex}", mapping=fields)
        for process_hex, mark in marks.items():
            client.hset(area + "marks", process_hex, mark)
        client.hset(area + "gen", "state", "ready")
        for process in self.processes:
            self.wake(process)
            assert process.limiter._state is State.JOINED

    @rule()
    def resolve_orphans(self) -> None:
        """As the keeper does, of processes that are gone: open requests are held to have used their bound."""
        client, area = self.counters.client, self.counters.area
        for process_hex in client.smembers(area + "orphans"):
            mine = [r for r in self.requests if r.process.id.hex == process_hex]
            if any(r.known for r in mine) or client.zscore(area + "procs", process_hex):
                continue
            through = int(client.hget(area + "through", process_hex) or 0)
            for name, units in client.hgetall(area + "o:" + process_hex).items():
                limit, start = self._period(name)
                rows = [
                    r for r in mine if limit in r.limits and r.used is not NOTHING and self._start(limit, r.at) == start
                ]
                used = sum(r.counts(limit) for r in rows if not r.ended or r.sequence > through)
                client.hincrby(area + name, "used", used)
                client.hincrby(area + name, "held", -int(units))
            client.hset(area + "through", process_hex, 1_000_000)
            client.delete(area + "o:" + process_hex)
            client.srem(area + "orphans", process_hex)

    def _period(self, name: str) -> tuple[LimitRow, int]:
        _, limit_hex, start = name.split(":")
        return next(limit for limit in self.limits.values() if limit.id.hex == limit_hex), int(start)

    def _start(self, limit: LimitRow, at: float) -> int:
        return counter_of(limit, at).start

    # What must hold

    @invariant()
    def counters_add_up(self) -> None:
        if not self.processes:
            return
        client, area = self.counters.client, self.counters.area
        holders = [client.hgetall(key) for key in client.scan_iter(area + "[ho]:*", count=10_000)]
        free = [client.hgetall(key) for key in client.scan_iter(area + "f:*", count=10_000)]
        for limit in self.limits.values():
            for key in client.scan_iter(f"{area}?:{limit.id.hex}*", count=10_000):
                name = key.removeprefix(area)
                fields = {field: float(value) for field, value in client.hgetall(key).items()}
                assert all(value >= 0 for value in fields.values()), (limit.window, fields)
                held = fields.get("held", 0)
                assert held == sum(int(one.get(name, 0)) for one in holders), (limit.window, name, fields)
                if limit.window in ("day", "month", "standing"):
                    assert fields.get("free", 0) == sum(int(one.get(name, 0)) for one in free)
                    assert fields.get("free", 0) <= held
                if limit.window == "minute":
                    seconds = sum(value for field, value in fields.items() if field.isdigit())
                    assert fields.get("used", 0) == seconds
                if limit.window == "bucket":
                    assert fields["level"] <= limit.amount
                elif not self.forced(limit):
                    assert fields.get("used", 0) + held <= limit.amount, (limit.window, fields)

    def forced(self, limit: LimitRow) -> bool:
        """Requests at once may be more: those of a process that was silent for 10 s and lives are not cut off."""
        return limit.window == "standing"

    @invariant()
    def nothing_is_overspent(self) -> None:
        if not self.requests:
            return
        for limit in self.limits.values():
            mine = [r for r in self.requests if limit in r.limits]
            if limit.window in ("day", "month"):
                sums: dict[int, int] = {}
                for request in mine:
                    start = self._start(limit, request.at)
                    sums[start] = sums.get(start, 0) + request.counts(limit)
                assert max(sums.values(), default=0) <= limit.amount
                self.is_accounted_for(limit, sums)
            elif limit.window == "minute":
                for request in mine:
                    window = [r.counts(limit) for r in mine if request.at <= r.at < request.at + 60]
                    assert sum(window) <= limit.amount
            elif limit.window == "bucket":
                for request in mine:
                    for last in mine:
                        if last.at >= request.at:
                            taken = sum(r.counts(limit) for r in mine if request.at <= r.at <= last.at)
                            assert (
                                taken <= limit.amount + (last.at - request.at) * (limit.refill_per_second or 0) + 1e-3
                            )

    def is_accounted_for(self, limit: LimitRow, sums: dict[int, int]) -> None:
        """Of what was admitted in a period all stands in its counter, as used or held."""
        for start, admitted in sums.items():
            counted = self.counters.hash(f"c:{limit.id.hex}:{start}")
            assert counted.get("used", 0) + counted.get("held", 0) >= admitted, (limit.window, start, counted)

    def settle_all(self) -> None:
        """When everybody has told everything nothing is held, and what was used is what is counted."""
        for process in self.processes:
            assert process.store is not None
            process.store.drop_calls = process.store.drop_answers = 0
        for request in self.requests:
            if not request.ended and request.known:
                self.end(request, Charge(0, request.bound.output_tokens))
        self.pass_time(14.0, set())
        for process in self.processes:
            self.run(process.limiter.tell(rotate=True, everything=True))
        self.resolve_orphans()
        self.counters_add_up()
        self.nothing_is_overspent()
        for limit in self.limits.values():
            if limit.window in ("day", "month"):
                sums: dict[int, int] = {}
                for request in self.requests:
                    if limit in request.limits:
                        start = self._start(limit, request.at)
                        sums[start] = sums.get(start, 0) + request.counts(limit)
                for start, used in sums.items():
                    counted = self.counters.hash(f"c:{limit.id.hex}:{start}")
                    assert (counted.get("used", 0), counted.get("held", 0)) == (used, 0), limit.window
            elif limit.window == "standing":
                assert self.counters.counter("s", limit) == {}
            elif limit.window == "minute":
                assert self.counters.counter("w", limit).get("held", 0) == 0


def test_nothing_is_overspent_or_leaked(server: ValkeyServer) -> None:
    global _server
    _server = server
    run_state_machine_as_test(
        LimitsMachine,
        settings=settings(
            max_examples=int(os.environ.get("GATEHOUSE_TEST_EXAMPLES", "20")),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
