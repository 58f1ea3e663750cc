"""Shares in an exchange, without a network: who may have one, and what each is told whatever the others do."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.clock import SystemClock
from core.errors import GatehouseError, render_openai
from core.ids import uuid7
from gateway.relay.coalesce import Coalescer, may_share
from gateway.relay.deadlines import Deadlines
from gateway.relay.exchange import Exchange, ResponseHead
from gateway.relay.flight import Member
from gateway.relay.plan import (
    Api,
    Endpoint,
    Outcome,
    Ready,
    Settlement,
    SlimRequest,
    TrafficClass,
    Usage,
    UsageSource,
    Work,
)
from gateway.relay.splice import parse_body
from tests.gateway.relay.door.house import PRINCIPAL, FirstPicker, NotedTicket

USAGE = Usage(7, 0, 3, UsageSource.ENGINE)


class FakeExchange:
    """Tells what it is given: bytes one after another, then how it ended."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.finished = False
        self.content_told = False
        self.endpoint: Endpoint | None = None
        self.settlement: Settlement | None = None
        self.defect: Exception | None = None
        self._given: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._first: tuple[bytes, bool] | None = None

    def give(self, chunk: bytes, *, last: bool = False) -> None:
        self._given.put_nowait((chunk, last))

    async def open(self) -> ResponseHead:
        self._first = await self._given.get()
        if self.defect is not None:
            raise self.defect
        return ResponseHead(200, [(b"content-type", b"text/event-stream"), (b"x-request-id", b"the first one's")])

    async def next_chunk(self) -> bytes:
        (chunk, last), self._first = self._first or await self._given.get(), None
        self.content_told = True
        if last:
            self.finished = True
            self._settle(Outcome.SUCCESS)
        return chunk

    def close(self, error: GatehouseError | None = None) -> None:
        self._settle(Outcome.CANCELLED if error is None else Outcome.TRUNCATED)

    def _settle(self, outcome: Outcome) -> None:
        if self.settlement is None:
            usage = USAGE if self.content_told else Usage()
            self.settlement = Settlement(outcome, 200, usage, 0.1, attempts=1)
            self.ready.ticket.settle(self.settlement)


@dataclass
class Share:
    """A member, and what became of it."""

    member: Member
    rows: list[Settlement]
    told: bytes = b""
    left: bool = False

    async def take(self) -> None:
        async with asyncio.timeout(5):
            if not self.told:
                await self.member.open()
            while not self.member.finished:
                self.told += await self.member.next_chunk()


class Shares:
    """A coalescer in front of fake exchanges."""

    def __init__(self, **deadlines: Any) -> None:
        self.exchanges: list[FakeExchange] = []
        self.joined = 0
        self.coalescer = Coalescer(
            self._exchange, SystemClock(), replace(Deadlines(), **deadlines), on_join=self._count
        )

    def share(self, ready: Ready) -> Share:
        member = self.coalescer.carry(ready)
        assert isinstance(member, Member)
        return Share(member, cast(NotedTicket, ready.ticket).settlements)

    def _exchange(self, ready: Ready) -> Exchange:
        exchange = FakeExchange(ready)
        self.exchanges.append(exchange)
        return cast(Exchange, exchange)

    def _count(self, api: Api) -> None:
        self.joined += 1


def ready(
    *,
    api: Api = Api.CHAT,
    headers: Sequence[tuple[bytes, bytes]] = (),
    cls: TrafficClass = TrafficClass.STANDARD,
    **more: Any,
) -> Ready:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "stream": True, **more}
    data = json.dumps(body).encode()
    request = SlimRequest(uuid7(), api, "/v1/chat/completions", headers, data, SystemClock().monotonic(), cls)
    work = Work(Api.CHAT, request.path, data, parse_body(Api.CHAT, data))
    return Ready(request, PRINCIPAL, work, FirstPicker([]), NotedTicket([]))


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        (ready(), True),
        (ready(temperature=-0.0), True),
        (ready(temperature=1e-9), False),
        (ready(temperature="0"), False),
        (ready(temperature=True), False),
        (ready(temperature=1, user="a"), False),
        (ready(temperature=1, headers=[(b"x-gatehouse-coalesce", b" ON ")]), True),
        (ready(headers=[(b"x-gatehouse-coalesce", b"off")]), False),
        (ready(api=Api.REALTIME), False),
        (ready(api=Api.MESSAGES), False),
        (ready(user="x" * (4 * 1024 * 1024)), False),
    ],
)
def test_who_may_share(asked: Ready, may: bool) -> None:
    assert may_share(asked) is may


@pytest.mark.parametrize(
    "other",
    [
        replace(ready(), principal=msgspec.structs.replace(PRINCIPAL, tenant_id=uuid4())),
        replace(ready(), model="another"),
        ready(user="somebody"),
        ready(cls=TrafficClass.BACKGROUND),
        ready(headers=[(b"x-gatehouse-coalesce", b"off")]),
    ],
    ids=["another tenant", "an alias that moved", "other bytes", "another urgency", "not willing"],
)
async def test_who_is_not_the_same(other: Ready) -> None:
    shares = Shares()
    one = shares.share(ready())
    opening = asyncio.create_task(one.take())
    await turns()
    carrier = shares.coalescer.carry(other)
    second = asyncio.create_task(carrier.open())
    await turns()
    assert len(shares.exchanges) == 2
    assert shares.joined == 0
    for exchange in shares.exchanges:
        exchange.give(b"A", last=True)
    await asyncio.gather(opening, second)


