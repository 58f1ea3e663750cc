"""Endings of a request that a client makes, with and without a task: settled once, and nothing of it stays."""

import asyncio
import json
import socket

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome, Usage, UsageSource
from tests.doubles.engine import Script, Wire, answers, chunk, completion, stall, streams
from tests.gateway.relay.door.ending import (
    ANSWER,
    ANSWER_HEAD,
    BODY,
    OpenDoor,
    admit,
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

STREAM = streams(chunk("A"), then=Wire.stall)


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(stall, id="before the head"),
        pytest.param(says(ANSWER_HEAD + ANSWER[:5], then=Wire.stall), id="in a whole answer"),
        pytest.param(STREAM, id="in a stream"),
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
        failed = script is STREAM and not stream  # a stream where none was asked for
        await until(lambda: bool(house.settlements) is failed)
        client.leave()
        await until(lambda: engine.open == 0)
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


@pytest.mark.shows("G8")
@both
@pytest.mark.parametrize("stream", [False, True])
async def test_work_of_which_a_client_saw_nothing_is_not_free(open_door: OpenDoor, quick: bool, stream: bool) -> None:
    async with engine_of(streams(chunk(role=True), then=Wire.stall) if stream else stall) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house, json.dumps(chat(stream=stream, n=3)).encode())
        await until(lambda: len(engine.received) == 2)
        client.leave()
        await until(lambda: bool(house.settlements))
        (left,) = house.settlements
        assert (left.outcome, left.usage.source) == (Outcome.CANCELLED, UsageSource.ESTIMATED)
        assert left.usage.input_tokens == -(-len(json.dumps(chat()["messages"])) // 4)
        assert left.usage.output_tokens is None
        assert left.unseen_output is not None
        assert 0 < left.unseen_output <= left.duration_seconds * 200 * 3 + 1


@pytest.mark.shows("G8")
@both
@pytest.mark.parametrize("own", [True, False])
async def test_ones_own_deadline_is_a_way_to_leave(open_door: OpenDoor, quick: bool, own: bool) -> None:
    """The installation's is the engine's failure, which costs nobody anything."""
    async with engine_of(stall) as engine:
        deadlines = Deadlines() if own else Deadlines(total_seconds=0.2)
        house = await warm(open_door, engine, quick, deadlines=deadlines)
        admit(house, timeout_seconds=0.2 if own else 60.0)
        await (await send(house)).answer()
        (ended,) = house.settlements
        assert (ended.outcome, ended.status) == (Outcome.FAILED, 504)
        assert ended.usage.source == (UsageSource.ESTIMATED if own else UsageSource.NONE)
        assert ended.queue_seconds is not None
        assert (ended.unseen_output or 0) >= (200 * (0.2 - ended.queue_seconds) if own else 0)
        assert own or ended.unseen_output is None


@pytest.mark.shows("G8")
async def test_who_leaves_before_anything_was_forwarded_owes_nothing(open_door: OpenDoor) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:  # takes one connection, and no more
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            house = await open_door(port, deadlines=Deadlines(connect_seconds=30))
            client = await send(house)
            await until(lambda: house.door.in_flight == 1)
            client.leave()
            await until(lambda: bool(house.settlements))
        (left,) = house.settlements
        assert (left.outcome, left.usage, left.unseen_output) == (Outcome.CANCELLED, Usage(), None)


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
    # Far more than the kernel takes on both sides, whose buffers grow with what is read.
    async with engine_of(answers(completion("x" * 40_000_000))) as engine:
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
