"""Many requests at once, engines and clients that do anything at any time: nothing may be lost or left behind."""

import asyncio
import contextlib
import gc
import json
import random
from collections.abc import Awaitable, Callable

import pytest

from gateway.relay.connection import Connection
from gateway.relay.door import DoorLimits
from gateway.relay.exchange import Deadlines
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
        for _ in range(dice.randrange(1, 4)):
            half = dice.random() < 0.1
            await client.request("POST", "/v1/chat/completions", body[:9] if half else body, _length(body, half))
            if half or dice.random() < 0.3:
                await pause(dice.random() * 0.1)
                client.leave()
                return
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
@pytest.mark.parametrize("seed", range(3))
async def test_every_request_is_settled_once_and_nothing_stays(open_door: OpenDoor, seed: int) -> None:
    dice = random.Random(seed)
    async with EngineDouble(any_engine(dice)) as one, EngineDouble(any_engine(dice)) as two:
        house = await open_door(
            one.port,
            two.port,
            deadlines=Deadlines(first_token_seconds=0.3, inter_token_seconds=0.3, total_seconds=0.6),
            door_limits=DoorLimits(body_deadline_seconds=0.5),
        )
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
        await house.upstream.aclose()
        await pause(0)
        gc.collect()
        left = [thing for thing in gc.get_objects() if isinstance(thing, Connection) and thing.usable]
        assert left == []
