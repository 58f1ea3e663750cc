"""Turns of a conversation over a websocket: their order, deltas, tools, and what refuses or fails them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from core.errors import GatehouseError, InvalidApiKey, ModelNotFound, PermissionDenied, RateLimited
from gateway.relay.plan import Outcome
from tests.doubles.engine import DONE, EngineDouble, answers, chat_stream, chunk, completion, event, streams
from tests.gateway.relay.door.house import DoorHouse
from tests.gateway.relay.door.talk import Talk

OpenDoor = Callable[..., Awaitable[DoorHouse]]


def call_chunk(index: int, *, call_id: str | None = None, name: str | None = None, arguments: str = "") -> bytes:
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: dict[str, Any] = {"index": index, "function": function}
    if call_id is not None:
        call |= {"id": call_id, "type": "function"}
    choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
    return event(json.dumps({"id": "c", "model": "served", "choices": [choice]}).encode())


async def test_a_turn_is_told_in_the_order_of_the_realtime_api(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("Hel", "lo"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user("Hi")
        response = await talk.respond()
        assert talk.types() == [
            "session.created",
            "conversation.item.added",
            "conversation.item.done",
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        assert [said["delta"] for said in talk.heard if said["type"] == "response.output_text.delta"] == ["Hel", "lo"]
        assert (response["status"], response["status_details"]) == ("completed", {"type": "completed"})
        assert response["output"][0]["content"] == [{"type": "output_text", "text": "Hello"}]
        usage = response["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 3, 10)
        assert len({said["event_id"] for said in talk.heard}) == len(talk.heard)
        assert await house.outcome() is Outcome.SUCCESS
        await talk.end()


async def test_an_engine_is_asked_for_the_whole_conversation_as_p0(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("First")), streams(*chat_stream("Second"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.say(
            "session.update",
            session={"type": "realtime", "instructions": "Be brief.", "temperature": 0.5, "max_output_tokens": 9},
        )
        assert (await talk.hear())["session"]["instructions"] == "Be brief."
        await talk.user("One")
        await talk.respond()
        await talk.user("Two")
        await talk.respond(instructions="Be long.", max_output_tokens=4, metadata={"turn": "2"})
        first, second = engine.received
        assert first.path == "/v1/chat/completions"
        assert first.header("x-gatehouse-class") == "p0"
        assert first.json["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "One"},
        ]
        assert second.json == {
            "model": "served",
            "messages": [
                {"role": "system", "content": "Be long."},
                {"role": "user", "content": "One"},
                {"role": "assistant", "content": "First"},
                {"role": "user", "content": "Two"},
            ],
            "max_tokens": 4,
            "temperature": 0.5,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert talk.heard[-1]["response"]["metadata"] == {"turn": "2"}
        assert len(await house.settled(2)) == 2
        assert first.header("x-request-id") != second.header("x-request-id")
        await talk.end()


async def test_function_calls_stream_and_their_outputs_come_back(open_door: OpenDoor) -> None:
    calls = [
        call_chunk(0, call_id="call_a", name="weather", arguments=""),
        call_chunk(0, arguments='{"city":'),
        call_chunk(0, arguments='"Bern"}'),
        call_chunk(1, call_id="call_b", name="time", arguments="{}"),
        chunk(finish="tool_calls"),
        chunk(usage=(5, 6)),
        DONE,
    ]
    async with EngineDouble(streams(*calls), streams(*chat_stream("Rain"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
        await talk.user("Weather?")
        response = await talk.respond(tools=tools, tool_choice={"type": "function", "name": "weather"})
        asked = engine.received[0].json
        assert asked["tools"] == [
            {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
        ]
        assert asked["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
        deltas = [said for said in talk.heard if said["type"] == "response.function_call_arguments.delta"]
        assert [(said["output_index"], said["delta"]) for said in deltas] == [
            (0, '{"city":'),
            (0, '"Bern"}'),
            (1, "{}"),
        ]
        done = [said for said in talk.heard if said["type"] == "response.function_call_arguments.done"]
        assert [(said["call_id"], said["arguments"]) for said in done] == [
            ("call_a", '{"city":"Bern"}'),
            ("call_b", "{}"),
        ]
        assert [item["name"] for item in response["output"]] == ["weather", "time"]
        for call_id, output in (("call_a", "rain"), ("call_b", "noon")):
            await talk.say(
                "conversation.item.create",
                item={"type": "function_call_output", "call_id": call_id, "output": output},
            )
            await talk.hear_until("conversation.item.done")
        await talk.respond()
        assert engine.received[1].json["messages"][1:] == [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_a",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
                    },
                    {"id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_b", "content": "noon"},
        ]
        await talk.end()


async def test_a_response_that_hits_its_limit_is_incomplete(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("Hel"), chunk(finish="length"), chunk(usage=(2, 1)), DONE)) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond(max_output_tokens=1)
        assert response["status"] == "incomplete"
        assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
        assert response["output"][0]["status"] == "incomplete"
        await talk.end()


async def test_an_engine_that_answers_whole_is_understood_too(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion("All at once"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond()
        assert response["output"][0]["content"][0]["text"] == "All at once"
        await talk.end()


async def test_an_engine_that_dies_before_its_first_word_is_replaced(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(then=_die)) as first, EngineDouble(streams(*chat_stream("Here"))) as second:
        house = await open_door(first.port, second.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond()
        assert response["status"] == "completed"
        assert (await house.settled())[0].attempts == 2
        await talk.end()


async def _die(wire: Any) -> None:
    wire.die()


async def test_an_engine_that_dies_in_the_middle_fails_the_response_and_not_the_connection(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("Hal"), then=_die), streams(*chat_stream("Whole"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond()
        error = next(said["error"] for said in talk.heard if said["type"] == "error")
        assert error["code"] == "upstream_error"
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "upstream_error"
        assert response["output"][0]["status"] == "incomplete"
        assert response["output"][0]["content"][0]["text"] == "Hal"
        assert await house.outcome() is Outcome.TRUNCATED
        assert (await talk.respond())["status"] == "completed"
        await talk.end()


async def test_an_engines_refusal_fails_the_response(open_door: OpenDoor) -> None:
    refusal = {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}}
    async with EngineDouble(answers(refusal, status=400)) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        await talk.say("response.create", event_id="mine")
        response = (await talk.hear_until("response.done"))["response"]
        assert (response["status"], response["output"]) == ("failed", [])
        error = next(said["error"] for said in talk.heard if said["type"] == "error")
        assert error["event_id"] == "mine"
        assert error["message"] == "too long"
        await talk.end()


@pytest.mark.parametrize("refusal", [InvalidApiKey(), PermissionDenied(), ModelNotFound()])
async def test_a_key_that_is_revoked_ends_the_connection_with_its_next_turn(
    open_door: OpenDoor, refusal: GatehouseError
) -> None:
    house = await open_door()
    talk = await Talk.begin(house.port)
    await talk.user()
    house.pipeline.refuse = refusal
    await talk.say("response.create", event_id="mine")
    error = (await talk.hear_until("error"))["error"]
    assert (error["code"], error["event_id"]) == (refusal.code, "mine")
    assert await talk.closed() == 1008
    assert "response.created" not in talk.types()


async def test_a_limit_refuses_a_turn_and_not_the_connection(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("A"))) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        await talk.user()
        house.pipeline.refuse = RateLimited(retry_after_seconds=1)
        await talk.say("response.create")
        assert (await talk.hear_until("error"))["error"]["code"] == "rate_limit_exceeded"
        house.pipeline.refuse = None
        assert (await talk.respond())["status"] == "completed"
        await talk.end()


async def test_a_defect_of_ours_is_told_and_ends_the_connection(open_door: OpenDoor) -> None:
    house = await open_door()
    talk = await Talk.begin(house.port)
    await talk.user()
    house.pipeline.defect = RuntimeError("secret")
    await talk.say("response.create")
    error = (await talk.hear_until("error"))["error"]
    assert (error["code"], "secret" in str(error)) == ("internal_error", False)
    assert await talk.closed() == 1011
