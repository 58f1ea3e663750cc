"""The door under any ASGI server: one that gives no keys of its own, only `receive` and `send`."""

import asyncio
import json
from typing import Any
from uuid import UUID

import msgspec
import pytest

from core.clock import SystemClock
from gateway.relay.dialects.response_store import Reader, response_name
from gateway.relay.door import Door, DoorLimits
from gateway.relay.memory import MemoryBudget
from gateway.relay.plan import Outcome
from gateway.relay.upstream import UpstreamClient
from tests.doubles.engine import EngineDouble, Wire, answers, chunk, completion, stall, streams
from tests.gateway.relay.door.house import FirstPicker, OpenPipeline, chat, endpoint, until
from tests.gateway.relay.test_stored import RESPONSE_ID, OneResponse, stored


class Server:
    """One request's ASGI server side."""

    def __init__(self, door: Door, *bodies: bytes, stuck: bool = False, stored: str = "") -> None:
        self.sent: list[dict[str, Any]] = []
        self.left = asyncio.Event()
        self._bodies = list(bodies)
        self._stuck = stuck
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
        if stored:
            scope |= {"method": "GET", "path": f"/v1/responses/{stored}"}
        self.task = asyncio.create_task(door(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._bodies:
            body = self._bodies.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(self._bodies)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._stuck:
            await asyncio.get_running_loop().create_future()
        self.sent.append(dict(message))


@pytest.fixture
async def client() -> Any:
    made = UpstreamClient()
    yield made
    await made.aclose()


def build(client: UpstreamClient, *ports: int, limits: DoorLimits | None = None) -> tuple[Door, OpenPipeline]:
    pipeline = OpenPipeline(FirstPicker([endpoint(port) for port in ports]))
    return Door(pipeline, client, SystemClock(), limits=limits), pipeline


async def test_an_answer(client: UpstreamClient) -> None:
    async with EngineDouble(answers(completion())) as engine:
        door, pipeline = build(client, engine.port)
        body = json.dumps(chat()).encode()
        server = Server(door, body[:10], body[10:20], body[20:])
        await server.task
        start, end = server.sent
        assert (start["status"], end.get("more_body", False)) == (200, False)
        assert json.loads(end["body"]) == completion(model="alias")
        assert [s.outcome for s in pipeline.settlements] == [Outcome.SUCCESS]
        server.left.set()  # as servers do once the response is complete
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if "_watch" in repr(task)] == []


@pytest.mark.shows("G6")
@pytest.mark.parametrize(("script", "stream"), [(stall, False), (streams(chunk("A"), then=Wire.stall), True)])
async def test_a_client_that_leaves(client: UpstreamClient, script: Any, stream: bool) -> None:
    async with EngineDouble(script) as engine:
        door, pipeline = build(client, engine.port)
        server = Server(door, json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 1 and (not stream or len(server.sent) == 2))
        server.left.set()
        await until(server.task.done, 1)
        await server.task
        await until(lambda: engine.open == 0)
        assert [s.outcome for s in pipeline.settlements] == [Outcome.CANCELLED]


async def test_a_client_that_does_not_read(client: UpstreamClient) -> None:
    async with EngineDouble(answers(completion())) as engine:
        door, pipeline = build(client, engine.port, limits=DoorLimits(send_deadline_seconds=0.2))
        server = Server(door, json.dumps(chat()).encode(), stuck=True)
        await asyncio.wait_for(server.task, 30)
        # The engine has done its work and the row was written before the bytes were let go.
        assert [s.outcome for s in pipeline.settlements] == [Outcome.SUCCESS]


async def test_a_cancelled_task_settles_and_stays_cancelled(client: UpstreamClient) -> None:
    async with EngineDouble(stall) as engine:
        door, pipeline = build(client, engine.port)
        server = Server(door, json.dumps(chat()).encode())
        await until(lambda: len(engine.received) == 1)
        server.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await server.task
        assert [s.outcome for s in pipeline.settlements] == [Outcome.CANCELLED]
        assert pipeline.picker.in_flight == 0


async def test_other_scopes_are_not_ours(client: UpstreamClient) -> None:
    door, _ = build(client)

    async def never(*_args: Any) -> Any:
        raise AssertionError

    await door({"type": "lifespan"}, never, never)


async def test_a_websocket_elsewhere_than_at_conversations_is_refused_in_shape(client: UpstreamClient) -> None:
    door, _ = build(client)
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        told.append(dict(message))

    extensions: dict[str, Any] = {"websocket.http.response": {}}
    await door({"type": "websocket", "path": "/elsewhere", "headers": [], "extensions": extensions}, receive, send)
    assert (told[0]["type"], told[0]["status"]) == ("websocket.http.response.start", 404)
    assert json.loads(told[1]["body"])["error"]["code"] == "not_found"


@pytest.mark.parametrize("below", ["", "/input_items"])
async def test_a_stored_response_is_held_within_the_budget_until_it_is_taken(
    client: UpstreamClient, below: str
) -> None:
    budget = MemoryBudget(1500)
    path = response_name(RESPONSE_ID) + below

    class Long(OneResponse):
        async def get(self, reader: Reader, response_id: UUID) -> bytes:
            return msgspec.json.encode({"id": "x" * 1000})

        async def input_items(self, reader: Reader, response_id: UUID) -> bytes:
            return msgspec.json.encode([{"id": "x" * 1000}])

    pipeline = OpenPipeline(FirstPicker([]))
    door = Door(pipeline, client, SystemClock(), memory=budget, stored=stored(Long()))
    stuck = Server(door, stuck=True, stored=path)
    await until(lambda: budget.held_bytes > 1000)
    refused = Server(door, stored=path)
    await refused.task
    assert (refused.sent[0]["status"], budget.held_bytes < 1500) == (503, True)
    stuck.task.cancel()
    await until(lambda: budget.held_bytes == 0)
    told = Server(door, stored=path)
    await told.task
    assert (told.sent[0]["status"], told.sent[-1].get("more_body", False), budget.held_bytes) == (200, False, 0)
