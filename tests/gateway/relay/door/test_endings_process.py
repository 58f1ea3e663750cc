"""The end of the process, wherever a request is: settled once, and nothing of it stays."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.relay import engine_request
from gateway.relay import server as server_module
from gateway.relay.plan import Api, Outcome
from gateway.relay.server import ServerLimits
from gateway.relay.upstream import Origin
from tests.doubles.engine import Received, Script, Wire, answers, completion, stall
from tests.gateway.relay.door.ending import (
    ANSWER_HEAD,
    OpenDoor,
    both,
    connected,
    engine_of,
    nothing_stays,
    request,
    says,
    send,
    warm,
)
from tests.gateway.relay.door.house import chat, until


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [stall, says(ANSWER_HEAD, b"{", then=Wire.stall)], ids=["head", "body"])
async def test_the_end_of_the_process(open_door: OpenDoor, quick: bool, stream: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house, json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        house.door.abort_all()
        house.door.abort_all()
        told = await client.answer()
        assert (told.status, told.error["code"]) == (503, "draining")
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.pipeline.picker.failed == []


@both
async def test_the_end_of_the_process_before_a_task_has_run(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat(stream=True)))
        if not quick:
            await until(lambda: house.door.in_flight == 1)
        house.door.abort_all()
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.settlements[0].error_code == "draining"


@both
async def test_the_end_of_the_process_while_a_stale_connection_is_replaced(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(_request: Received, wire: Wire) -> None:
        wire.close()

    async with engine_of(hang_up, answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        pool = house.upstream._pools[Origin("127.0.0.1", engine.port)]
        acquire, asked, go_on = pool.acquire, asyncio.Event(), asyncio.Event()

        async def acquire_late(seconds: float, *, fresh: bool) -> Any:
            asked.set()
            await go_on.wait()
            return await acquire(seconds, fresh=fresh)

        monkeypatch.setattr(pool, "acquire", acquire_late)
        client = await send(house)
        await asked.wait()
        house.door.abort_all()
        go_on.set()
        assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, Outcome.FAILED)
        assert len(engine.received) == 2


@both
async def test_the_end_of_the_process_between_the_steps_of_an_answer(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = SimpleNamespace(method="POST", path="/second", body=b"{}")
    translation = SimpleNamespace(
        request=SimpleNamespace(method="POST", path="/first", body=b"{}"), whole=lambda _: step
    )
    room = SimpleNamespace(translates={Api.CHAT}, wire=SimpleNamespace(translate=lambda _: translation))
    async with engine_of(answers(completion(), headers=[("Connection", "close")]), answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        pool = house.upstream._pools[Origin("127.0.0.1", engine.port)]
        asked = asyncio.Event()

        async def acquire_never(_seconds: float, *, fresh: bool) -> Any:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(engine_request, "find_room", lambda _: room)
        monkeypatch.setattr(pool, "acquire", acquire_never)
        client = await send(house)
        await asked.wait()
        house.door.abort_all()
        async with asyncio.timeout(5):
            assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, Outcome.FAILED)


@both
async def test_the_end_of_the_process_reaches_what_waits_in_the_pipe(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 0.0)
    async with engine_of(stall) as engine:
        house = await warm(
            open_door, engine, quick, limits=ServerLimits(drain_notice_seconds=0, drain_deadline_seconds=0.1)
        )
        client = await house.connect()
        client.writer.write(request(chat()) * 3)
        await until(lambda: len(engine.received) == 2)
        house.signal()
        for _ in range(3):
            assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, *[Outcome.FAILED] * 3)


@both
async def test_the_end_of_the_process_waits_for_clients_to_take_their_answers(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 0.0)
    async with engine_of(answers(completion("x" * 20_000_000))) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        await until(lambda: len(house.settlements) == 1)
        house.signal()
        assert house.task is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(house.task), 0.3)
        assert len((await client.answer()).json["choices"][0]["message"]["content"]) == 20_000_000
        await asyncio.wait_for(house.task, 30)
