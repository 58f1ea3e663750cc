"""The official `anthropic` client at the relay's door, with engines that do what a test says."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

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
    tool_chunk,
)
from tests.gateway.relay.door.conftest import open_door as open_door
from tests.gateway.relay.door.house import DoorHouse, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]
HI: list[MessageParam] = [{"role": "user", "content": "Hi"}]
LOOK: ToolParam = {"name": "look", "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}
BODY = {"model": "alias", "max_tokens": 9, "messages": HI}


@asynccontextmanager
async def client_of(house: DoorHouse) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{house.port}", api_key="sk-gh-x", max_retries=0, timeout=10
    ) as client:
        yield client


TOOL_STREAM = [
    chunk(role=True),
    chunk("Let me look."),
    tool_chunk({"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": ""}}),
    tool_chunk({"index": 0, "function": {"arguments": '{"at": "le'}}),
    tool_chunk({"index": 0, "function": {"arguments": 'ft"}'}}),
    tool_chunk({"index": 0, "id": "b", "type": "function", "function": {"name": "look", "arguments": '{"at": "世"}'}}),
    chunk(finish="tool_calls"),
    chunk(usage=(7, 3)),
    DONE,
]
"""Two calls in parallel, of an engine that says index 0 for both."""


async def test_a_whole_answer(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion("Hello"))) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            message = await client.messages.create(
                model="alias", max_tokens=9, messages=HI, system="Be brief.", extra_body={"min_p": 0.1}
            )
        assert (message.type, message.role, message.model, message.stop_reason) == (
            *("message", "assistant", "alias"),
            "end_turn",
        )
        assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello"}]
        assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 3)
        request = engine.received[0]
        assert request.path == "/v1/chat/completions"
        assert request.header("x-api-key") is None
        assert request.json == {
            "model": "served",
            "max_tokens": 9,
            "messages": [{"role": "system", "content": "Be brief."}, *HI],
            "min_p": 0.1,
        }
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.usage.source) == (Outcome.SUCCESS, UsageSource.ENGINE)
        assert message._request_id == engine.received[0].header("x-request-id")
        assert message.id == f"msg_{message._request_id}".replace("-", "")


async def test_a_streamed_answer(open_door: OpenDoor) -> None:
    whole = b"".join(chat_stream("Hel", "lo 世"))
    pieces = [whole[start : start + 11] for start in range(0, len(whole), 11)]
    async with EngineDouble(streams(*pieces)) as engine:
        house = await open_door(engine.port)
        async with (
            client_of(house) as client,
            client.messages.stream(model="alias", max_tokens=9, messages=HI) as stream,
        ):
            texts = [text async for text in stream.text_stream]
            message = await stream.get_final_message()
        assert texts == ["Hel", "lo 世"]
        assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 7, 3)
        assert engine.received[0].json["stream_options"] == {"include_usage": True}
        settlement = (await house.settled())[0]
        assert (settlement.usage.input_tokens, settlement.usage.output_tokens) == (7, 3)
        assert settlement.ttft_seconds is not None


async def test_tools_streamed_in_parallel(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*TOOL_STREAM)) as engine:
        house = await open_door(engine.port)
        async with (
            client_of(house) as client,
            client.messages.stream(model="alias", max_tokens=9, messages=HI, tools=[LOOK]) as stream,
        ):
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use"
        assert [(b.name, b.input) for b in message.content if b.type == "tool_use"] == [
            ("look", {"at": "left"}),
            ("look", {"at": "世"}),
        ]
        assert engine.received[0].json["tools"][0]["function"]["parameters"] == LOOK["input_schema"]


async def test_a_conversation_with_a_tool(open_door: OpenDoor) -> None:
    asks = completion()
    asks["choices"][0] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "left"}'}}
            ],
        },
        "finish_reason": "tool_calls",
    }
    async with EngineDouble(answers(asks), answers(completion("A wall."))) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            first = await client.messages.create(model="alias", max_tokens=9, messages=HI, tools=[LOOK])
            assert [block.type for block in first.content] == ["thinking", "tool_use"]
            result: MessageParam = {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "wall"}],
            }
            second = await client.messages.create(
                model="alias",
                max_tokens=9,
                messages=[*HI, {"role": "assistant", "content": first.content}, result],
                tools=[LOOK],
            )
        assert second.content[0].to_dict() == {"type": "text", "text": "A wall."}
        assert engine.received[1].json["messages"][1:] == [
            {
                "role": "assistant",
                "content": None,
                "reasoning": "Hm.",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":"left"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "wall"},
        ]


@pytest.mark.shows("G23")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
    ],
)
async def test_an_engines_error_keeps_its_status_in_anthropics_envelope(
    open_door: OpenDoor, status: int, kind: str, raised: type[anthropic.APIStatusError], stream: bool
) -> None:
    said = {"error": {"message": "served says no", "type": "BadRequestError", "param": "n", "code": status}}
    async with EngineDouble(answers(said, status=status)) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            with pytest.raises(raised) as refused:
                await client.messages.create(model="alias", max_tokens=9, messages=HI, stream=stream)
        assert refused.value.status_code == status
        request_id = refused.value.request_id
        assert request_id == refused.value.response.headers["x-request-id"]
        assert refused.value.body == {
            "type": "error",
            "error": {"type": kind, "message": "alias says no"},
            "request_id": request_id,
        }
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.status) == (Outcome.FAILED, status)


@pytest.mark.shows("G23")
async def test_an_engines_error_event_is_anthropics(open_door: OpenDoor) -> None:
    said = event(b'{"error": {"message": "served is out of memory", "type": "server_error", "code": 500}}')
    async with EngineDouble(streams(chunk("Hel"), said)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask({**BODY, "stream": True}, path="/v1/messages")
        events = answer.body.decode().split("\n\n")
        assert events[-2].startswith('event: error\ndata: {"error":{"type":"api_error"')
        assert "alias is out of memory" in events[-2]
        assert "message_stop" not in answer.body.decode()
        assert await house.outcome() is Outcome.TRUNCATED


@pytest.mark.parametrize("told", [False, True])
async def test_nonsense_in_a_stream_is_the_engines_failure(open_door: OpenDoor, told: bool) -> None:
    nonsense = event(b'{"choices": [{"index": 0, "delta": {"content": 17, "secret": "x"}}]}')
    pieces = [chunk("Hel"), nonsense] if told else [nonsense]
    async with EngineDouble(streams(*pieces)) as engine, EngineDouble(streams(*chat_stream("Hello"))) as other:
        house = await open_door(engine.port, other.port)
        answer = await house.ask({**BODY, "stream": True}, path="/v1/messages")
        assert b"secret" not in answer.body
        assert (b"event: error" in answer.body) == told
        assert (b"event: message_stop" in answer.body) != told
        assert await house.outcome() is (Outcome.TRUNCATED if told else Outcome.SUCCESS)


async def test_events_that_say_nothing_end_no_answer(open_door: OpenDoor) -> None:
    """A chunk of length zero would be the end of the body."""
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":'}}
    second = {"index": 1, "id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    waits = [tool_chunk(second), chunk(""), chunk("")]
    end = [tool_chunk({"index": 0, "function": {"arguments": "1}"}}), chunk(finish="tool_calls"), DONE]
    async with EngineDouble(streams(chunk(role=True), tool_chunk(first), *waits, *end)) as engine:
        house = await open_door(engine.port)
        async with (
            client_of(house) as client,
            client.messages.stream(model="alias", max_tokens=9, messages=HI, tools=[LOOK]) as stream,
        ):
            message = await stream.get_final_message()
        assert [block.input for block in message.content if block.type == "tool_use"] == [{"at": 1}, {}]


async def test_what_is_wrong_never_reaches_an_engine(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            with pytest.raises(anthropic.BadRequestError, match=r"'tools\.0\.type'"):
                await client.messages.create(
                    model="alias",
                    max_tokens=9,
                    messages=HI,
                    tools=[{"type": "web_search_20250305", "name": "web_search"}],
                )
        assert engine.received == []


async def test_an_engine_that_dies_in_the_middle(open_door: OpenDoor) -> None:
    async def killed(wire: Wire) -> None:
        wire.die()

    async with EngineDouble(streams(chunk("Hel"), then=killed)) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            stream = await client.messages.create(model="alias", max_tokens=9, messages=HI, stream=True)
            for kind in ("message_start", "content_block_start", "content_block_delta"):
                assert (await anext(stream)).type == kind
            with pytest.raises(anthropic.APIStatusError):
                await anext(stream)
        assert await house.outcome() is Outcome.TRUNCATED


async def test_an_engine_that_fails_before_a_word_is_replaced(open_door: OpenDoor) -> None:
    async def killed(wire: Wire) -> None:
        wire.die()

    first = streams(chunk(role=True), then=killed)
    async with EngineDouble(first) as one, EngineDouble(die) as two, EngineDouble(streams(*chat_stream("Hello"))) as ok:
        house = await open_door(one.port, two.port, ok.port)
        async with (
            client_of(house) as client,
            client.messages.stream(model="alias", max_tokens=9, messages=HI) as stream,
        ):
            assert await stream.get_final_text() == "Hello"
        assert (await house.settled())[0].attempts == 3


async def test_silence_is_bridged_with_pings(open_door: OpenDoor) -> None:
    async def pause(_wire: Wire) -> None:
        await until(lambda: b"event: ping" in told)
        await _wire.chunk(*chat_stream("Hello"))
        await _wire.end_chunks()

    told = bytearray()
    async with EngineDouble(streams(then=pause)) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(keep_alive_seconds=0.05))
        connection = await house.connect()
        body = json.dumps({**BODY, "stream": True}).encode()
        await connection.request("POST", "/v1/messages", body)
        await connection.head()
        while piece := await connection.chunk():
            told += piece
    assert told.startswith(b'event: ping\ndata: {"type": "ping"}\n\n')
    assert told.endswith(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_engines_work(open_door: OpenDoor, stream: bool) -> None:
    async def endless(_request: Received, wire: Wire) -> None:
        await streams(chunk("Hel"), then=Wire.stall)(_request, wire)

    async with EngineDouble(endless if stream else stall) as engine:
        house = await open_door(engine.port)
        connection = await house.connect()
        body = json.dumps({**BODY, "stream": stream}).encode()
        await connection.request("POST", "/v1/messages", body)
        await until(lambda: len(engine.received) == 1)
        if stream:
            await connection.head()
            assert b"message_start" in await connection.chunk()
        connection.leave()
        await until(lambda: engine.open == 0)
        assert await house.outcome() is Outcome.CANCELLED


async def test_a_count_of_tokens(open_door: OpenDoor) -> None:
    async with EngineDouble(answers({"count": 12, "max_model_len": 512, "tokens": [1]})) as engine:
        house = await open_door(engine.port)
        async with client_of(house) as client:
            counted = await client.messages.count_tokens(model="alias", messages=HI, system="S", tools=[LOOK])
        assert counted.input_tokens == 12
        request = engine.received[0]
        assert request.path == "/tokenize"
        assert request.json["messages"] == [{"role": "system", "content": "S"}, *HI]
        assert await house.outcome() is Outcome.SUCCESS


async def test_an_answer_of_another_shape_is_the_engines_failure(open_door: OpenDoor) -> None:
    async with EngineDouble(answers({"choices": []}), answers(completion("Hello"))) as engine:
        house = await open_door(engine.port, engine.port)
        async with client_of(house) as client:
            message = await client.messages.create(model="alias", max_tokens=9, messages=HI)
        assert message.content[0].to_dict() == {"type": "text", "text": "Hello"}
        assert (await house.settled())[0].attempts == 2
