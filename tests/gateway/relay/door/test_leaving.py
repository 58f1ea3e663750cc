"""A client that leaves, in the phases that take more than one engine or connection to get into."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome
from gateway.relay.upstream import Origin, UpstreamLimits
from tests.doubles.engine import EngineDouble, Wire, chunk, die, stall, streams
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]

pytestmark = pytest.mark.shows("G6")


async def ask(house: DoorHouse, *, stream: bool = False) -> RawClient:
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream)).encode())
    return client


async def gone(house: DoorHouse, outcome: Outcome = Outcome.CANCELLED, *, settled: int = 1) -> None:
    """Within a second nothing of the request is left."""
    await until(lambda: house.door.in_flight == 0)
    assert [settlement.outcome for settlement in await house.settled(settled)] == [outcome] * settled
    assert house.pipeline.picker.in_flight == 0


@pytest.fixture
def full_port() -> Iterator[int]:
    """A port whose connections stay in the handshake: its queue is full and nobody accepts."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        port: int = listener.getsockname()[1]
        yield port


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_is_connected_to(open_door: OpenDoor, full_port: int, stream: bool) -> None:
    house = await open_door(full_port, deadlines=Deadlines(connect_seconds=30.0))
    client = await ask(house, stream=stream)
    await until(lambda: house.upstream.connections(Origin("127.0.0.1", full_port)) == 1)
    client.leave()
    await gone(house)
    await until(lambda: house.upstream.connections(Origin("127.0.0.1", full_port)) == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_while_it_waits_for_a_connection(open_door: OpenDoor, stream: bool) -> None:
    async with EngineDouble(stall) as engine:
        limits = UpstreamLimits(connections_per_origin=1)
        house = await open_door(engine.port, deadlines=Deadlines(connect_seconds=30.0), upstream_limits=limits)
        first = await ask(house)
        await until(lambda: len(engine.received) == 1)
        second = await ask(house, stream=stream)
        await until(lambda: house.door.in_flight == 2)
        second.leave()
        await until(lambda: house.door.in_flight == 1)
        assert (engine.open, len(engine.received)) == (1, 1)
        first.leave()
        await gone(house, settled=2)
        await until(lambda: engine.open == 0)


@pytest.mark.shows("G7")
@pytest.mark.parametrize("stream", [False, True])
async def test_in_a_retry(open_door: OpenDoor, stream: bool) -> None:
    async with EngineDouble(die) as first, EngineDouble(stall) as second, EngineDouble(stall) as third:
        house = await open_door(first.port, second.port, third.port)
        client = await ask(house, stream=stream)
        await until(lambda: len(second.received) == 1)
        client.leave()
        await until(lambda: second.open == 0)
        await gone(house)
        assert third.received == []


@pytest.mark.parametrize("head", [False, True])
async def test_while_it_is_told_that_we_live(open_door: OpenDoor, head: bool) -> None:
    async with EngineDouble(streams(chunk(role=True), then=Wire.stall) if head else stall) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(keep_alive_seconds=0.05))
        client = await ask(house, stream=True)
        await client.head()
        for _ in range(3):
            assert await client.chunk() == b": keep-alive\n\n"
        client.leave()
        await until(lambda: engine.open == 0)
        await gone(house)


async def test_while_its_whole_answer_is_under_way(open_door: OpenDoor) -> None:
    async def half(_request: object, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", "100"))
        await wire.send(b'{"choices":')
        await wire.stall()

    async with EngineDouble(half) as engine:
        house = await open_door(engine.port)
        client = await ask(house)
        await until(lambda: len(engine.received) == 1)
        await asyncio.sleep(0)
        client.leave()
        await until(lambda: engine.open == 0)
        await gone(house)
