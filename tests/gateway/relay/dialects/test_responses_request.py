"""Requests to the Responses API become chats: whatever a client may say in one is said in the other, or refused."""

import json
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given

from core.errors import GatehouseError, InvalidRequest
from gateway.relay.dialects.response_store import response_name, response_uuid
from gateway.relay.dialects.responses_items import owner_of, stored_items, with_ids
from gateway.relay.dialects.responses_request import Asked
from tests.gateway.relay.broken import broken

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def read(**members: Any) -> Asked:
    return Asked(json.dumps({"model": "m", "input": "Hi", **members}).encode(), REQUEST_ID)


def chat(**members: Any) -> dict[str, Any]:
    asked = read(**members)
    told: dict[str, Any] = json.loads(asked.chat_body([], asked.items))
    return told


def messages(*items: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = chat(input=list(items), **members)["messages"]
    return told


def test_a_text_is_a_message_of_the_user() -> None:
    assert chat() == {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_instructions_and_what_the_developer_says_are_one_system_message() -> None:
    developer = {"role": "developer", "content": [{"type": "input_text", "text": "Rhyme."}]}
    user = {"type": "message", "role": "user", "content": "Hi"}
    assert messages(developer, user, instructions="Be short.") == [
        {"role": "system", "content": "Be short.\n\nRhyme."},
        {"role": "user", "content": "Hi"},
    ]


def test_images_are_content_parts() -> None:
    parts = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
    ]
    assert messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
    ]


def function_call(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", "id": f"fc_{call_id}"}


def test_what_a_model_said_in_one_turn_is_one_message() -> None:
    told = messages(
        {"role": "user", "content": "Go"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I ask.", "annotations": []}],
        },
        function_call("a"),
        function_call("b"),
        {"type": "function_call_output", "call_id": "b", "output": "2"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
    )
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool"]
    assert told[1]["content"] == "I ask."
    assert told[1]["reasoning_content"] == told[1]["reasoning"] == "Hm"
    assert [call["id"] for call in told[1]["tool_calls"]] == ["a", "b"]
    assert told[2:] == [
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]


def test_functions_and_formats_are_in_chats_words() -> None:
    parameters = {"type": "object", "properties": {"z": {"const": 1.0}, "a": {}}}
    told = chat(
        tools=[{"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}, "verbosity": "low"},
        top_logprobs=2,
    )
    function = {"name": "f", "description": "d", "parameters": parameters, "strict": True}
    assert told["tools"] == [{"type": "function", "function": function}]
    assert told["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert told["parallel_tool_calls"] is False
    assert told["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {"type": "object"}},
    }
    assert (told["verbosity"], told["logprobs"], told["top_logprobs"]) == ("low", True, 2)


def test_tools_that_may_not_be_chosen_are_left_out() -> None:
    tools = [{"type": "function", "name": name} for name in "fg"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}
    told = chat(tools=tools, tool_choice=allowed)
    assert [tool["function"]["name"] for tool in told["tools"]] == ["g"]
    assert told["tool_choice"] == "required"


def test_streams_ask_for_usage_whatever_the_client_says() -> None:
    told = chat(stream=True, stream_options={"include_obfuscation": False})
    assert (told["stream"], told["stream_options"]) == (True, {"include_usage": True})


def test_unknown_members_pass_byte_for_byte() -> None:
    raw = b'{ "model": "m", "input": "x", "chat_template_kwargs" : {"b":1.0,  "a":[1e2]}, "seed":12345678901234567890 }'
    asked = Asked(raw, REQUEST_ID)
    body = asked.chat_body([], asked.items)
    assert b'"chat_template_kwargs":{"b":1.0,  "a":[1e2]}' in body
    assert b'"seed":12345678901234567890' in body


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "f"}, {"type": "mcp", "server_label": "s"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "1"}, "max_output_tokens"),
        ({"store": "yes"}, "store"),
        ({"stream": 1}, "stream"),
        ({"truncation": "some"}, "truncation"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "text.format"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(members: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**members)
    assert caught.value.param == param


@pytest.mark.parametrize("tool", ["web_search", "file_search", "computer_use_preview", "code_interpreter", "mcp"])
def test_a_tool_of_openais_own_is_named_in_its_refusal(tool: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{tool}' is not available here"):
        chat(tools=[{"type": tool}])


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"model":"m","input":"x"', b'{"input":"x","input":"y"}', b'{"input":"\xff"}']
)
def test_broken_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(GatehouseError):
        Asked(body, REQUEST_ID)


def test_ids_of_responses_and_items_lead_back() -> None:
    assert response_uuid(response_name(REQUEST_ID)) == REQUEST_ID
    for wrong in ("", "resp_", REQUEST_ID.hex, "resp_" + "g" * 32, "resp_" + "0" * 33, "resp_" + "٣" * 32):
        assert response_uuid(wrong) is None
    items = with_ids(
        [*read().items, {"type": "reasoning", "id": "rs_1"}, {"type": "reasoning", "id": "rs_1"}], REQUEST_ID
    )
    assert len({item["id"] for item in items}) == 3
    assert owner_of(items[0]["id"]) == REQUEST_ID
    assert items[1]["id"] == "rs_1"
    assert stored_items([]) == []


def test_the_answer_says_what_was_asked() -> None:
    echo = read(temperature=0.5, metadata={"a": "b"}, truncation="auto", user="u").echo()
    assert bytes(echo["temperature"]) == b"0.5"
    assert (echo["metadata"], echo["truncation"], bytes(echo["user"])) == ({"a": "b"}, "disabled", b'"u"')
    assert (echo["tools"], echo["tool_choice"], echo["parallel_tool_calls"]) == ([], "auto", True)


def test_more_items_than_are_looked_at_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 100000 items"):
        read(input=[{"role": "user", "content": "x"}] * 100_001)


CONVERSATION: dict[str, Any] = {
    "model": "m",
    "input": [
        {
            "role": "developer",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "y", "detail": "low"},
            ],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "y"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "status": "completed"},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
    ],
    "instructions": "Be brief.",
    "previous_response_id": f"resp_{REQUEST_ID.hex}",
    "stream": True,
    "store": False,
    "metadata": {"a": "b"},
    "max_output_tokens": 5,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "truncation": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": None},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
    "tools": [{"type": "function", "name": "look", "description": "d", "parameters": {}, "strict": True}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
}


@given(broken(CONVERSATION))
@example({"model": "m", "input": [{"role": [1], "content": "x"}]})
def test_whatever_comes_is_translated_or_refused(body: dict[str, Any]) -> None:
    try:
        asked = Asked(json.dumps(body).encode(), REQUEST_ID)
        json.loads(asked.chat_body([], asked.items))
        json.loads(msgspec.json.encode(asked.echo()))
        kept = json.loads(msgspec.json.encode(with_ids(asked.items, REQUEST_ID)))
        assert all(item["id"] for item in kept)
    except InvalidRequest:
        pass
