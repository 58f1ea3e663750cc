"""What the tests of endings share: scripts of engines, a warm door, and that nothing of a request stays."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from core.clock import SystemClock
from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome, Ready, SlimRequest
from gateway.relay.protocol import GuardedProtocol
from gateway.relay.upstream import Origin
from tests.doubles.engine import EngineDouble, Received, Script, Wire, answers, completion
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]


BODY = json.dumps(chat()).encode()


ANSWER = json.dumps(completion()).encode()


ANSWER_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)


both = pytest.mark.parametrize("quick", [True, False], ids=["quick", "task"])


def says(*pieces: bytes, then: Callable[[Wire], Awaitable[None]] | None = None) -> Script:
    """A script: bytes as they are."""

    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(*pieces)
        if then is not None:
            await then(wire)

    return script


async def close(wire: Wire) -> None:
    wire.close()


async def warm(
    open_door: OpenDoor, engine: EngineDouble, quick: bool, *, deadlines: Deadlines | None = None, **options: Any
) -> DoorHouse:
    """A door with an idle connection to the engine; the first script is used up, without these `deadlines`."""
    house = await open_door(engine.port, **options)
    house.pipeline.quick = quick
    assert (await house.ask(chat())).status == 200
    await until(lambda: house.upstream.idle_connections(Origin("127.0.0.1", engine.port)) == 1)
    house.door._deadlines = deadlines or Deadlines()
    house.settlements.clear()
    house.pipeline.picker.outcomes.clear()
    return house


async def send(house: DoorHouse, body: bytes = BODY) -> RawClient:
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", body)
    return client


async def nothing_stays(house: DoorHouse, engine: EngineDouble, *outcomes: Outcome) -> None:
    origin = Origin("127.0.0.1", engine.port)
    await until(lambda: house.door.in_flight == 0 and not house.server.server_state.tasks)
    await until(lambda: house.upstream.connections(origin) == house.upstream.idle_connections(origin))
    for _ in range(5):
        await asyncio.sleep(0)
    assert [settlement.outcome for settlement in house.settlements] == [*outcomes]
    assert house.pipeline.picker.in_flight == 0
    assert house.door._memory.held_bytes == 0
    assert house.upstream.memory.held_bytes == 0


async def connected(house: DoorHouse) -> GuardedProtocol:
    """The door's end of a new connection."""
    before = guarded(house)
    await house.connect()
    await until(lambda: len(guarded(house)) > len(before))
    (protocol,) = [one for one in guarded(house) if one not in before]
    return protocol


def guarded(house: DoorHouse) -> list[GuardedProtocol]:
    """The door's ends of all connections."""
    return [one for one in house.server.server_state.connections if isinstance(one, GuardedProtocol)]


def request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: door\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


@contextlib.asynccontextmanager
async def engine_of(*scripts: Script) -> AsyncIterator[EngineDouble]:
    """An engine whose first answer is a plain one; see `warm`."""
    async with EngineDouble(answers(completion()), *scripts) as engine:
        yield engine


class SlowClock(SystemClock):
    """Goes a little slower than the loop's, as far as waits can tell."""

    def monotonic(self) -> float:
        return super().monotonic() * 0.95


def admit(house: DoorHouse, **members: Any) -> None:
    """Have requests admitted with other members of Ready."""
    prepare, prepare_now = house.pipeline.prepare, house.pipeline.prepare_now

    def changed(ready: Any) -> Any:
        if isinstance(ready, Ready):
            for name, value in members.items():
                setattr(ready, name, value)
        return ready

    async def prepare_so(request: SlimRequest) -> Any:
        return changed(await prepare(request))

    house.pipeline.prepare = prepare_so  # type: ignore[method-assign]
    house.pipeline.prepare_now = lambda request: changed(prepare_now(request))  # type: ignore[method-assign]
