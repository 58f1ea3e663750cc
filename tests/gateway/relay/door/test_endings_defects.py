"""Endings of a request that defects of ours make: settled once, and nothing of it stays."""

import asyncio
import json
from typing import Any

import pytest

from gateway.relay import attempt as attempt_module
from gateway.relay.completion import CompletionStream
from gateway.relay.plan import Outcome, SlimRequest
from tests.doubles.engine import EngineDouble, Wire, chunk, streams
from tests.gateway.relay.door.ending import OpenDoor, engine_of, nothing_stays, request, send, warm
from tests.gateway.relay.door.house import chat, until


@pytest.mark.parametrize(
    ("defect", "code", "failed"),
    [(ValueError("x"), "upstream_error", 1), (RuntimeError("x"), "internal_error", 0)],
)
async def test_a_defect_while_bytes_pass_without_a_task(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, defect: Exception, code: str, failed: int
) -> None:
    take = CompletionStream.take

    def take_or_break(self: CompletionStream, data: bytes) -> list[bytes]:
        if b"break" in data:
            raise defect
        return take(self, data)

    monkeypatch.setattr(CompletionStream, "take", take_or_break)
    async with EngineDouble(streams(chunk("A"), chunk("B"), chunk("break", finish="x"), then=Wire.stall)) as engine:
        house = await open_door(engine.port)
        client = await send(house, json.dumps(chat(stream=True)).encode())
        async with asyncio.timeout(5):
            seen = await client.reader.readuntil(b'"B"')
            assert b'"A"' in seen
            await until(lambda: len(house.settlements) == 1)
        await nothing_stays(house, engine, Outcome.TRUNCATED)
        assert house.settlements[0].error_code == code
        assert len(house.pipeline.picker.failed) == failed


async def test_a_defect_while_it_is_decided_about(open_door: OpenDoor) -> None:
    async with engine_of() as engine:
        house = await warm(open_door, engine, quick=True)

        def broken(_request: SlimRequest) -> None:
            raise RuntimeError

        house.pipeline.prepare_now = broken  # type: ignore[assignment,method-assign]
        client = await house.connect()
        client.writer.write(request(chat()) * 2)
        for _ in range(2):
            assert (await client.answer()).status == 200  # `prepare` is well
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 2)


async def test_a_defect_while_an_answer_is_read(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_named: Any) -> None:
        raise RuntimeError

    async with engine_of() as engine:
        house = await warm(open_door, engine, quick=True)
        monkeypatch.setattr(attempt_module, "read_whole", broken)
        told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (500, "internal_error")
        await nothing_stays(house, engine, Outcome.FAILED)
