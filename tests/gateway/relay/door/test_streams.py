"""Streamed answers through the door, from an engine that cuts, mixes and breaks them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome, UsageSource
from tests.doubles.engine import (
    DONE,
    EngineDouble,
    Received,
    Wire,
    answers,
    chat_stream,
    chunk,
    completion,
    die,
    event,
    stall,
    streams,
)
from tests.gateway.relay.door.house import DoorHouse, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]


def renamed(events: list[bytes]) -> list[bytes]:
    return [piece.replace(b'"model": "served"', b'"model": "alias"') for piece in events]


def texts(body: bytes) -> str:
    """The text of all events of a stream."""
    said = ""
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                said += choice["delta"].get("content") or ""
    return said


@pytest.mark.shows("G9", "G10")
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_split_at_any_byte_nothing_is_corrupted(open_door: OpenDoor, size: int, line_end: bytes) -> None:
    events = [piece.replace(b"\n", line_end) for piece in chat_stream("Grüße, ", "世界", " 🙂")]
    whole = b"".join(events)
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    async with EngineDouble(streams(*pieces)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True, stream_options={"include_usage": True}))
        assert answer.body == b"".join(renamed(events))
        assert texts(answer.body) == "Grüße, 世界 🙂"
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.usage.source) == (Outcome.SUCCESS, UsageSource.ENGINE)
        assert (settlement.usage.input_tokens, settlement.usage.output_tokens) == (7, 3)
        assert settlement.ttft_seconds is not None


async def test_multi_line_data_passes_as_it_came(open_door: OpenDoor) -> None:
    odd = b'event: message\r\ndata: {"model": "alias",\r\ndata: "choices": [{"delta": {"content": "A"}}]}\r\n\r\n'
    async with EngineDouble(streams(odd, chunk(finish="stop"), DONE)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True))
        assert answer.body.startswith(odd)
        assert await house.outcome() is Outcome.SUCCESS


@pytest.mark.shows("G14")
@pytest.mark.parametrize("options", ["missing", None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_is_asked_for_and_its_chunk_taken_out(open_door: OpenDoor, options: Any) -> None:
    events = chat_stream("A", "B")
    async with EngineDouble(streams(*events)) as engine:
        house = await open_door(engine.port)
        body = chat(stream=True) if options == "missing" else chat(stream=True, stream_options=options)
        answer = await house.ask(body)
        assert engine.received[0].json["stream_options"]["include_usage"] is True
        assert answer.body == b"".join(renamed([piece for piece in events if b'"usage"' not in piece]))
        assert (await house.settled())[0].usage.output_tokens == 3


@pytest.mark.shows("G14")
async def test_usage_chunk_reaches_the_client_that_asked(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("A"))) as engine:
        house = await open_door(engine.port)
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await house.ask(chat(stream=True, stream_options=options))
        assert b'"usage"' in answer.body
        assert engine.received[0].json["stream_options"] == options


@pytest.mark.shows("G11")
async def test_comments_pass_before_and_after_content(open_door: OpenDoor) -> None:
    ping = b": ping\n\n"
    first, *rest = chat_stream("A")
    async with EngineDouble(streams(ping, first, ping, *rest)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True))
        assert answer.body.count(ping) == 2
        assert texts(answer.body) == "A"


@pytest.mark.shows("G11")
@pytest.mark.parametrize(
    "failure",
    [
        b'event: error\ndata: {"message": "out of memory on served"}\n\n',
        b'data: {"error": {"message": "out of memory on served", "type": "InternalServerError", "code": 500}}\n\n',
    ],
)
async def test_error_event_after_content_reaches_the_client_and_counts(open_door: OpenDoor, failure: bytes) -> None:
    async with EngineDouble(streams(chunk("A"), failure, DONE)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True))
        last = json.loads(answer.body.strip().rpartition(b"data: ")[2])
        assert last["error"]["message"] == "out of memory on alias"
        assert b"[DONE]" not in answer.body
        settlement = (await house.settled())[0]
        assert settlement.outcome is Outcome.TRUNCATED
        assert house.pipeline.picker.failed


async def test_error_event_of_the_clients_making_before_content_keeps_its_status(open_door: OpenDoor) -> None:
    failure = (
        b'data: {"error": {"message": "too long", "type": "BadRequestError", "param": "messages", "code": 400}}\n\n'
    )
    async with EngineDouble(streams(failure, DONE)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True))
        assert (answer.status, answer.error["message"], answer.error["param"]) == (400, "too long", "messages")
        assert not house.pipeline.picker.failed


async def reset(wire: Wire) -> None:
    wire.die()


async def end_early(wire: Wire) -> None:
    await wire.end_chunks()


async def close_in_order(wire: Wire) -> None:
    wire.close()


async def garble(wire: Wire) -> None:
    await wire.send(b"this is no chunk size\r\n")


@pytest.mark.shows("G12")
@pytest.mark.parametrize("then", [reset, end_early, close_in_order, garble, Wire.stall])
async def test_engine_lost_in_mid_stream_is_told_as_an_error(
    open_door: OpenDoor, then: Callable[[Wire], Awaitable[None]]
) -> None:
    async with EngineDouble(streams(chunk(role=True), chunk("A"), chunk("B"), b'data: {"id', then=then)) as engine:
        deadlines = Deadlines(inter_token_seconds=1.0) if then is Wire.stall else Deadlines()
        house = await open_door(engine.port, deadlines=deadlines)
        answer = await house.ask(chat(stream=True))
        assert answer.status == 200
        assert texts(answer.body.rpartition(b"data: ")[0]) == "AB"
        last = json.loads(answer.body.strip().rpartition(b"\n\ndata: ")[2])
        assert last["error"]["code"] in ("upstream_error", "upstream_timeout")
        assert b"[DONE]" not in answer.body
        assert b'"finish_reason": "stop"' not in answer.body
        settlement = (await house.settled())[0]
        assert settlement.outcome is Outcome.TRUNCATED
        assert (settlement.usage.source, settlement.usage.output_tokens) == (UsageSource.ESTIMATED, 2)
        assert len(engine.received) == 1


@pytest.mark.shows("G13")
@pytest.mark.parametrize(
    "first",
    [
        die,
        stall,
        answers({"error": {"message": "loading"}}, status=503),
        answers(b"<html>", status=500, content_type="text/html"),
        streams(chunk(role=True), then=reset),
        streams(b": ping\n\n", chunk(role=True), then=end_early),
        streams(chunk(role=True), chunk("lost")[:-1], then=reset),  # at the first content: not one byte was told
        streams(chunk(role=True), b'data: {"error": {"message": "x", "code": 500}}\n\n'),
    ],
)
async def test_before_the_first_content_another_engine_answers(open_door: OpenDoor, first: Any) -> None:
    async with EngineDouble(first) as broken, EngineDouble(streams(*chat_stream("A"))) as sound:
        # The others say themselves that they are lost; the sound one has as long as the silent one.
        deadlines = Deadlines(first_token_seconds=2.0) if first is stall else Deadlines()
        house = await open_door(broken.port, sound.port, deadlines=deadlines)
        answer = await house.ask(chat(stream=True))
        assert answer.status == 200
        assert texts(answer.body) == "A"
        assert answer.body.count(b'"role"') == 1
        assert answer.body.endswith(DONE)
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.attempts) == (Outcome.SUCCESS, 2)
        assert settlement.endpoint == house.pipeline.picker.endpoints[1]


@pytest.mark.shows("G13")
async def test_after_the_first_content_no_other_engine_is_asked(open_door: OpenDoor) -> None:
    async with (
        EngineDouble(streams(chunk("A"), then=reset)) as broken,
        EngineDouble(streams(*chat_stream("B"))) as sound,
    ):
        house = await open_door(broken.port, sound.port)
        answer = await house.ask(chat(stream=True))
        assert b'"B"' not in answer.body
        assert await house.outcome() is Outcome.TRUNCATED
        assert sound.received == []


@pytest.mark.shows("G21")
@pytest.mark.parametrize(
    ("deadlines", "content"),
    [
        pytest.param(Deadlines(first_token_seconds=1.0), False, id="first token"),
        pytest.param(Deadlines(inter_token_seconds=0.3), True, id="inter-token"),
        pytest.param(Deadlines(total_seconds=1.0, inter_token_seconds=120.0), True, id="total"),
    ],
)
async def test_heartbeats_are_no_progress(open_door: OpenDoor, deadlines: Deadlines, content: bool) -> None:
    async def beat(wire: Wire) -> None:
        while True:
            await wire.chunk(b": ping\n\n", chunk(role=True))
            await asyncio.sleep(0.02)

    async with EngineDouble(streams(chunk("A") if content else b": begun\n\n", then=beat)) as engine:
        house = await open_door(engine.port, deadlines=deadlines)
        answer = await house.ask(chat(stream=True))
        assert answer.body.startswith(b'data: {"id"' if content else b": begun")
        assert b"upstream_timeout" in answer.body
        assert await house.outcome() is (Outcome.TRUNCATED if content else Outcome.FAILED)
        await until(lambda: engine.open == 0)


@pytest.mark.shows("G21")
async def test_a_late_head_leaves_less_time_for_the_first_content(open_door: OpenDoor) -> None:
    async def slow(_request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.3)
        await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        await asyncio.sleep(0.3)
        await wire.chunk(*chat_stream("A"))
        await wire.end_chunks()

    async with EngineDouble(slow) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(first_token_seconds=0.5))
        assert (await house.ask(chat(stream=True))).status == 504
        assert await house.outcome() is Outcome.FAILED


@pytest.mark.shows("G16")
@pytest.mark.parametrize("usage", [(7, 4), None])
async def test_two_choices_keep_their_index_and_both_are_counted(
    open_door: OpenDoor, usage: tuple[int, int] | None
) -> None:
    def part(index: int, text: str) -> bytes:
        return event(b'{"choices": [{"index": %d, "delta": {"content": "%b"}}]}' % (index, text.encode()))

    parts = [part(0, "A"), part(1, "B"), part(1, "C"), part(0, "D")]
    last = [chunk(usage=usage)] if usage else []
    async with EngineDouble(streams(*parts, chunk(finish="stop"), *last, DONE)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True, n=2))
        assert answer.body.startswith(b"".join(parts))
        assert engine.received[0].json["n"] == 2
        settled = (await house.settled())[0].usage
        assert (settled.output_tokens, settled.source) == (4, "engine" if usage else "estimated")


@pytest.mark.shows("G12")
@pytest.mark.parametrize(("choices", "outcome"), [(1, Outcome.SUCCESS), (2, Outcome.TRUNCATED)])
async def test_an_end_without_done_counts_when_every_choice_has_ended(
    open_door: OpenDoor, choices: int, outcome: Outcome
) -> None:
    async with EngineDouble(streams(chunk("A"), chunk(finish="stop"))) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True, n=choices))
        assert (b'"error"' in answer.body) == (outcome is Outcome.TRUNCATED)
        assert b"[DONE]" not in answer.body
        assert await house.outcome() is outcome


async def test_an_engine_that_does_not_stream_is_passed_on(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True))
        assert (answer.header("content-type"), answer.json) == ("application/json", completion(model="alias"))


async def test_a_slow_client_is_not_blamed_on_the_engine(open_door: OpenDoor) -> None:
    """While the client makes it wait, the engine's time for its next content does not run."""
    count, size = 300, 100_000

    async def flood(wire: Wire) -> None:
        await wire.chunk(*[chunk("x" * size)] * count)
        await wire.chunk(chunk(finish="stop"), DONE)
        await wire.end_chunks()

    async with EngineDouble(streams(chunk("A"), then=flood)) as engine:
        deadlines = Deadlines(inter_token_seconds=0.2)
        house = await open_door(engine.port, deadlines=deadlines)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await client.head()
        paused_until = asyncio.get_running_loop().time() + 0.6
        await until(lambda: asyncio.get_running_loop().time() >= paused_until)
        object.__setattr__(deadlines, "inter_token_seconds", 30.0)  # the client takes all from here on
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await client.reader.read(1 << 20)
            assert data
            tail = (tail + data)[-64:]
        assert await house.outcome() is Outcome.SUCCESS


