"""What is read of answers, and what is changed in them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.completion import CompletionStream, read_usage, read_whole
from gateway.relay.members import MalformedJson
from gateway.relay.plan import Api, UsageSource
from gateway.relay.sse import EventTooLarge
from tests.doubles.engine import DONE, chat_stream, chunk, completion, event


def stream(*, drop_usage: bool = True, limit: int = 10_000) -> CompletionStream:
    return CompletionStream(client_model="alias", drop_usage=drop_usage, event_bytes=limit)


def fed(answer: CompletionStream, data: bytes) -> bytes:
    return b"".join(answer.take(data))


def test_events_are_held_until_the_first_content() -> None:
    answer = stream()
    assert fed(answer, chunk(role=True)) == b""
    assert fed(answer, b": ping\n\n") == b": ping\n\n"
    assert not answer.committed
    told = fed(answer, chunk("A"))
    assert told.count(b"data: ") == 2
    assert (answer.committed, answer.content_events) == (True, 1)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"role": "assistant", "content": "x"},
        {"reasoning_content": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"refusal": "x"},
    ],
)
def test_what_counts_as_content(delta: dict[str, object]) -> None:
    answer = stream()
    fed(answer, event(json.dumps({"choices": [{"delta": delta}]}).encode()))
    assert answer.content_events == 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices": [{"delta": {"role": "assistant", "content": ""}}]}',
        b'{"choices": [{"delta": {"role": "assistant", "content": null, "tool_calls": []}}]}',
        b'{"choices": []}',
        b'{"choices": "odd"}',
        b"{}",
        b"no json",
        b"[" * 10_000,
    ],
)
def test_what_does_not(data: bytes) -> None:
    answer = stream(limit=100_000)
    assert fed(answer, event(data)) == b""
    assert (answer.content_events, answer.progress, answer.error) == (0, 0, None)


def test_legacy_completions_have_text() -> None:
    answer = stream()
    fed(answer, event(b'{"choices": [{"text": "x", "index": 0}]}'))
    assert answer.content_events == 1


@pytest.mark.shows("G11")
@pytest.mark.parametrize("data", [b'{"error": "x"}', b'{"choices": 5, "error": {"message": "x"}}'])
def test_errors_are_found_whatever_is_beside_them(data: bytes) -> None:
    answer = stream()
    assert fed(answer, chunk("A") + event(data) + DONE).endswith(b"\n\n")
    assert (answer.error, answer.done) == (data, False)


def test_a_null_error_is_none() -> None:
    answer = stream()
    fed(answer, event(b'{"error": null, "choices": [{"delta": {"content": "x"}}]}'))
    assert answer.error is None


@pytest.mark.shows("G8")
def test_zero_is_not_missing() -> None:
    told = read_usage(b'{"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}')
    assert told is not None
    assert (told.input_tokens, told.cached_tokens, told.output_tokens) == (0, 0, 0)
    assert told.source is UsageSource.ENGINE


@pytest.mark.parametrize(
    "raw", [b"{}", b"null", b'{"prompt_tokens": -1}', b'{"prompt_tokens": "7"}', b'{"total_tokens": 5}']
)
def test_usage_that_says_nothing(raw: bytes) -> None:
    assert read_usage(raw) is None


@pytest.mark.parametrize(
    ("raw", "output"),
    [
        (b'{"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0}', 0),  # vLLM of embeddings
        (b'{"prompt_tokens": 3, "total_tokens": 3}', None),  # llama.cpp
    ],
)
def test_what_nobody_counted_is_not_counted_as_nothing(raw: bytes, output: int | None) -> None:
    told = read_usage(raw)
    assert told is not None
    assert (told.input_tokens, told.output_tokens, told.source) == (3, output, UsageSource.ENGINE)


def test_usage_beside_content_stays_and_the_last_counts() -> None:
    first = event(b'{"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}')
    answer = stream()
    assert fed(answer, first + b"".join(chat_stream("A"))).startswith(first)
    assert answer.usage is not None
    assert answer.usage.output_tokens == 3


def test_an_answer_without_a_token_is_told_whole() -> None:
    answer = stream()
    events = [chunk(role=True), chunk(finish="stop"), DONE]
    assert fed(answer, b"".join(events)).count(b"data: ") == 3
    assert (answer.content_events, answer.done) == (0, True)


@pytest.mark.parametrize(
    "rest", [b"data: [DONE]", b"data: [DONE]\n", chunk(finish="stop")[:-2], chunk(finish="stop")[:-1]]
)
def test_a_missing_last_blank_line_is_made_good(rest: bytes) -> None:
    answer = stream()
    fed(answer, chunk("A") + rest)
    assert b"".join(answer.take_rest()).endswith(b"\n\n")
    assert answer.done or answer.finish_reasons


@pytest.mark.shows("G12")
@pytest.mark.parametrize("rest", [b"da", b"data: [DO", b'data: {"choices"', b": comm"])
def test_half_an_event_is_dropped(rest: bytes) -> None:
    answer = stream()
    fed(answer, chunk("A") + rest)
    assert b"".join(answer.take_rest()) == b""
    assert not answer.done


def test_events_without_content_are_not_held_for_ever() -> None:
    answer = stream(limit=1000)
    with pytest.raises(EventTooLarge):
        fed(answer, chunk(role=True) * 20)


@given(st.text(max_size=10), st.text(max_size=10))
def test_the_name_is_replaced_whatever_it_is(engine: str, client: str) -> None:
    body = json.dumps(completion('"model": "x"', model=engine)).encode()
    answer = read_whole(Api.CHAT, body, client_model=client)
    assert json.loads(answer.body) == completion('"model": "x"', model=client)
    told = fed(CompletionStream(client_model=client, drop_usage=True), chunk("A", model=engine) * 2)
    assert [json.loads(line[6:])["model"] for line in told.decode().split("\n\n") if line] == [client] * 2


def test_a_nested_model_is_left_alone() -> None:
    body = b'{"x": {"model": "a"}, "model": "served", "y": ["model"]}'
    assert read_whole(Api.CHAT, body, client_model="alias").body == body.replace(b'"served"', b'"alias"')
    told = fed(stream(), b'data: {"x": {"model": "a"}, "model": "a", "choices": [{"text": "b"}]}\n\n')
    assert told == b'data: {"x": {"model": "a"}, "model": "alias", "choices": [{"text": "b"}]}\n\n'


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b'{"a": 1', b"[" * 10_000])
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(MalformedJson):
        read_whole(Api.CHAT, body, client_model="alias")


@pytest.mark.parametrize("said", [{}, {"usage": None}, {"usage": {}}, {"usage": {"prompt_tokens": -1}}, {"usage": 7}])
def test_without_usage_the_content_is_measured(said: dict[str, object]) -> None:
    body = {**completion("x" * 40, usage=None), **said}
    answer = read_whole(Api.CHAT, json.dumps(body).encode(), client_model="alias")
    assert answer.usage is None
    assert answer.content_bytes == 42
