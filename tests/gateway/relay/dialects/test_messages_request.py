"""Requests in Anthropic's words become chats in OpenAI's; what cannot be is refused by its name."""

import contextlib
import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.relay.dialects.messages.request import count_tokens_work, messages_work
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.splice import splice
from tests.gateway.relay.broken import broken

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
PNG: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}


def request(body: bytes | dict[str, Any], api: Api = Api.MESSAGES) -> SlimRequest:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return SlimRequest(uuid4(), api, "/v1/messages", (), content, 0.0)


def ask(**members: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": HI, **members}


def chat(**members: Any) -> dict[str, Any]:
    """The chat that a Messages request becomes."""
    body: dict[str, Any] = json.loads(messages_work(request(ask(**members))).body)
    return body


def refusal(work: Any = messages_work, **members: Any) -> InvalidRequest:
    body = {name: value for name, value in ask(**members).items() if value is not ...}
    with pytest.raises(InvalidRequest) as refused:
        work(request(body))
    return refused.value


def test_a_plain_request() -> None:
    work = messages_work(request(ask(system="Be brief.", temperature=0.5, top_p=0.9, top_k=40)))
    assert (work.api, work.path, work.parsed.model) == (Api.CHAT, "/v1/chat/completions", "m")
    assert (work.parsed.stream, work.parsed.max_tokens) == (False, 9)
    assert json.loads(work.body) == {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "Be brief."}, *HI],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
    }


@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False, "x": 1}}]
)
def test_a_stream_asks_for_usage(options: dict[str, Any]) -> None:
    work = messages_work(request(ask(stream=True, **options)))
    assert work.parsed.include_usage
    asked = json.loads(splice(work.body, work.parsed, served_name="s"))
    assert asked["stream_options"] == {**(options.get("stream_options") or {}), "include_usage": True}


def test_texts_of_blocks_become_one_string() -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    body = chat(system=blocks, messages=[{"role": "user", "content": blocks}, {"role": "system", "content": blocks}])
    assert body["messages"] == [{"role": role, "content": "a\nb"} for role in ("system", "user", "system")]


def test_pictures_and_documents_become_parts() -> None:
    text = {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}}
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}, PNG]}}
    url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    found = {"type": "search_result", "title": "R", "source": "S", "content": [{"type": "text", "text": "F"}]}
    body = chat(messages=[{"role": "user", "content": [text, blocks, url, found]}])
    assert body["messages"][0]["content"] == [
        *({"type": "text", "text": words} for words in "TCDE"),
        PNG_PART,
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        {"type": "text", "text": "R\nS\nF"},
    ]


def test_a_conversation_with_tools() -> None:
    said = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "世"}},
        {"type": "tool_use", "id": "t2", "name": "look", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "seen"}, PNG]},
        {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": "dark"},
        {"type": "text", "text": "And?"},
    ]
    body = chat(messages=[*HI, {"role": "assistant", "content": said}, {"role": "user", "content": results}])
    calls = body["messages"][1].pop("tool_calls")
    assert [(call["id"], call["type"], call["function"]["name"]) for call in calls] == [
        ("t1", "function", "look"),
        ("t2", "function", "look"),
    ]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"at": "世"}, {}]
    assert body["messages"][1:] == [
        {"role": "assistant", "content": "Let me look.", "reasoning": "Hm.", "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "t1", "content": "seen"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: dark"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images in the result of t1:"},
                PNG_PART,
                {"type": "text", "text": "And?"},
            ],
        },
    ]


def test_a_result_without_content_and_a_call_without_words() -> None:
    said = [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]
    results = [{"type": "tool_result", "tool_use_id": "t"}]
    body = chat(messages=[{"role": "assistant", "content": said}, {"role": "user", "content": results}])
    assert body["messages"][0]["content"] is None
    assert body["messages"][1:] == [{"role": "tool", "tool_call_id": "t", "content": ""}]


def test_tools_become_functions_with_the_clients_schema() -> None:
    schema = b'{"type":"object", "properties" : {"n":{"maximum":1e400}},"required":[ ]}'
    raw = json.dumps(ask(tools=[{**TOOL, "input_schema": "S", "strict": True, "type": "custom"}])).encode()
    body = messages_work(request(raw.replace(b'"S"', schema))).body
    assert b'"parameters":' + schema in body
    function = json.loads(body)["tools"][0]["function"]
    assert (function["name"], function["description"], function["strict"]) == ("look", "Looks.", True)
    examples = chat(tools=[{**TOOL, "input_examples": [{"a": 1}]}])["tools"][0]["function"]["description"]
    assert examples == 'Looks.\n\nExamples of its input: [{"a": 1}]'


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any", "disable_parallel_tool_use": False}, {"tool_choice": "required"}),
        (
            {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}, "parallel_tool_calls": False},
        ),
    ],
)
def test_the_choice_of_a_tool(choice: dict[str, Any], told: dict[str, Any]) -> None:
    body = chat(tools=[TOOL], tool_choice=choice)
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"stop_sequences": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_sequences": []}, {}),
        ({"metadata": {"user_id": "u"}}, {"user": "u"}),
        ({"metadata": {}}, {}),
        ({"service_tier": "auto", "cache_control": {"type": "ephemeral"}, "speed": "standard"}, {}),
        ({"thinking": None, "tools": [], "tool_choice": None, "container": None, "n": 1}, {}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
        ),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": "high", "x": 1}},
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": "high", "x": 1}},
        ),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {}),
    ],
)
def test_members_that_have_another_name(given: dict[str, Any], told: dict[str, Any]) -> None:
    body = chat(**given)
    assert {name: value for name, value in body.items() if name not in ask()} == told


