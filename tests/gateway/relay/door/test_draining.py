"""The end of a relay: whoever has been let in is answered, and told to go elsewhere next time."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable

import pytest

from gateway.relay import server as server_module
from gateway.relay.server import ServerLimits
from tests.doubles.engine import EngineDouble, Received, Wire, answers, completion
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]

BODY = json.dumps(chat()).encode()


async def ask(client: RawClient) -> tuple[int, str | None]:
    """Status of one request, and what its answer says about the connection."""
    await client.request("POST", "/v1/chat/completions", BODY)
    answer = await client.answer()
    return answer.status, answer.header("connection")


async def closed(client: RawClient) -> bool:
    async with asyncio.timeout(5):
        return await client.reader.read() == b""


async def test_answers_say_that_they_are_the_last_of_their_connection(open_door: OpenDoor) -> None:
    release = asyncio.Event()

    async def slow(request: Received, wire: Wire) -> None:
        await release.wait()
        await answers(completion())(request, wire)

    async with EngineDouble(answers(completion()), slow, answers(completion())) as engine:
        house = await open_door(engine.port, limits=ServerLimits(drain_notice_seconds=30.0))
        kept, begun = await house.connect(), await house.connect()
        assert await ask(kept) == (200, None)
        await begun.request("POST", "/v1/chat/completions", BODY)
        await until(lambda: len(engine.received) == 2)
        house.signal()
        await until(lambda: house.door.draining)
        release.set()
        assert (await begun.answer()).header("connection") == "close"
        assert await ask(kept) == (200, "close")
        assert await ask(await house.connect()) == (200, "close")
        assert await closed(begun)
        assert await closed(kept)


async def test_a_request_on_its_way_when_no_more_are_taken_is_answered(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 30.0)  # however late they are run who ask here
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        kept, fresh = await house.connect(), await house.connect()
        assert await ask(kept) == (200, None)
        house.signal()
        await until(lambda: not house.server.servers[0].is_serving())
        with pytest.raises(OSError):
            await house.connect()
        assert await ask(kept) == (200, "close")
        assert await ask(fresh) == (200, "close")
        assert house.task is not None
        await asyncio.wait_for(house.task, 5)


async def test_connections_in_the_listeners_queue_are_answered(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has accepted them, nobody else has: closing the listener would reset them."""
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 30.0)  # however long fifty take to ask one after the other
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        stop_listening = house.server._stop_listening
        queued: list[socket.socket] = []

        async def stop_with_a_queue(loop: asyncio.AbstractEventLoop) -> None:
            queued.extend(socket.create_connection(("127.0.0.1", house.port)) for _ in range(50))
            await stop_listening(loop)

        monkeypatch.setattr(house.server, "_stop_listening", stop_with_a_queue)
        house.signal()
        await until(lambda: len(queued) == 50)
        clients = [RawClient(*await asyncio.open_connection(sock=one)) for one in queued]
        assert [await ask(client) for client in clients] == [(200, "close")] * 50
        with pytest.raises(OSError):
            await house.connect()
