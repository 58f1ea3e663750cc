"""Endings of a request that an engine makes, with and without a task: settled once, and nothing of it stays."""

import asyncio
import gzip
import json

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome
from gateway.relay.upstream import Origin
from tests.doubles.engine import DONE, EngineDouble, Received, Script, Wire, answers, chunk, completion, streams
from tests.gateway.relay.door.ending import (
    ANSWER,
    ANSWER_HEAD,
    BODY,
    OpenDoor,
    both,
    close,
    engine_of,
    nothing_stays,
    says,
    send,
    warm,
)
from tests.gateway.relay.door.house import chat, until


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(says(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", ANSWER_HEAD + ANSWER), id="1xx first"),
        pytest.param(says(b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER_HEAD + ANSWER), id="1xx with it"),
        pytest.param(says(ANSWER_HEAD, ANSWER[:10], ANSWER[10:]), id="in pieces"),
        pytest.param(says(*[bytes([byte]) for byte in ANSWER_HEAD + ANSWER]), id="byte by byte"),
        pytest.param(says((ANSWER_HEAD + ANSWER) * 2), id="twice"),
        pytest.param(says(ANSWER_HEAD + ANSWER + b"more"), id="trailing bytes"),
        pytest.param(says(ANSWER_HEAD + ANSWER + b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx after it"),
        pytest.param(answers(completion(), gzipped=True), id="gzip"),
        pytest.param(answers(completion(), headers=[("Connection", "close")]), id="the last"),
        pytest.param(says(b"HTTP/1.0 200 OK\r\n\r\n", ANSWER, then=close), id="until it closes"),
    ],
)
async def test_ways_to_answer(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script, answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        for _ in range(2):  # the second finds a connection that is of use
            told = await client.answer()
            assert (told.status, told.json["model"]) == (200, "alias")
            await client.request("POST", "/v1/chat/completions", BODY)
        assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 3)


@both
@pytest.mark.parametrize("size", [33_000, 400_000])
@pytest.mark.parametrize("gzipped", [False, True])
async def test_sizes_of_answers(open_door: OpenDoor, quick: bool, size: int, gzipped: bool) -> None:
    text = "x" * size
    body = json.dumps(completion(text)).encode()
    if gzipped:
        body = gzip.compress(body, 0)

    async def in_pieces(_request: Received, wire: Wire) -> None:
        encoding = [("Content-Encoding", "gzip")] if gzipped else []
        await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(body))), *encoding)
        await wire.send(*[body[start : start + 9_000] for start in range(0, len(body), 9_000)])

    async with engine_of(in_pieces) as engine:
        house = await warm(open_door, engine, quick)
        told = await house.ask(chat())
        assert told.json["choices"][0]["message"]["content"] == text
        await nothing_stays(house, engine, Outcome.SUCCESS)


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(answers(b""), id="nothing"),
        pytest.param(answers(b"", status=204), id="no content"),
        pytest.param(answers(b"[1]"), id="no object"),
        pytest.param(answers({"error": {"message": "no"}}), id="an error that says 200"),
        pytest.param(answers(b"no", status=500), id="an error"),
        pytest.param(says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), id="101"),
        pytest.param(says(b"SSH-2.0-x\r\n"), id="not HTTP"),
        pytest.param(says(ANSWER_HEAD + ANSWER[:-1], then=close), id="cut short"),
        pytest.param(says(ANSWER_HEAD[:20], then=close), id="cut short in its head"),
        pytest.param(streams(chunk("A"), DONE), id="a stream"),
    ],
)
async def test_ways_to_fail(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        told = await house.ask(chat())
        assert told.status >= 500
        assert told.error
        await nothing_stays(house, engine, Outcome.FAILED)


@both
async def test_an_engine_that_answers_before_it_has_read(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of() as engine:
        house = await warm(open_door, engine, quick)
        (connection,) = house.upstream._pools[Origin("127.0.0.1", engine.port)]._all
        ask = asyncio.create_task(house.ask(chat(filler="x" * 30_000_000)))
        await until(lambda: house.pipeline.picker.in_flight == 1)
        connection.data_received(ANSWER_HEAD + ANSWER)
        assert (await ask).status == 200
        await nothing_stays(house, engine, Outcome.SUCCESS)
        await until(lambda: engine.open == 0)


@both
async def test_a_connection_that_went_stale(open_door: OpenDoor, quick: bool) -> None:
    async def answer_and_hang_up(request: Received, wire: Wire) -> None:
        await answers(completion())(request, wire)
        wire.close()

    async with EngineDouble(answer_and_hang_up, answers(completion())) as engine:
        house = await open_door(engine.port)
        house.pipeline.quick = quick
        for _ in range(2):
            assert (await house.ask(chat())).status == 200
        await nothing_stays(house, engine, Outcome.SUCCESS, Outcome.SUCCESS)


async def test_a_whole_answer_after_a_comment_does_not_get_into_the_stream(open_door: OpenDoor) -> None:
    async def late(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.2)
        await answers(completion())(request, wire)

    async with EngineDouble(late) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(keep_alive_seconds=0.05))
        told = await house.ask(chat(stream=True))
        assert told.header("content-type") == "text/event-stream; charset=utf-8"
        *comments, error, rest = told.body.split(b"\n\n")
        assert set(comments) == {b": keep-alive"}
        assert b'"code":"upstream_error"' in error
        assert rest == b""
        await nothing_stays(house, engine, Outcome.FAILED)
