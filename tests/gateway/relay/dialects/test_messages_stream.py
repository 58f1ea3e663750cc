"""Streamed answers of engines become the events of one message, one block after the other."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UpstreamFailure
from gateway.relay.completion import CompletionStream
from gateway.relay.dialects.messages.dialect import MessagesDialect
from gateway.relay.upstream_errors import BadResponse
from tests.doubles.engine import DONE, chat_stream, event

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
Event = tuple[str, dict[str, Any]]


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **members: Any) -> bytes:
    body = {"model": "served", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **members}
    return event(json.dumps(body, ensure_ascii=False).encode())


def piece(index: int, arguments: str = "", identity: str | None = None, name: str | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if identity is not None:
        call |= {"id": identity}
    if name is not None:
        call["function"]["name"] = name
    return call


def calls(*pieces: dict[str, Any]) -> bytes:
    return chunk({"tool_calls": list(pieces)})


async def told_bytes(reads: Sequence[bytes], **options: Any) -> bytes:
    """What a client is told of an engine's stream that comes in these reads, as the relay carries it."""
    stream = CompletionStream(client_model="alias", drop_usage=False)
    dialect = MessagesDialect(REQUEST_ID, "alias", **options).stream()
    out: list[bytes] = []
    for data in reads:
        if not stream.over:
            events = stream.take(data)
            out.extend(dialect.feed(event) for event in (events[:-1] if stream.done else events))
    return b"".join([*out, await dialect.finish()])


def read_events(told: bytes) -> list[Event]:
    """As a client reads them; the order of Anthropic's protocol is checked on the way."""
    events: list[Event] = []
    for text in told.decode().split("\n\n")[:-1]:
        if text.startswith(":"):
            continue
        first, second = text.split("\n")
        name, data = first.removeprefix("event: "), json.loads(second.removeprefix("data: "))
        assert data["type"] == name
        events.append((name, data))
    check_order(events)
    return events


def check_order(events: list[Event]) -> None:
    assert events[0][0] == "message_start"
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    open_index: int | None = None
    next_index = 0
    for name, data in events[1:-2]:
        match name:
            case "content_block_start":
                assert open_index is None
                assert data["index"] == next_index
                open_index = next_index
                next_index += 1
            case "content_block_delta":
                assert data["index"] == open_index
            case "content_block_stop":
                assert data["index"] == open_index
                open_index = None
            case _:
                raise AssertionError(name)
    assert open_index is None


def blocks(events: list[Event]) -> list[tuple[str, str]]:
    """Type (for calls: their id) and content of each block, put together."""
    out: list[tuple[str, str]] = []
    for name, data in events:
        if name == "content_block_start":
            block = data["content_block"]
            out.append((block["id"] if block["type"] == "tool_use" else block["type"], ""))
        elif name == "content_block_delta":
            delta = data["delta"]
            member = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
            kind, text = out[-1]
            out[-1] = (kind, text + delta[member[delta["type"]]])
    return out


async def told(*reads: bytes, **options: Any) -> list[Event]:
    return read_events(await told_bytes([*reads, DONE], **options))


async def test_a_plain_stream() -> None:
    events = read_events(await told_bytes(chat_stream("Hel", "lo")))
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = events[0][1]["message"]
    assert (start["id"], start["model"], start["content"]) == ("msg_01890a5dac96774bbcceb302099a8057", "alias", [])
    assert (start["type"], start["role"], start["stop_reason"]) == ("message", "assistant", None)
    assert blocks(events) == [("text", "Hello")]
    end = events[-2][1]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (end["usage"]["input_tokens"], end["usage"]["output_tokens"]) == (7, 3)


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
async def test_thoughts_are_a_block_of_their_own(member: str) -> None:
    stream = [chunk({member: "Hm"}), chunk({member: "."}), chunk({"content": "Yes"}), chunk(finish="stop")]
    assert blocks(await told(*stream)) == [("thinking", "Hm."), ("text", "Yes")]
    assert blocks(await told(*stream, show_thinking=False)) == [("text", "Yes")]