async def test_another_key_of_the_tenant_is_no_other(  # each has been authenticated and permitted by itself
) -> None:
    shares = Shares()
    other = replace(ready(), principal=msgspec.structs.replace(PRINCIPAL, key_id=uuid4()))
    taking = [asyncio.create_task(shares.share(asked).take()) for asked in (ready(), other)]
    await turns()
    shares.exchanges[0].give(b"A", last=True)
    await asyncio.gather(*taking)
    assert (len(shares.exchanges), shares.joined) == (1, 1)


async def test_each_has_its_own_headers() -> None:
    shares = Shares()
    asked = [replace(ready(), response_headers=[(b"x-ratelimit-remaining-requests", b"%d" % n)]) for n in range(2)]
    members = [shares.share(one).member for one in asked]
    opening = [asyncio.create_task(member.open()) for member in members]
    await turns()
    shares.exchanges[0].give(b"A")
    for one, task in zip(asked, opening, strict=True):
        head = await task
        assert head.headers == [
            (b"content-type", b"text/event-stream"),
            *one.response_headers,
            (b"x-request-id", str(one.request.request_id).encode()),
        ]
    for member in members:
        member.close()


async def test_a_clients_own_deadline_is_its_own() -> None:
    shares = Shares()
    hasty = shares.share(replace(ready(), timeout_seconds=0.02))
    patient = shares.share(ready())
    taking = asyncio.create_task(patient.take())
    head = await hasty.member.open()
    assert head.status == 504
    await hasty.member.next_chunk()
    assert hasty.member.finished
    shares.exchanges[0].give(b"A", last=True)
    await taking
    assert patient.told == b"A"
    assert [row.error_code for row in (*hasty.rows, *patient.rows)] == ["upstream_timeout", None]
    assert len(shares.exchanges) == 1


async def test_a_defect_is_told_and_settled() -> None:
    shares = Shares()
    many = [shares.share(ready()) for _ in range(3)]
    taking = [asyncio.create_task(one.take()) for one in many]
    await turns()
    shares.exchanges[0].defect = RuntimeError("a defect")
    shares.exchanges[0].give(b"")
    await asyncio.gather(*taking)
    for one in many:
        assert one.told == render_openai(GatehouseError())
        assert [(row.outcome, row.status) for row in one.rows] == [(Outcome.FAILED, 500)]
    assert shares.coalescer.open_flights == 0


async def test_one_that_was_never_begun_is_settled_and_asks_nobody() -> None:
    shares = Shares()
    one = shares.share(ready())
    one.member.close()
    one.member.close()
    assert [row.outcome for row in one.rows] == [Outcome.CANCELLED]
    assert not shares.exchanges


STEPS = st.lists(
    st.one_of(
        st.just(("join", 0)),
        st.tuples(st.just("leave"), st.integers(0, 7)),
        st.tuples(st.just("abort"), st.integers(0, 7)),
        st.tuples(st.just("tell"), st.integers(0, 120_000)),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_whatever_members_do_those_who_stay_are_told_all(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_whatever_members_do(steps))


async def _whatever_members_do(steps: list[tuple[str, int]]) -> None:
    shares = Shares()
    present: list[tuple[Share, asyncio.Task[None]]] = []
    gone: list[Share] = []
    said: dict[int, bytes] = {}
    belongs: dict[int, int] = {}  # share -> exchange

    def join() -> None:
        one = shares.share(ready())
        present.append((one, asyncio.create_task(one.take())))

    join()
    await turns()
    for number, (step, argument) in enumerate(steps):
        if step == "join":
            join()
        elif step == "tell" and shares.exchanges:
            exchange = shares.exchanges[-1]
            if exchange.settlement is None:
                chunk = b"%d:" % number + b"x" * argument
                said[len(shares.exchanges)] = said.get(len(shares.exchanges), b"") + chunk
                exchange.give(chunk)
        elif step in ("leave", "abort") and present:
            one, task = present.pop(argument % len(present))
            gone.append(one)
            if step == "abort":
                one.member.abort(GatehouseError(), task)
                await task
            else:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                one.member.close()
            assert len(one.rows) == 1
        await turns()
        for one, _ in present:
            flight = one.member._flight
            assert flight is not None
            belongs[id(one)] = shares.exchanges.index(cast(FakeExchange, flight.exchange)) + 1
    for exchange in shares.exchanges:
        if exchange.settlement is None:
            exchange.give(b"end", last=True)
    for one, task in present:
        await task
        assert one.told == said.get(belongs.get(id(one), len(shares.exchanges)), b"") + b"end"
        assert [row.outcome for row in one.rows] == [Outcome.SUCCESS]
    assert shares.coalescer.open_flights == 0
    for exchange in shares.exchanges:
        assert exchange.settlement is not None, "nothing goes on that nobody wants"
    # What was computed once is in the ledger once.
    rows = [row for one in [*gone, *(one for one, _ in present)] for row in one.rows]
    computed = [exchange for exchange in shares.exchanges if exchange.content_told]
    assert sum(row.usage.source is UsageSource.ENGINE for row in rows) == len(computed)
    assert sum(row.usage.output_tokens or 0 for row in rows) == 3 * len(computed)
