"""Endings of a request that a client makes, with and without a task: settled once, and nothing of it stays."""

import asyncio
import json

import pytest

from gateway.relay.plan import Outcome
from tests.doubles.engine import Script, Wire, answers, chunk, completion, stall, streams
from tests.gateway.relay.door.ending import (
    ANSWER,
    ANSWER_HEAD,
    BODY,
    OpenDoor,
    both,
    connected,
    engine_of,
    guarded,
    nothing_stays,
    request,
    says,
    send,
    warm,
)
from tests.gateway.relay.door.house import chat, until


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(stall, id="before the head"),
        pytest.param(says(ANSWER_HEAD + ANSWER[:5], then=Wire.stall), id="in a whole answer"),
        pytest.param(streams(chunk("A"), then=Wire.stall), id="in a stream"),
    ],
)
async def test_a_client_that_leaves(
    open_door: OpenDoor, quick: bool, stream: bool, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house, json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        failed = bool(house.settlements)  # a stream where none was asked for
        client.leave()
        await until(lambda: engine.open == 0, seconds=1.0)
        await nothing_stays(house, engine, Outcome.FAILED if failed else Outcome.CANCELLED)
        assert not house.pipeline.picker.failed or failed
        assert "request_failed" not in caplog.text


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_in_the_turn_in_which_it_asked(
    open_door: OpenDoor, quick: bool, stream: bool
) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat(stream=stream)))
        protocol.transport.abort()
        await nothing_stays(house, engine, Outcome.CANCELLED)


@both
async def test_a_body_is_held_once(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat()))
        await until(lambda: len(engine.received) == 2)
        assert protocol.cycle.body == b""


@both
async def test_pipelined_requests(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        client.writer.write(request(chat()) * 20)
        for _ in range(20):
            assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 20)


@both
async def test_http_1_0(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        client.writer.write(request(chat()).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert (await client.answer()).header("connection") == "close"
        assert await client.reader.read() == b""
        await nothing_stays(house, engine, Outcome.SUCCESS)


@both
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_client_that_expects_100(open_door: OpenDoor, quick: bool, at_once: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        expecting = request(chat()).replace(b"Host", b"Expect: 100-continue\r\nHost")
        if at_once:
            client.writer.write(expecting)
        else:
            client.writer.write(expecting.removesuffix(BODY))
            assert (await client.head())[0] == 100
            client.writer.write(BODY)
        status, headers = await client.head()
        if status == 100:
            status, headers = await client.head()
        assert status == 200
        await client.reader.readexactly(int(dict(headers)["content-length"]))
        await client.request("POST", "/v1/chat/completions", BODY)
        assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 2)


@both
@pytest.mark.parametrize("quick_reader", [False, True])
async def test_a_client_that_does_not_take_its_whole_answer(
    open_door: OpenDoor, quick: bool, quick_reader: bool
) -> None:
    """The request is over, but its bytes are held; a client that takes some from time to time may."""
    async with engine_of(answers(completion("x" * 20_000_000))) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        await until(lambda: len(house.settlements) == 1)
        (protocol,) = [one for one in guarded(house) if one.flow.write_paused]
        now = protocol.loop.time()
        for turn in range(4):
            protocol.check(now + 50.0 * turn)
            if quick_reader:
                before = protocol.transport.get_write_buffer_size()
                await client.reader.readexactly(4_000_000)
                await until(lambda held=before: protocol.transport.get_write_buffer_size() < held - 1_000_000)  # type: ignore[misc]
        assert protocol.transport.is_closing()  # with nothing to do for so long: but not at once
        if quick_reader:
            assert (await client.reader.read()).endswith(b"}")
        else:
            await until(lambda: protocol not in house.server.server_state.connections)
        await nothing_stays(house, engine, Outcome.SUCCESS)