async def test_a_call_is_told_as_it_grows() -> None:
    events = await told(
        chunk({"content": "Let me look."}),
        calls(piece(0, "", "a", "look")),
        calls(piece(0, '{"at":')),
        calls(piece(0, '"世"}')),
        chunk(finish="tool_calls"),
    )
    assert blocks(events) == [("text", "Let me look."), ("a", '{"at":"世"}')]
    assert events[4][1]["content_block"] == {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    assert [data["delta"]["partial_json"] for name, data in events[5:-3] if name == "content_block_delta"] == [
        '{"at":',
        '"世"}',
    ]
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


async def test_calls_one_after_the_other() -> None:
    events = await told(
        calls(piece(0, "{}", "a", "look")),
        calls(piece(1, '{"n":', "b", "look")),
        calls(piece(1, "1}")),
        chunk(finish="stop"),
    )
    assert blocks(events) == [("a", "{}"), ("b", '{"n":1}')]
    assert events[-2][1]["delta"]["stop_reason"] == "tool_use"


async def test_a_call_waits_until_the_one_before_it_is_complete() -> None:
    events = await told(
        calls(piece(0, '{"a":"}', "a", "look"), piece(1, '{"b":', "b", "look")),
        calls(piece(1, "2}")),
        chunk({"content": "Later."}),
        calls(piece(0, '1"}')),
        chunk(finish="tool_calls"),
    )
    assert blocks(events) == [("a", '{"a":"}1"}'), ("b", '{"b":2}'), ("text", "Later.")]


async def test_calls_under_one_index_are_told_apart() -> None:
    events = await told(
        calls(piece(0, "{}", "a", "look")), calls(piece(0, "{}", "b", "look")), chunk(finish="tool_calls")
    )
    assert blocks(events) == [("a", "{}"), ("b", "{}")]


async def test_calls_without_arguments_and_without_an_id() -> None:
    events = await told(calls(piece(0, "", "a", "look"), piece(1, "", None, "look")), chunk(finish="tool_calls"))
    (first, arguments), (second, others) = blocks(events)
    assert (first, arguments, others) == ("a", "", "")
    assert second.startswith("toolu_")


@pytest.mark.parametrize(
    ("finish", "members", "reason"),
    [("length", {}, "max_tokens"), ("content_filter", {}, "refusal"), ("eos", {}, "end_turn")],
)
async def test_why_it_ended(finish: str, members: dict[str, Any], reason: str) -> None:
    events = await told(chunk({"content": "x"}), chunk(finish=finish, **members))
    assert events[-2][1]["delta"]["stop_reason"] == reason


async def test_the_stop_sequence_where_the_engine_says_it() -> None:
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "END"}
    end = event(json.dumps({"choices": [choice]}).encode())
    events = await told(chunk({"content": "x"}), end, stop_sequences=("END",))
    assert events[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


async def test_an_answer_without_a_word_is_a_message_too() -> None:
    events = await told(chunk(finish="stop"))
    assert [name for name, _ in events] == ["message_start", "message_delta", "message_stop"]


async def test_comments_pass_and_other_choices_do_not() -> None:
    other = event(b'{"choices":[{"index":1,"delta":{"content":"other"}}]}')
    raw = await told_bytes([b": ping\n\n", chunk({"content": "x"}), other, chunk(finish="stop"), DONE])
    assert raw.startswith(b": ping\n\n")
    assert blocks(read_events(raw)) == [("text", "x")]


def test_an_event_of_another_shape_is_the_engines_fault() -> None:
    stream = MessagesDialect(REQUEST_ID, "alias").stream()
    with pytest.raises(BadResponse):
        stream.feed(event(b'{"choices": 1}'))


def test_keep_alives_and_errors_are_events_of_anthropics() -> None:
    dialect = MessagesDialect(REQUEST_ID, "alias")
    assert dialect.keep_alive == b'event: ping\ndata: {"type": "ping"}\n\n'
    name, data = dialect.error_event(UpstreamFailure()).decode().split("\n")[:2]
    assert name == "event: error"
    said = json.loads(data.removeprefix("data: "))
    assert (said["type"], said["error"]["type"]) == ("error", "api_error")


ARGUMENTS = ['{"k":', '"}世"', "}"]
steps = st.lists(
    st.one_of(
        st.integers(0, 3),  # the next piece of that call
        st.builds(lambda text: {"content": text}, st.text(max_size=6)),
        st.builds(lambda text: {"reasoning_content": text}, st.text(max_size=6)),
    ),
    max_size=16,
)


@given(steps, st.lists(st.integers(0, 10_000), max_size=12))
async def test_any_split_into_reads_gives_the_same_bytes(steps: list[int | dict[str, str]], cuts: list[int]) -> None:
    """Text, thoughts and four calls whose pieces come in any order; nothing is lost, nothing interleaved."""
    stream: list[bytes] = []
    texts = {"content": "", "reasoning_content": ""}
    arguments: dict[int, list[str]] = {}
    for step in steps:
        if isinstance(step, dict):
            stream.append(chunk(step))
            for member, text in step.items():
                texts[member] += text
        elif len(said := arguments.setdefault(step, [])) < len(ARGUMENTS):
            beginning = {} if said else {"identity": f"call-{step}", "name": "look"}
            said.append(ARGUMENTS[len(said)])
            stream.append(calls(piece(step, said[-1], **beginning)))
    whole = b"".join([*stream, chunk(finish="stop"), DONE])
    edges = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    raw = await told_bytes([whole[start:end] for start, end in pairwise(edges)])
    assert raw == await told_bytes([whole])
    got = blocks(read_events(raw))
    assert "".join(text for kind, text in got if kind == "text") == texts["content"]
    assert "".join(text for kind, text in got if kind == "thinking") == texts["reasoning_content"]
    assert {kind: text for kind, text in got if kind.startswith("call-")} == {
        f"call-{index}": "".join(said) for index, said in arguments.items()
    }
