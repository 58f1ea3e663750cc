"""Clients that leave, stall, send too much, or do not read."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core.errors import InvalidApiKey
from gateway.relay.door import DoorLimits
from gateway.relay.plan import Outcome, UsageSource
from tests.doubles.engine import (
    DONE,
    EngineDouble,
    Received,
    Wire,
    answers,
    chat_stream,
    chunk,
    completion,
    stall,
    streams,
)
from tests.gateway.relay.door.house import DoorHouse, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]


async def stall_after_head(_request: Received, wire: Wire) -> None:
    await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
    await wire.stall()


@pytest.mark.shows("G6")
@pytest.mark.parametrize(
    ("script", "stream", "told", "outcome"),
    [
        pytest.param(stall, True, False, Outcome.CANCELLED, id="before the head"),
        pytest.param(stall_after_head, True, False, Outcome.CANCELLED, id="in prefill"),
        pytest.param(streams(chunk("A"), then=Wire.stall), True, True, Outcome.CANCELLED, id="in mid-stream"),
        pytest.param(stall, False, False, Outcome.CANCELLED, id="not streamed"),
    ],
)
async def test_a_client_that_leaves_closes_the_engines_connection(
    open_door: OpenDoor, script: Any, stream: bool, told: bool, outcome: Outcome
) -> None:
    async with EngineDouble(script) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 1)
        if told:
            await client.head()
            await client.chunk()
        client.leave()
        await until(lambda: engine.open == 0)
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.status) == (outcome, 200 if told else 499)
        assert settlement.usage.source is UsageSource.ESTIMATED
        assert (settlement.usage.output_tokens is None) is not told
        assert house.pipeline.picker.in_flight == 0
        assert house.pipeline.picker.failed == []
        assert house.door.in_flight == 0


@pytest.mark.shows("G6")
async def test_a_client_that_leaves_with_requests_in_its_pipe(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineDouble(stall) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        for _ in range(3):
            await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        await until(lambda: len(engine.received) == 1)
        client.leave()
        await until(lambda: engine.open == 0)
        await until(lambda: house.door.in_flight == 0)
        assert len(await house.settled()) == 1  # the others were never begun
        assert [record for record in caplog.records if record.name == "uvicorn.error"] == []


@pytest.mark.shows("G6")
async def test_a_client_that_leaves_while_it_is_decided_about_reaches_no_engine(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        house.pipeline.hold = asyncio.Event()
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        await until(lambda: house.pipeline.prepared == 1)
        client.leave()
        await until(lambda: house.door.in_flight == 0)
        assert (engine.received, house.settlements) == ([], [])


@pytest.mark.shows("G6", "G7")
async def test_a_client_that_leaves_ends_the_retries(open_door: OpenDoor) -> None:
    async with EngineDouble(stall) as first, EngineDouble(answers(completion())) as second:
        house = await open_door(first.port, second.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        await until(lambda: len(first.received) == 1)
        client.leave()
        await house.settled()
        assert second.received == []


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", b'{"model', [("Content-Length", "100")])
    await until(lambda: house.door.in_flight == 1)
    client.leave()
    await until(lambda: house.door.in_flight == 0)
    assert house.pipeline.prepared == 0


async def test_a_client_that_does_not_read_is_dropped(open_door: OpenDoor) -> None:
    async def flood(wire: Wire) -> None:
        while True:
            await wire.chunk(chunk("x" * 100_000))

    async with EngineDouble(streams(chunk("A"), then=flood)) as engine:
        house = await open_door(engine.port, door_limits=DoorLimits(send_deadline_seconds=0.3))
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await until(lambda: engine.open == 1)
        await until(lambda: engine.open == 0)
        assert await house.outcome() is Outcome.CANCELLED
        last = b""
        with contextlib.suppress(ConnectionError):
            while data := await client.reader.read(1 << 20):
                last = data
        assert not last.endswith(b"0\r\n\r\n")  # nothing pretends that it had ended well


@pytest.mark.shows("G19")
@pytest.mark.parametrize("expect", [[], [("Expect", "100-continue")]])
async def test_a_declared_length_over_the_cap_is_refused_unread(open_door: OpenDoor, expect: Any) -> None:
    house = await open_door(door_limits=DoorLimits(body_cap_bytes=1000))
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", b"", [("Content-Length", "40000000"), *expect])
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")
    assert "1000 bytes" in answer.error["message"]
    assert answer.header("x-request-id")
    assert house.pipeline.prepared == 0


@pytest.mark.shows("G19")
async def test_a_body_of_40_mb_is_refused_and_the_refusal_arrives(open_door: OpenDoor) -> None:
    """Also while the client is still sending, and the connection serves on."""
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", b" " * 40_000_000)
        assert (await client.answer()).status == 413
        await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        assert (await client.answer()).status == 200


@pytest.mark.shows("G19")
async def test_an_undeclared_body_over_the_cap_is_refused_on_the_way(open_door: OpenDoor) -> None:
    house = await open_door(door_limits=DoorLimits(body_cap_bytes=1000))
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", None, [("Transfer-Encoding", "chunked")])
    for _ in range(20):
        client.writer.write(b"64\r\n" + b" " * 100 + b"\r\n")
    assert (await client.answer()).status == 413
    assert house.pipeline.prepared == 0


@pytest.mark.shows("G19")
async def test_a_compressed_bomb_is_refused(open_door: OpenDoor) -> None:
    house = await open_door()
    bomb = gzip.compress(b" " * 100_000_000)
    answer = await house.ask(bomb, headers=[("Content-Encoding", "gzip")])
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.shows("G19")
async def test_a_body_of_640_kb_passes(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        body = chat(padding="x" * 640_000)
        assert (await house.ask(body)).status == 200
        assert engine.received[0].json == {**body, "model": "served"}


async def test_a_body_that_does_not_come_is_given_up(open_door: OpenDoor) -> None:
    house = await open_door(door_limits=DoorLimits(body_deadline_seconds=0.2))
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", b"{", [("Content-Length", "100")])
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert await client.reader.read() == b""


async def test_bodies_are_checked_before_an_engine_is_asked(open_door: OpenDoor) -> None:
    house = await open_door()
    answer = await house.ask(b'{"model": "a", "messages": "x"}')
    assert (answer.status, answer.error["param"]) == (400, "messages")
    assert answer.header("x-request-id")
    assert house.settlements == []


async def test_a_refusal_has_its_headers(open_door: OpenDoor) -> None:
    house = await open_door()
    house.pipeline.refuse = InvalidApiKey()
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models")):
        answer = await house.ask(chat() if method == "POST" else None, method=method, path=path)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.header("www-authenticate") == 'Bearer realm="gatehouse"'
        assert answer.header("x-request-id")


async def test_a_defect_is_answered_in_shape(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        house.pipeline.defect = RuntimeError("secret")
        for answer in (await house.ask(chat()), await house.ask(method="GET", path="/v1/models")):
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert answer.header("x-request-id")
            assert b"secret" not in answer.body


async def test_requests_follow_each_other_on_one_connection(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion()), streams(*chat_stream("A")), answers(completion())) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        body = json.dumps(chat()).encode()
        streamed = json.dumps(chat(stream=True)).encode()
        for content in (body, streamed, body):
            await client.request("POST", "/v1/chat/completions", content)
        assert (await client.answer()).json == completion(model="alias")
        assert (await client.answer()).body.endswith(DONE)
        assert (await client.answer()).status == 200
        assert [s.outcome for s in await house.settled(3)] == [Outcome.SUCCESS] * 3