def picture(**source: Any) -> dict[str, Any]:
    return {**PNG, "source": {**PNG["source"], **source}}


PICTURE_OF_A_FILE = {"type": "image", "source": {"type": "file", "file_id": "f"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "J"}}
CITED = {"type": "document", "source": {"type": "text", "data": "D"}, "citations": {"enabled": True}}


@pytest.mark.parametrize(
    ("members", "at"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": ...}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"model": ...}, "model"),
        ({"stream": 1}, "stream"),
        ({"system": 1}, "system"),
        ({"system": [PNG]}, "system.0.type"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["a", 1]}, "stop_sequences.1"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"name": "x"}]}, "tools.1.input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
        ({"output_config": {"task_budget": {}}}, "output_config"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"n": 2}, "n"),
        ({"stop": "a", "stop_sequences": ["b"]}, "stop_sequences"),
    ],
)
def test_what_is_wrong_is_named(members: dict[str, Any], at: str) -> None:
    error = refusal(**members)
    assert error.param == at
    assert f"'{at}'" in error.message


@pytest.mark.parametrize(
    ("message", "at"),
    [
        ({"content": "Hi"}, "role"),
        ({"role": "tool", "content": "Hi"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": []}, "content"),
        ({"role": "user", "content": [{"text": "Hi"}]}, "content.0.type"),
        ({"role": "user", "content": [{"type": "text"}]}, "content.0.text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "content.0.text"),
        ({"role": "user", "content": [PNG, PICTURE_OF_A_FILE]}, "content.1.source.type"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}, "content.0.source.url"),
        ({"role": "user", "content": [picture(media_type="text/plain")]}, "content.0.source.media_type"),
        ({"role": "user", "content": [picture(data=None)]}, "content.0.source.data"),
        ({"role": "user", "content": [picture(data=1)]}, "content.0.source.data"),
        ({"role": "user", "content": [PDF]}, "content.0.source.type"),
        ({"role": "user", "content": [CITED]}, "content.0.citations"),
        ({"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}, "content.0.type"),
        ({"role": "user", "content": [{"type": "tool_result"}]}, "content.0.tool_use_id"),
        ({"role": "assistant", "content": [PNG]}, "content.0.type"),
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, "content.0.type"),
        ({"role": "assistant", "content": [{"type": "server_tool_use", "id": "s"}]}, "content.0.type"),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": "x"}]},
            "content.0.input",
        ),
        ({"role": "system", "content": [PNG]}, "content.0.type"),
    ],
)
def test_what_is_wrong_in_a_message_is_named(message: dict[str, Any], at: str) -> None:
    error = refusal(messages=[*HI, message])
    assert error.param == f"messages.1.{at}"
    assert f"'messages.1.{at}'" in error.message


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model":"a","model":"b"}', b'{"messages":[{"role":"\xff"}]}'])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        messages_work(request(body))


def test_a_count_carries_the_prompt_alone() -> None:
    members = {"system": "S", "tools": [TOOL], "tool_choice": {"type": "any"}, "thinking": {"type": "disabled"}}
    work = count_tokens_work(request({"model": "m", "messages": HI, **members}, Api.COUNT_TOKENS))
    assert (work.api, work.path, work.parsed.model) == (Api.TOKENIZE, "/tokenize", "m")
    body = json.loads(work.body)
    assert body.keys() == {"model", "messages", "tools", "chat_template_kwargs"}
    assert body["messages"] == [{"role": "system", "content": "S"}, *HI]
    assert body["tools"][0]["function"]["name"] == "look"


def test_a_count_is_as_strict_about_messages() -> None:
    assert refusal(count_tokens_work, messages=[{"role": "user", "content": [PDF]}]).param == (
        "messages.0.content.0.source.type"
    )


names = st.text(min_size=1, max_size=12).map(lambda name: "x_" + name)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, max_size=5), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_members_that_nobody_knows_survive_byte_for_byte(
    unknown: dict[str, Any], escaped: bool, indent: int | str | None
) -> None:
    """Their values as the client wrote them, spaces and escapes included."""
    raw = json.dumps({**unknown, **ask()}, ensure_ascii=escaped, indent=indent).encode()
    work: Work = messages_work(request(raw))
    assert {name: json.loads(work.body)[name] for name in unknown} == unknown
    for name in unknown:
        start, end = work.parsed.spans[name][2:]
        assert work.body[start:end] in raw


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("messages", [{"role": "user", "content": "x"}] * 100_001),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "x"}] * 50_001}] * 2),
        ("tools", [{"name": "a", "input_schema": {}}] * 100_001),
    ],
)
def test_more_pieces_than_are_looked_at_are_refused(member: str, value: list[Any]) -> None:
    refused = refusal(**{member: value})
    assert (refused.param, "at most 100000" in refused.message) == (member, True)


CONVERSATION: dict[str, Any] = ask(
    system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    messages=[
        {"role": "user", "content": [PNG, {"type": "text", "text": "Look."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [PNG], "is_error": True},
                {"type": "document", "source": {"type": "text", "data": "d"}, "citations": {"enabled": False}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "x"}]},
            ],
        },
    ],
    tools=[TOOL],
    tool_choice={"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    stop_sequences=["stop"],
    stream=True,
    stream_options={"include_usage": False},
    thinking={"type": "enabled", "budget_tokens": 9, "display": "omitted"},
    metadata={"user_id": "u"},
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    chat_template_kwargs={"a": 1},
)


@given(broken(CONVERSATION))
def test_whatever_comes_is_translated_or_refused(body: dict[str, Any]) -> None:
    for work in (messages_work, count_tokens_work):
        with contextlib.suppress(InvalidRequest):
            json.loads(work(request(body)).body)
