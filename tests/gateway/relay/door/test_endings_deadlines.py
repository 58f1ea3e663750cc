"""Endings of a request that a deadline makes, with and without a task, and that nothing moves a deadline."""

import asyncio

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome
from tests.doubles.engine import EngineDouble, Received, Script, Wire, chunk, stall, streams
from tests.gateway.relay.door.ending import (
    ANSWER_HEAD,
    OpenDoor,
    SlowClock,
    admit,
    both,
    engine_of,
    nothing_stays,
    says,
    warm,
)
from tests.gateway.relay.door.house import chat, until


@both
@pytest.mark.parametrize("script", [stall, says(ANSWER_HEAD, b"{", then=Wire.stall)], ids=["head", "body"])
async def test_the_total_deadline(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=0.5, attempts=1))
        told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (504, "upstream_timeout")
        await nothing_stays(house, engine, Outcome.FAILED)
        await until(lambda: engine.open == 0)


def drips(beginning: bytes, drop: bytes) -> Script:
    """A script: never ends, and is never silent."""

    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(beginning)
        while True:
            await asyncio.sleep(0.02)
            await wire.send(drop)

    return script


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), id="a head"),
        pytest.param(drips(CHUNKED + b"\r\n1;", b"x"), id="framing"),
        pytest.param(drips(CHUNKED + b"\r\n", b"1\r\n \r\n"), id="a body"),
        pytest.param(
            drips(CHUNKED + b"Content-Encoding: gzip\r\n\r\na\r\n\x1f\x8b\x08\x08\0\0\0\0\0\3\r\n", b"1\r\nx\r\n"),
            id="what becomes no byte",
        ),
    ],
)
async def test_dripping_moves_no_deadline(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=0.5, attempts=1))
        async with asyncio.timeout(10):
            told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (504, "upstream_timeout")
        await nothing_stays(house, engine, Outcome.FAILED)


@both
async def test_a_replaced_connection_gets_no_new_deadline(open_door: OpenDoor, quick: bool) -> None:
    hung_up = asyncio.Event()

    async def hang_up_late(_request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.8)
        wire.close()
        hung_up.set()

    async with engine_of(hang_up_late, stall) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=1.0, attempts=1))
        asking = asyncio.create_task(house.ask(chat()))
        await until(hung_up.is_set)
        await until(asking.done, 0.4)  # a deadline anew would be over after a second
        assert (await asking).status == 504
        await nothing_stays(house, engine, Outcome.FAILED)


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_own_deadline_is_nobodys_fault_whatever_the_clocks_say(
    open_door: OpenDoor, quick: bool, stream: bool
) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        house.door._clock = SlowClock()
        admit(house, timeout_seconds=0.1)
        assert (await house.ask(chat(stream=stream))).status == 504
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.pipeline.picker.failed == []


async def test_who_wants_no_comments_gets_none_whatever_the_clocks_say(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("A"), then=Wire.stall)) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(inter_token_seconds=0.1))
        house.door._clock = SlowClock()
        admit(house, keep_alive=False)
        told = await house.ask(chat(stream=True))
        assert b"keep-alive" not in told.body
        assert b'"code":"upstream_timeout"' in told.body
        await nothing_stays(house, engine, Outcome.TRUNCATED)
