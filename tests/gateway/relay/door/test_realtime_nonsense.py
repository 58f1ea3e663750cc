"""Every sort of nonsense that a websocket may carry, and what it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.relay.server import ServerLimits
from tests.doubles.engine import EngineDouble, chat_stream, streams
from tests.gateway.relay.door.house import DoorHouse, until
from tests.gateway.relay.door.talk import HANDSHAKE, Talk

OpenDoor = Callable[..., Awaitable[DoorHouse]]


@pytest.mark.parametrize(
    "frame",
    ["", "nonsense", "[1]", '"a"', "{", '{"type": 5}', '{"type": "audio.append"}', "[" * 5000, b"\x00\x01"],
)
async def test_what_is_no_event_gets_an_error_and_the_connection_stays(open_door: OpenDoor, frame: str | bytes) -> None:
    async with EngineDouble(streams(*chat_stream("A"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.connection.send(frame)
        assert (await talk.hear())["error"]["type"] == "invalid_request_error"
        await talk.user()
        assert (await talk.respond())["status"] == "completed"
        await talk.end()


async def test_text_that_is_not_utf_8_ends_the_connection(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(HANDSHAKE.encode())
    assert (await client.head())[0] == 101
    client.writer.write(b"\x81\x82\x00\x00\x00\x00\xff\xff")
    rest = await asyncio.wait_for(client.reader.read(), 5)
    assert rest.endswith((1007).to_bytes(2, "big")) or (1007).to_bytes(2, "big") in rest


@pytest.mark.parametrize("fragments", [1, 50])
async def test_a_message_over_the_cap_ends_the_connection(open_door: OpenDoor, fragments: int) -> None:
    house = await open_door(limits=ServerLimits(drain_notice_seconds=0, message_bytes=10_000))
    talk = await Talk.begin(house.port)
    piece = " " * (20_000 // fragments)
    await talk.connection.send([piece] * fragments if fragments > 1 else piece)
    assert await talk.closed() == 1009


async def test_a_message_of_endless_empty_pieces_ends_the_connection(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(HANDSHAKE.encode())
    assert (await client.head())[0] == 101
    client.writer.write(b"\x01\x80\x00\x00\x00\x00" + b"\x00\x80\x00\x00\x00\x00" * 5000)
    await until(lambda: not house.server.server_state.connections)
