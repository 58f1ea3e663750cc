"""Identical requests at once: the engine is asked once, everyone is told, and each is a row of its own."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from core.errors import Draining
from gateway.relay.deadlines import Deadlines
from gateway.relay.exchange import CLIENT_LEFT
from gateway.relay.plan import Outcome, Settlement, UsageSource
from tests.doubles.engine import (
    DONE,
    EngineDouble,
    Received,
    Wire,
    answers,
    chat_stream,
    chunk,
    completion,
    die,
    event,
    streams,
)
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]
CHAT = "/v1/chat/completions"
OPTED_IN = [("x-gatehouse-coalesce", "on")]


class Gate:
    """A script that answers once it is opened; `passed` counts the requests that came to it."""

    def __init__(self, script: Callable[[Received, Wire], Awaitable[None]]) -> None:
        self.opened = asyncio.Event()
        self._script = script

    async def __call__(self, request: Received, wire: Wire) -> None:
        await self.opened.wait()
        await self._script(request, wire)


async def ask(house: DoorHouse, *, headers: Sequence[tuple[str, str]] = (), **members: Any) -> RawClient:
    client = await house.connect()
    await client.request("POST", CHAT, json.dumps(chat(**{"temperature": 0, **members})).encode(), headers)
    return client


async def rest(client: RawClient) -> bytes:
    """What is still to come of a streamed answer."""
    told = b""
    while piece := await client.chunk():
        told += piece
    return told


def payers(settlements: Sequence[Settlement]) -> list[Settlement]:
    return [s for s in settlements if s.usage.source is not UsageSource.APPORTIONED]


async def under_way(house: DoorHouse, count: int) -> None:
    await until(lambda: house.door.in_flight == count and house.pipeline.prepared == count)
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.mark.shows("R88")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_hundred_at_once_are_asked_once(open_door: OpenDoor, stream: bool) -> None:
    gate = Gate(streams(*chat_stream("Hel", "lo")) if stream else answers(completion("Hello")))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        clients = [await ask(house, stream=stream) for _ in range(100)]
        await under_way(house, 100)
        gate.opened.set()
        told = [await client.answer() for client in clients]
        assert len(engine.received) <= 3, "reuse of at least 97 %"
        assert {answer.status for answer in told} == {200}
        assert len({answer.body for answer in told}) == 1
        assert (b"Hel" if stream else b"Hello") in told[0].body
        assert b'"alias"' in told[0].body
        assert len({answer.header("x-request-id") for answer in told}) == 100
        rows = await house.settled(100)
        assert {row.outcome for row in rows} == {Outcome.SUCCESS}
        assert len(payers(rows)) == len(engine.received)
        assert sum(row.usage.output_tokens or 0 for row in rows) == 3 * len(engine.received)
        assert sum(row.attempts for row in rows) == len(engine.received)
        assert {row.engine_request_id for row in rows} == {"chatcmpl-engine"}
        assert {row.endpoint.port for row in rows if row.endpoint} == {engine.port}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "alias", "input": "a"}),
        ("/v1/rerank", {"model": "alias", "query": "a", "documents": ["b"]}),
    ],
)
async def test_vectors_are_certain(open_door: OpenDoor, path: str, body: dict[str, Any]) -> None:
    gate = Gate(answers({"model": "served", "data": [], "usage": {"prompt_tokens": 1, "total_tokens": 1}}))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        asked = [asyncio.create_task(house.ask(body, path=path)) for _ in range(5)]
        await under_way(house, 5)
        gate.opened.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        assert len(engine.received) == 1


@pytest.mark.parametrize(
    ("members", "headers", "asked"),
    [
        ({}, [], 1),
        ({"temperature": 0.0}, [], 1),
        ({"temperature": 0.7}, [], 3),
        ({"temperature": None}, [], 3),
        ({"temperature": 0.7}, OPTED_IN, 1),
        ({}, [("x-gatehouse-coalesce", "off")], 3),
        ({}, [("x-gatehouse-coalesce", "perhaps")], 3),
    ],
)
async def test_who_shares(
    open_door: OpenDoor, members: dict[str, Any], headers: list[tuple[str, str]], asked: int
) -> None:
    gate = Gate(answers(completion()))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        clients = [await ask(house, headers=headers, **members) for _ in range(3)]
        await under_way(house, 3)
        await until(lambda: len(engine.received) == asked)
        gate.opened.set()
        assert {(await client.answer()).status for client in clients} == {200}
        assert len(engine.received) == asked


async def test_nobody_shares_where_it_is_off(open_door: OpenDoor) -> None:
    gate = Gate(answers(completion()))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port)
        clients = [await ask(house, headers=OPTED_IN) for _ in range(3)]
        await until(lambda: len(engine.received) == 3)
        gate.opened.set()
        assert {(await client.answer()).status for client in clients} == {200}


async def test_a_further_request_after_the_end_is_asked_anew(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port, coalesce=True)
        for count in (1, 2):
            assert (await house.ask(chat(temperature=0))).status == 200
            assert len(engine.received) == count


async def test_a_late_one_is_told_from_the_start(open_door: OpenDoor) -> None:
    more = asyncio.Event()

    async def go_on(wire: Wire) -> None:
        await more.wait()
        await wire.chunk(chunk("B"), chunk(finish="stop"), DONE)
        await wire.end_chunks()

    async with EngineDouble(streams(chunk("A"), then=go_on)) as engine:
        house = await open_door(engine.port, coalesce=True)
        first = await ask(house, stream=True)
        await first.head()
        assert b'"A"' in await first.chunk()
        late = await ask(house, stream=True)
        await late.head()
        assert b'"A"' in await late.chunk()
        more.set()
        for client in (first, late):
            told = await rest(client)
            assert b'"B"' in told
            assert told.endswith(DONE)
        assert len(engine.received) == 1
        assert all(row.ttft_seconds is not None for row in await house.settled(2))


async def test_nobody_joins_what_is_long_under_way(open_door: OpenDoor) -> None:
    async def go_on(wire: Wire) -> None:
        await more.wait()
        await wire.chunk(chunk(finish="stop"), DONE)
        await wire.end_chunks()

    more = asyncio.Event()
    async with EngineDouble(streams(*[chunk("x" * 50_000)] * 6, then=go_on)) as engine:
        house = await open_door(engine.port, coalesce=True)
        first = await ask(house, stream=True)
        await first.head()
        size = 0
        while size < 6 * 50_000:
            size += len(await first.chunk())
        late = await ask(house, stream=True)
        await until(lambda: len(engine.received) == 2)
        more.set()
        assert (await rest(first)).endswith(DONE)
        assert (await late.answer()).body.endswith(DONE)
        assert {row.outcome for row in await house.settled(2)} == {Outcome.SUCCESS}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_one_leaves_and_the_others_are_told(open_door: OpenDoor, stream: bool) -> None:
    gate = Gate(streams(*chat_stream("Hel", "lo")) if stream else answers(completion("Hello")))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        first, *others = [await ask(house, stream=stream) for _ in range(3)]
        await under_way(house, 3)
        first.leave()
        await until(lambda: house.door.in_flight == 2)
        gate.opened.set()
        for client in others:
            assert b"Hel" in (await client.answer()).body
        assert len(engine.received) == 1
        left, payer, joined = await house.settled(3)
        assert (left.outcome, left.status, left.usage.source) == (Outcome.CANCELLED, CLIENT_LEFT, UsageSource.NONE)
        assert (payer.usage.source, payer.usage.output_tokens) == (UsageSource.ENGINE, 3)
        assert (joined.usage.source, joined.usage.output_tokens) == (UsageSource.APPORTIONED, 0)


async def test_a_joiner_that_leaves_changes_nothing(open_door: OpenDoor) -> None:
    gate = Gate(answers(completion()))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        first, joiner = await ask(house), await ask(house)
        await under_way(house, 2)
        joiner.leave()
        await until(lambda: house.door.in_flight == 1)
        gate.opened.set()
        assert (await first.answer()).status == 200
        assert [row.usage.source for row in await house.settled(2)] == [UsageSource.NONE, UsageSource.ENGINE]


@pytest.mark.parametrize("stream", [False, True])
async def test_with_the_last_one_the_engine_is_let_go(open_door: OpenDoor, stream: bool) -> None:
    gate = Gate(streams(chunk("A"), then=Wire.stall) if stream else answers(completion()))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        clients = [await ask(house, stream=stream) for _ in range(3)]
        await under_way(house, 3)
        if stream:
            gate.opened.set()
            for client in clients:
                await client.head()
                await client.chunk()
        for client in clients:
            client.leave()
        await until(lambda: house.door.in_flight == 0)
        gate.opened.set()
        await until(lambda: engine.open == 0)
        rows = await house.settled(3)
        assert {row.outcome for row in rows} == {Outcome.CANCELLED}
        assert house.pipeline.picker.in_flight == 0
        if stream:  # what was computed by then is on the row of the last
            sources = [row.usage.source for row in rows]
            assert sources == [UsageSource.APPORTIONED, UsageSource.APPORTIONED, UsageSource.ESTIMATED]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_is_told_to_all_after_the_retries(open_door: OpenDoor, stream: bool) -> None:
    gate = Gate(die)
    async with EngineDouble(gate) as one, EngineDouble(die) as other:
        house = await open_door(one.port, other.port, coalesce=True)
        clients = [await ask(house, stream=stream) for _ in range(3)]
        await under_way(house, 3)
        gate.opened.set()
        for client in clients:
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert (len(one.received), len(other.received)) == (1, 1)
        rows = await house.settled(3)
        assert {(row.outcome, row.status, row.usage.source) for row in rows} == {
            (Outcome.FAILED, 502, UsageSource.NONE)
        }
        assert [row.attempts for row in rows] == [2, 0, 0]


async def test_a_retry_is_made_for_all(open_door: OpenDoor) -> None:
    gate = Gate(die)
    async with EngineDouble(gate) as one, EngineDouble(answers(completion("Hello"))) as other:
        house = await open_door(one.port, other.port, coalesce=True)
        clients = [await ask(house) for _ in range(3)]
        await under_way(house, 3)
        gate.opened.set()
        assert all([b"Hello" in (await client.answer()).body for client in clients])
        assert (len(one.received), len(other.received)) == (1, 1)


async def test_a_stream_cut_short_is_told_to_all(open_door: OpenDoor) -> None:
    async def cut(wire: Wire) -> None:
        wire.die()

    gate = Gate(streams(chunk("A"), then=cut))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        clients = [await ask(house, stream=True) for _ in range(3)]
        await under_way(house, 3)
        gate.opened.set()
        for client in clients:
            last = (await client.answer()).body.rstrip().split(b"\n\n")[-1]
            assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        rows = await house.settled(3)
        assert {row.outcome for row in rows} == {Outcome.TRUNCATED}
        assert [row.usage.source for row in rows].count(UsageSource.ESTIMATED) == 1


async def test_each_has_its_own_deadline_and_comments(open_door: OpenDoor) -> None:
    gate = Gate(streams(*chat_stream("A")))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True, deadlines=Deadlines(keep_alive_seconds=0.05))
        clients = [await ask(house, stream=True) for _ in range(2)]
        for client in clients:
            assert (await client.head())[0] == 200
            assert await client.chunk() == b": keep-alive\n\n"
        gate.opened.set()
        for client in clients:
            assert (await rest(client)).endswith(DONE)
        assert len(engine.received) == 1


async def test_a_failure_after_comments_is_an_event(open_door: OpenDoor) -> None:
    gate = Gate(die)
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True, deadlines=Deadlines(keep_alive_seconds=0.05))
        client = await ask(house, stream=True)
        await client.head()
        await client.chunk()
        gate.opened.set()
        last = (await rest(client)).rstrip().split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        row = (await house.settled())[0]
        assert (row.outcome, row.status, row.error_code) == (Outcome.FAILED, 200, "upstream_error")


async def test_a_slow_one_slows_nobody_and_is_told_that_it_was_dropped(open_door: OpenDoor) -> None:
    events = [event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"x" * 60_000))] * 300
    async with EngineDouble(Gate(streams(*events, chunk(finish="stop"), DONE))) as engine:
        house = await open_door(engine.port, coalesce=True)
        gate = engine.scripts[0]
        assert isinstance(gate, Gate)
        slow, quick = await ask(house, stream=True), await ask(house, stream=True)
        await under_way(house, 2)
        gate.opened.set()
        async with asyncio.timeout(20):
            assert (await quick.answer()).body.endswith(DONE)
            told = (await slow.answer()).body
        last = json.loads(told.rstrip().split(b"\n\n")[-1].removeprefix(b"data: "))
        assert last["error"]["code"] == "read_too_slowly"
        rows = {row.outcome: row for row in await house.settled(2)}
        assert rows[Outcome.SUCCESS].usage.source is UsageSource.ESTIMATED
        assert rows[Outcome.TRUNCATED].usage.source is UsageSource.APPORTIONED


async def test_one_alone_makes_the_engine_wait(open_door: OpenDoor) -> None:
    events = [event(b'{"choices":[{"index":0,"delta":{"content":"%b"}}]}' % (b"x" * 60_000))] * 300
    wires: list[Wire] = []

    async def script(request: Received, wire: Wire) -> None:
        wires.append(wire)
        await streams(*events, chunk(finish="stop"), DONE)(request, wire)

    async with EngineDouble(script) as engine:
        house = await open_door(engine.port, coalesce=True)
        client = await ask(house, stream=True)
        await until(lambda: bool(wires) and wires[0].unsent > 0)
        async with asyncio.timeout(20):
            assert (await client.answer()).body.endswith(DONE)
        assert await house.outcome() is Outcome.SUCCESS


@pytest.mark.parametrize("stream", [False, True])
async def test_a_process_that_stops_tells_all(open_door: OpenDoor, stream: bool) -> None:
    gate = Gate(streams(chunk("A"), then=Wire.stall) if stream else answers(completion()))
    async with EngineDouble(gate) as engine:
        house = await open_door(engine.port, coalesce=True)
        clients = [await ask(house, stream=stream) for _ in range(3)]
        await under_way(house, 3)
        if stream:
            gate.opened.set()
            for client in clients:
                await client.head()
                await client.chunk()
        house.door.abort_all(Draining(retry_after_seconds=1.0))
        for client in clients:
            if stream:
                assert b'"draining"' in await client.chunk()
            else:
                assert (await client.answer()).status == 503
        gate.opened.set()
        await until(lambda: engine.open == 0)
        rows = await house.settled(3)
        assert {row.outcome for row in rows} == {Outcome.TRUNCATED if stream else Outcome.FAILED}
        assert {row.error_code for row in rows} == {"draining"}
