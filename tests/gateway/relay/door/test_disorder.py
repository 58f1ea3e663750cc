"""Many requests at once, engines and clients that do anything at any time: nothing may be lost or left behind."""

import asyncio
import contextlib
import gc
import json
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.relay.connection import Connection
from gateway.relay.deadlines import Deadlines
from gateway.relay.door import DoorLimits
from gateway.relay.plan import Outcome
from gateway.relay.upstream import Origin
from tests.doubles.engine import (
    DONE,
    EngineDouble,
    Received,
    Script,
    Wire,
    answers,
    chat_stream,
    chunk,
    completion,
    die,
    stall,
    streams,
)
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]

REQUESTS = 300


async def pause(seconds: float) -> None:
    """Let other tasks run; how long is part of the disorder, no result depends on it."""
    await asyncio.sleep(seconds)


def any_engine(dice: random.Random) -> Script:
    async def slowly(wire: Wire) -> None:
        for _ in range(dice.randrange(1, 8)):
            await pause(dice.random() * 0.02)
            await wire.chunk(chunk("x"))
        if dice.random() < 0.3:
            wire.die()
        else:
            await wire.chunk(chunk(finish="stop"), chunk(usage=(1, 2)), DONE)
            await wire.end_chunks()

    async def closed_at_the_end(request: Received, wire: Wire) -> None:
        await answers(completion())(request, wire)
        wire.close()

    scripts: list[Script] = [
        answers(completion()),
        answers(completion(), gzipped=True),
        answers({"error": {"message": "busy"}}, status=503),
        answers({"error": {"message": "bad"}}, status=400),
        answers(b"no json"),
        streams(*chat_stream("A", "B")),
        streams(chunk("A"), then=slowly),
        streams(chunk(role=True), then=Wire.stall),
        streams(chunk("A"), b'data: {"error": {"message": "x"}}\n\n'),
        closed_at_the_end,
        die,
        stall,
    ]

    async def script(request: Received, wire: Wire) -> None:
        if dice.random() < 0.2:
            await pause(dice.random() * 0.05)
        await dice.choice(scripts)(request, wire)

    return script


async def any_client(house: DoorHouse, dice: random.Random) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        client = await house.connect()
        body = json.dumps(chat(stream=dice.random() < 0.5)).encode()
        if dice.random() < 0.2:
            await several_at_once(client, body, dice)
            return
        for _ in range(dice.randrange(1, 4)):
            half = dice.random() < 0.1
            await client.request("POST", "/v1/chat/completions", body[:9] if half else body, _length(body, half))
            if half or dice.random() < 0.3:
                await pause(dice.random() * 0.1)
                client.leave()
                return
            await read_whole(client)
        client.leave()


async def several_at_once(client: RawClient, body: bytes, dice: random.Random) -> None:
    for _ in range(3):
        await client.request("POST", "/v1/chat/completions", body)
    for _ in range(dice.randrange(4)):
        await read_whole(client)
    client.leave()


def _length(body: bytes, half: bool) -> list[tuple[str, str]]:
    return [("Content-Length", str(len(body)))] if half else []


async def read_whole(client: RawClient) -> None:
    answer = await client.answer()
    assert answer.status in (200, 400, 502, 503, 504)
    if answer.header("content-type") == "application/json":
        assert "choices" in answer.json or answer.error
    else:
        assert answer.body.endswith(DONE) != (b'"error"' in answer.body)


@pytest.mark.shows("G6")
@pytest.mark.parametrize(("seed", "quick"), [(0, True), (1, True), (2, True), (3, False)])
async def test_every_request_is_settled_once_and_nothing_stays(
    open_door: OpenDoor, seed: int, quick: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dice = random.Random(seed)
    async with EngineDouble(any_engine(dice)) as one, EngineDouble(any_engine(dice)) as two:
        house = await open_door(
            one.port,
            two.port,
            deadlines=Deadlines(
                first_token_seconds=0.3, inter_token_seconds=0.3, total_seconds=0.6, keep_alive_seconds=0.04
            ),
            door_limits=DoorLimits(body_deadline_seconds=0.5),
        )
        house.pipeline.quick = quick
        async with asyncio.TaskGroup() as clients:
            for _ in range(REQUESTS):
                clients.create_task(any_client(house, dice))
                if dice.random() < 0.5:
                    await pause(0.001)
        await until(lambda: house.door.in_flight == 0)
        assert house.pipeline.picker.in_flight == 0
        assert len(house.settlements) == house.pipeline.admitted
        assert {s.outcome for s in house.settlements} == {
            Outcome.SUCCESS,
            Outcome.CANCELLED,
            Outcome.TRUNCATED,
            Outcome.FAILED,
        }
        await until(lambda: not house.server.server_state.tasks and not house.server.server_state.connections)
        for engine in (one, two):
            origin = Origin("127.0.0.1", engine.port)
            await until(
                lambda where=origin: house.upstream.connections(where) == house.upstream.idle_connections(where)  # type: ignore[misc]
            )
        assert (house.door._memory.held_bytes, house.upstream.memory.held_bytes) == (0, 0)
        assert [record.msg for record in caplog.records if record.levelname == "ERROR"] == []
        await house.upstream.aclose()
        await pause(0)
        gc.collect()
        left = [thing for thing in gc.get_objects() if isinstance(thing, Connection) and thing.usable]
        assert left == []


def any_bytes(dice: random.Random) -> bytes:
    """A few requests behind each other, with mistakes in them."""
    body = json.dumps(chat(stream=True)).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
    wholes = [
        post + b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        post + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ]
    sent = bytearray(b"".join(dice.choices(wholes, k=dice.randrange(1, 4))))
    for _ in range(dice.randrange(6)):
        place = dice.randrange(len(sent))
        match dice.randrange(4):
            case 0:
                sent[place] = dice.randrange(256)
            case 1:
                del sent[place : place + dice.randrange(1, 30)]
            case 2:
                sent[place:place] = dice.randbytes(dice.randrange(1, 10))
            case _:
                sent[place:place] = dice.choice([b"\r\n", b"\r\n\r\n", b"Content-Length: 3\r\n", b"\0", b"{", b'"'])
    return bytes(sent) or b"\n"


async def test_whatever_is_sent_nothing_breaks(open_door: OpenDoor, caplog: pytest.LogCaptureFixture) -> None:
    dice = random.Random(1)
    async with EngineDouble(streams(*chat_stream("A", "B"))) as engine:
        house = await open_door(engine.port)
        for _ in range(300):
            client = await house.connect()
            client.writer.write(any_bytes(dice))
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(dice.random() * 0.02):
                    await client.reader.read()
            client.leave()
        await until(lambda: house.door.in_flight == 0)
        assert (await house.ask(chat(stream=True))).body.endswith(DONE)
        assert len(house.settlements) == house.pipeline.admitted
        assert house.pipeline.picker.in_flight == 0
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