@pytest.mark.shows("G24")
async def test_the_name_that_the_client_used_is_echoed(open_door: OpenDoor) -> None:
    tricky = event(
        b'{"choices": [{"delta": {"content": "\\"model\\": \\"served\\""}}], '
        b'"x": {"model": "served"}, "model" : "served"}'
    )
    async with EngineDouble(streams(tricky, *chat_stream("A"))) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True, model='ali\\as "ü"'))
        first = json.loads(answer.body.splitlines()[0][6:])
        assert first["model"] == 'ali\\as "ü"'
        assert first["x"] == {"model": "served"}
        assert first["choices"][0]["delta"]["content"] == '"model": "served"'
        assert engine.received[0].json["model"] == "served"
        assert answer.body.count(b'"model": "served"') == 1


@pytest.mark.shows("G18")
async def test_gzip_that_nobody_asked_for_is_undone(open_door: OpenDoor) -> None:
    events = chat_stream("A", "世界")
    async with EngineDouble(streams(*events, gzipped=True)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(stream=True, stream_options={"include_usage": True}))
        assert engine.received[0].header("accept-encoding") == "identity"
        assert answer.header("content-encoding") is None
        assert answer.body == b"".join(renamed(events))
        assert (await house.settled())[0].usage.output_tokens == 3


async def test_slow_reader_stops_the_engine(open_door: OpenDoor) -> None:
    """Back-pressure reaches the engine: bytes wait in its socket, not in the relay's memory."""
    wires: list[Wire] = []
    count, size = 400, 100_000

    async def flood(wire: Wire) -> None:
        wires.append(wire)
        await wire.chunk(*[chunk("x" * size)] * count)
        await wire.chunk(chunk(finish="stop"), DONE)
        await wire.end_chunks()

    async with EngineDouble(streams(chunk("A"), then=flood)) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await until(lambda: bool(wires) and wires[0].unsent > 0)  # StreamReader takes 128 KiB and then pauses
        await client.head()
        received = 0
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = await client.reader.read(1 << 20)
            assert data
            received += len(data)
            tail = (tail + data)[-64:]
        assert DONE in tail
        assert received > count * size
        assert await house.outcome() is Outcome.SUCCESS
