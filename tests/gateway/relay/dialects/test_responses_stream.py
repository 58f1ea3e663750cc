"""Streamed chats become Responses events; however they are cut, they say what a whole answer says."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from core.errors import UpstreamFailure
from gateway.relay.completion import CompletionStream
from gateway.relay.dialects.response_store import NewResponse, ResponseStore, ResponseStoreUnavailable
from gateway.relay.dialects.responses import ResponsesDialect
from gateway.relay.dialects.responses_answer import Frame
from gateway.relay.dialects.responses_request import Asked
from tests.doubles.engine import DONE, event

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}


class NotedStore:
    """Keeps what it is given, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.kept: list[NewResponse] = []
        self._failure = failure

    async def put(self, response: NewResponse) -> None:
        if self._failure is not None:
            raise self._failure
        self.kept.append(response)


def dialect(store: Any = None) -> ResponsesDialect:
    asked = Asked(b'{"model":"m","input":"x"}', REQUEST_ID)
    frame = Frame(REQUEST_ID, 100, "m", asked.echo())
    keep = NewResponse(REQUEST_ID, uuid4(), uuid4(), "m", None, b"[]", b"", 100.0, 200.0)
    kept: ResponseStore | None = store
    return ResponsesDialect(frame, None if store is None else keep, kept, lambda: 101.0)


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    body = {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return event(json.dumps(body).encode())


async def told(reads: Sequence[bytes], store: Any = None) -> bytes:
    """What a client is told of an engine's stream that comes in these reads, as the relay carries it."""
    stream, answer = CompletionStream(client_model="m", drop_usage=False), dialect(store).stream()
    out = b""
    for data in reads:
        if not stream.over:
            events = stream.take(data)
            out += b"".join(answer.feed(one) for one in (events[:-1] if stream.done else events))
    return out + await answer.finish()


def read_events(data: bytes) -> list[dict[str, Any]]:
    events = []
    for text in data.decode().split("\n\n")[:-1]:
        name, body = text.split("\n")
        events.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    return events


def pieces_of(thoughts: list[str], texts: list[str], calls: list[list[str]], finish: str) -> list[bytes]:
    out = [chunk({"role": "assistant", "content": ""})]
    out += [chunk({"reasoning_content": text}) for text in thoughts]
    out += [chunk({"content": text}) for text in texts]
    for index, arguments in enumerate(calls):
        begin = {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": "f", "arguments": ""}}
        out.append(chunk({"tool_calls": [begin]}))
        out += [chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in arguments]
    out.append(chunk({}, finish))
    out.append(event(json.dumps({"choices": [], "usage": USAGE}).encode()))
    return [*out, DONE]


def whole_of(thoughts: list[str], texts: list[str], calls: list[list[str]], finish: str) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": "f", "arguments": "".join(arguments)}}
            for index, arguments in enumerate(calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"model": "m", "choices": [choice], "usage": USAGE}).encode()


words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5), max_size=4)


@settings(deadline=None)  # the client's models are built at their first use
@given(words, words, st.lists(words, max_size=3), st.sampled_from(["stop", "length", "content_filter"]), st.data())
async def test_any_split_says_the_same_and_what_a_whole_answer_says(
    thoughts: list[str], texts: list[str], calls: list[list[str]], finish: str, data: st.DataObject
) -> None:
    sent = b"".join(pieces_of(thoughts, texts, calls, finish))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(sent) - 1), max_size=20)))
    out = await told([sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)])
    assert out == await told([sent])
    events = read_events(out)
    whole = json.loads(await dialect().whole(whole_of(thoughts, texts, calls, finish)))
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert events[-1]["response"] == whole
    state: Any = ResponseStreamState(input_tools=[], text_format=omit)
    for one in events:
        state.handle_event(EVENTS.validate_python(one))
    Response.model_validate(whole)


async def test_the_events_are_openais_in_their_order() -> None:
    out = await told(pieces_of(["Hm"], ["Hi", "!"], [["{}"]], "tool_calls"))
    assert [one["type"] for one in read_events(out)] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_usage_is_in_responses_words() -> None:
    response = read_events(await told(pieces_of([], ["x"], [], "stop")))[-1]["response"]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }
    assert (response["created_at"], response["completed_at"]) == (100, 101)


async def test_calls_may_grow_side_by_side() -> None:
    def piece(index: int, arguments: str, **more: Any) -> bytes:
        return chunk(
            {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more}, "id": f"c{index}"}]}
        )

    out = await told(
        [piece(0, "[1", name="f"), piece(1, "[2", name="g"), piece(0, "]"), piece(1, "]"), chunk({}, "stop"), DONE]
    )
    output = read_events(out)[-1]["response"]["output"]
    assert [(item["name"], item["arguments"], item["call_id"]) for item in output] == [
        ("f", "[1]", "c0"),
        ("g", "[2]", "c1"),
    ]


async def test_an_answer_that_is_cut_says_why() -> None:
    response = read_events(await told(pieces_of([], ["x"], [], "length")))[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


async def test_what_is_told_last_has_been_kept_before() -> None:
    store = NotedStore()
    response = read_events(await told(pieces_of([], ["x"], [], "stop"), store))[-1]["response"]
    assert [json.loads(kept.response) for kept in store.kept] == [response]


@pytest.mark.parametrize("failure", [ResponseStoreUnavailable(), ValueError("a NUL")])
async def test_an_answer_that_could_not_be_kept_says_so(failure: Exception) -> None:
    events = read_events(await told(pieces_of([], ["x"], [], "stop"), NotedStore(failure)))
    assert events[0]["response"]["store"] is True
    assert events[-1]["response"]["store"] is False
    assert json.loads(await dialect(NotedStore(failure)).whole(whole_of([], ["x"], [], "stop")))["store"] is False


def test_an_error_goes_on_counting_and_completes_nothing() -> None:
    answer = dialect()
    stream = answer.stream()
    events = read_events(stream.feed(chunk({"content": "x"})) + answer.error_event(UpstreamFailure()))
    assert events[-1] == {
        "type": "error",
        "code": "upstream_error",
        "message": UpstreamFailure.default_message,
        "param": None,
        "sequence_number": len(events) - 1,
    }
    assert read_events(dialect().error_event(UpstreamFailure()))[0]["sequence_number"] == 0


def test_comments_pass_and_begin_nothing() -> None:
    assert dialect().stream().feed(b": hello\n\n") == b": hello\n\n"


@pytest.mark.parametrize("body", [b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"content":3}}]}'])
async def test_another_shape_is_no_answer(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        await dialect().whole(body)


async def test_a_refusal_is_a_part_of_its_own() -> None:
    out = read_events(await told([chunk({"refusal": "No"}), chunk({"refusal": "."}), chunk({}, "stop"), DONE]))
    assert out[-1]["response"]["output"][0]["content"] == [{"type": "refusal", "refusal": "No."}]
    assert "response.refusal.done" in [one["type"] for one in out]
