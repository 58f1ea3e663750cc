"""What was said is put together whatever the dialect, however it was split, and within its bound."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.assembly import Assembly
from gateway.relay.plan import Api

BOUND = 10_000


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


CHAT = (
    sse(
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"index": 0, "delta": {"content": "Hel"}}, {"index": 1, "delta": {"content": "Bye"}}]},
        {"choices": [{"index": 0, "delta": {"content": "lo ☃"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"total_tokens": 3}},
    )
    + b": comment\n\ndata: [DONE]\n\n"
)
SAID = [
    {
        "role": "assistant",
        "content": "Hello ☃",
        "parts": [{"id": "c1", "name": "f", "arguments": '{"a":1}'}],
        "finish_reason": "tool_calls",
    },
    {"role": "assistant", "content": "Bye"},
]
MESSAGES = sse(
    {"type": "message_start", "message": {"id": "m"}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "He"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
)


@given(st.lists(st.integers(1, len(CHAT)), max_size=30))
def test_a_stream_is_put_together_however_it_is_cut(cuts: list[int]) -> None:
    assembly = Assembly(Api.CHAT, streamed=True, most_bytes=BOUND)
    edges = [0, *sorted(cuts), len(CHAT)]
    for start, end in pairwise(edges):
        assembly.add(CHAT[start:end])
    assert assembly.messages() == SAID
    assert not assembly.truncated


def test_anthropics_events_are_put_together_by_block() -> None:
    assembly = Assembly(Api.MESSAGES, streamed=True, most_bytes=BOUND)
    assembly.add(MESSAGES)
    (message,) = assembly.messages()
    assert message["finish_reason"] == "tool_use"
    assert message["parts"] == [
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "t", "input": "{}"},
    ]


@pytest.mark.parametrize(
    ("api", "answer", "said"),
    [
        (
            Api.CHAT,
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]},
            [{"role": "assistant", "content": "Hi", "finish_reason": "stop"}],
        ),
        (
            Api.COMPLETIONS,
            {"choices": [{"index": 0, "text": "once upon"}]},
            [{"role": "assistant", "content": "once upon"}],
        ),
        (
            Api.MESSAGES,
            {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"},
            [{"role": "assistant", "content": [{"type": "text", "text": "Hi"}], "finish_reason": "end_turn"}],
        ),
    ],
)
def test_a_whole_answer_is_read(api: Api, answer: Any, said: list[Any]) -> None:
    assembly = Assembly(api, streamed=False, most_bytes=BOUND)
    assembly.add(json.dumps(answer).encode())
    assert assembly.messages() == said


@pytest.mark.parametrize("told", [b"no json", b"[]", b'{"choices": 3}', b'{"choices": [3]}', b"[" * 5000])
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
@pytest.mark.parametrize("streamed", [True, False])
def test_what_cannot_be_read_says_so(told: bytes, api: Api, streamed: bool) -> None:
    assembly = Assembly(api, streamed=streamed, most_bytes=BOUND)
    assembly.add(b"data: " + told + b"\n\n" if streamed else told)
    assembly.messages()
    assert assembly.truncated or (streamed and api is Api.MESSAGES)


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (Api.CHAT, {"choices": [{"index": "a", "delta": {"content": "x"}}]}),
        (Api.CHAT, {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": "a"}, {"index": 1}]}}]}),
        (Api.MESSAGES, {"type": "content_block_start", "index": 0}),
        (Api.MESSAGES, {"type": "content_block_start", "index": 0, "content_block": "text"}),
        (Api.MESSAGES, {"type": "content_block_delta", "index": "a", "delta": {"text": "x"}}),
        (Api.MESSAGES, {"type": "content_block_delta", "delta": {"text": "x"}}),
        (Api.MESSAGES, {"type": "message_delta"}),
    ],
)
def test_events_of_another_shape_break_nothing_and_are_told(api: Api, event: Any) -> None:
    first = (
        {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}
        if api is Api.CHAT
        else json.loads(MESSAGES.split(b"data: ")[3])
    )
    assembly = Assembly(api, streamed=True, most_bytes=BOUND)
    assembly.add(sse(first) + sse(event) * 400)  # more than is gathered before it is read
    (message,) = assembly.messages()
    assert "Hi" in json.dumps(message) or "He" in json.dumps(message)
    assert assembly.truncated


@pytest.mark.parametrize(
    "choices", [[{"index": 0, "text": "x"}, {"index": "a", "text": "y"}], [{"index": 0, "message": "text"}]]
)
def test_whole_answers_of_another_shape_break_nothing(choices: Any) -> None:
    assembly = Assembly(Api.CHAT, streamed=False, most_bytes=BOUND)
    assembly.add(json.dumps({"choices": choices}).encode())
    assembly.messages()
    assert assembly.truncated


def test_what_is_kept_is_bounded_and_says_so() -> None:
    assembly = Assembly(Api.CHAT, streamed=True, most_bytes=BOUND)
    piece = sse({"choices": [{"index": 0, "delta": {"content": "x" * 90}}]})
    for _ in range(1000):
        assembly.add(piece)
        assert assembly.held_bytes < BOUND + 20_000
    (message,) = assembly.messages()
    assert assembly.truncated
    assert BOUND - 90 <= len(message["content"]) <= BOUND
    assembly = Assembly(Api.CHAT, streamed=False, most_bytes=BOUND)
    for _ in range(1000):
        assembly.add(b"x" * 1000)
    assert (assembly.messages(), assembly.truncated, assembly.held_bytes) == ([], True, 0)
