"""Every wire, by the script: what the engine is asked, and what the client learns of its answer, however cut."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from gateway.relay.plan import Api
from gpupool.engines.base import CallNotSupported, Capability
from gpupool.engines.registry import engines, get_engine
from tests.gpupool.engines.conformance.exchange import (
    Exchange,
    Told,
    assert_seen,
    call_of,
    read_answer,
    stream_through,
    translation_of,
    whole_through,
)
from tests.gpupool.engines.conformance.script import CHAT, EXCHANGES, PROMPT, TOOL

STREAMS = [exchange for exchange in EXCHANGES if exchange.stream]
NATIVE = [exchange for exchange in STREAMS if exchange.api in get_engine(exchange.engine).translates]


def test_every_built_in_engine_is_in_the_script_for_everything_it_can_be_asked() -> None:
    asked = {(exchange.engine, exchange.api.value) for exchange in EXCHANGES}
    for name in ("vllm", "vllm-generate", "sglang", "sglang-generate", "llamacpp", "ollama", "tgi", "tgi-generate",
                 "openai"):  # fmt: skip
        can = {(name, api) for api in engines()[name].capabilities & {*Capability} if api in {*Api}}
        assert can <= asked


@pytest.mark.shows("R3", "R116")
@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
def test_the_engine_is_asked_in_its_own_words(exchange: Exchange) -> None:
    call = call_of(exchange)
    translation = translation_of(exchange)
    if translation is None:
        assert_seen(exchange.sees[0], "POST", call.path, call.body)
    else:
        request = translation.request
        assert_seen(exchange.sees[0], request.method, request.path, request.body)


@pytest.mark.shows("R127")
@pytest.mark.parametrize("exchange", STREAMS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1 << 20])
def test_a_stream_says_the_same_however_it_is_cut(exchange: Exchange, size: int) -> None:
    sent = exchange.answers[0]
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    assert stream_through(exchange, pieces) == exchange.told


@given(st.sampled_from(STREAMS), st.lists(st.integers(0, 2000), max_size=12))
@settings(max_examples=150)
def test_a_stream_may_be_cut_anywhere(exchange: Exchange, cuts: list[int]) -> None:
    sent = exchange.answers[0]
    places = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
    pieces = [sent[start:end] for start, end in pairwise(places)]
    assert stream_through(exchange, pieces) == exchange.told


@pytest.mark.parametrize("exchange", [e for e in EXCHANGES if not e.stream], ids=str)
def test_a_whole_answer_is_told_in_openais_words(exchange: Exchange) -> None:
    body = whole_through(exchange)
    if isinstance(exchange.told, Told):
        assert read_answer(body) == exchange.told
    else:
        answer = json.loads(body)
        assert {name: answer[name] for name in exchange.told} == exchange.told


CLIENT_TYPES: dict[tuple[Api, bool], type[BaseModel]] = {
    (Api.CHAT, True): ChatCompletionChunk,
    (Api.CHAT, False): ChatCompletion,
    (Api.COMPLETIONS, True): Completion,  # OpenAI streams completions in pieces of the same shape
    (Api.COMPLETIONS, False): Completion,
    (Api.EMBEDDINGS, False): CreateEmbeddingResponse,
}


RENDERED = [e for e in EXCHANGES if e.api in get_engine(e.engine).translates and (e.api, e.stream) in CLIENT_TYPES]


@pytest.mark.parametrize("exchange", RENDERED, ids=str)
def test_what_is_rendered_is_what_openais_client_reads(exchange: Exchange) -> None:
    kind = CLIENT_TYPES[exchange.api, exchange.stream]
    if not exchange.stream:
        kind.model_validate_json(without_base64(whole_through(exchange)))
        return
    translation = translation_of(exchange)
    assert translation is not None
    sent = translation.feed(exchange.answers[0]) + translation.end()
    assert sent.endswith(b"\n\n")
    for event in sent[:-2].split(b"\n\n"):
        data = event.removeprefix(b"data: ")
        chunk = {} if data == b"[DONE]" else json.loads(data)
        if chunk and "error" not in chunk:
            for choice in chunk["choices"]:  # of completions' pieces the type asks for what only the last one has
                if exchange.api is Api.COMPLETIONS:
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
            kind.model_validate(chunk, strict=True)


def without_base64(body: bytes) -> bytes:
    """Vectors as numbers, which is what the client's type is after it has unpacked them."""
    answer = json.loads(body)
    for item in answer.get("data", []):
        if isinstance(item["embedding"], str):
            item["embedding"] = []
    return json.dumps(answer).encode()


# The end of vLLM's /generate is the end of the body, which the relay sees; the others say it.
ENDING = [e for e in NATIVE if e.engine != "vllm-generate" and isinstance(e.told, Told) and e.told.error is None]


@pytest.mark.parametrize("exchange", ENDING, ids=str)
def test_a_stream_that_is_cut_short_never_ends_well(exchange: Exchange) -> None:
    assert isinstance(exchange.told, Told)
    sent = exchange.answers[0]
    last = max(sent.rfind(b"\n{", 0, len(sent) - 2), sent.rfind(b"\ndata", 0, len(sent) - 16))
    for end in (last + 1, last + 10):
        told = stream_through(exchange, [sent[:end]])
        assert told.finish in ([], exchange.told.finish)
        if not told.finish:
            assert told.usage is None


NONSENSE = [b"<html>502 Bad Gateway</html>\n\n", b"data: {\n\n", b"[]\n\n", b"data: []\n\n", b"{}\n\n", b"data: {}\n\n",
            b'{"text": 3}\n', b'{"message": {"content": 4}}\n', b"\xff\xfe{\n\n", b"data: \xff\n\n",
            b'{"response": "' + b"[" * 10_000 + b"\n"]  # fmt: skip


@pytest.mark.parametrize("exchange", NATIVE, ids=str)
@pytest.mark.parametrize("said", NONSENSE, ids=lambda said: repr(said[:14]))
def test_nonsense_is_never_taken_for_an_answer(exchange: Exchange, said: bytes) -> None:
    try:
        told = stream_through(exchange, [said])
    except ValueError:
        pass
    else:
        assert (told.text, told.finish, told.usage) == ("", [], None)
    translation = translation_of(exchange)
    assert translation is not None
    with pytest.raises(ValueError):  # the sentence is msgspec's
        translation.whole(said)


@given(st.sampled_from(NATIVE), st.binary(max_size=200), st.integers(0, 400))
def test_any_bytes_are_an_answer_or_a_value_error(exchange: Exchange, noise: bytes, at: int) -> None:
    sent = exchange.answers[0]
    translation = translation_of(exchange)
    assert translation is not None
    try:
        translation.feed(sent[:at] + noise + sent[at:])
        translation.end()
    except ValueError:
        pass


@pytest.mark.parametrize(
    ("engine", "api", "asks", "words"),
    [
        ("ollama", Api.CHAT, {"n": 2}, "cannot do what n asks"),
        ("ollama", Api.CHAT, {"logprobs": True}, "logprobs"),
        ("ollama", Api.CHAT, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ("ollama", Api.CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
        ("ollama", Api.CHAT, {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]}]}, "fetches no images"),
        *(
            ("ollama", Api.CHAT, {"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]}]}, "not hold base64")
            for data in ("a", "ab=c", "a===", "aé==", "ab c", "ab-_")
        ),
        ("ollama", Api.CHAT, {"temperature": "warm", "stop": 3}, "stop"),
        ("ollama", Api.COMPLETIONS, {"echo": True}, "echo"),
        ("ollama", Api.COMPLETIONS, {"prompt": ["a", "b"]}, "one prompt"),
        ("ollama", Api.EMBEDDINGS, {"input": [[1, 2]]}, "token ids"),
        ("ollama", Api.RERANK, {"query": "q", "documents": ["a"]}, "cannot do rerank"),
        ("sglang-generate", Api.COMPLETIONS, {"tools": [TOOL]}, "does not know tools"),
        ("sglang-generate", Api.CHAT, {}, "cannot do chat"),
        ("vllm-generate", Api.COMPLETIONS, {"n": 2}, "cannot do what n asks"),
        ("vllm-generate", Api.COMPLETIONS, {"echo": True}, "echo"),
        ("vllm-generate", Api.COMPLETIONS, {"prompt": [1, 2]}, "as text"),
        ("vllm-generate", Api.COMPLETIONS, {"max_tokens": "many"}, "max_tokens"),
        ("tgi-generate", Api.COMPLETIONS, {"n": 2}, "cannot do what n asks"),
        ("tgi-generate", Api.COMPLETIONS, {"presence_penalty": 1.0}, "presence_penalty"),
        ("tgi-generate", Api.COMPLETIONS, {"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_with_a_sentence(
    engine: str, api: Api, asks: dict[str, Any], words: str
) -> None:
    base = {Api.CHAT: CHAT, Api.COMPLETIONS: PROMPT}.get(api, {})
    exchange = Exchange("refused", engine, api, base | asks, (), (), {})
    with pytest.raises(CallNotSupported, match=words) as refusal:
        get_engine(engine).wire.translate(replace(call_of(_told(exchange)), body=json.dumps(exchange.request).encode()))
    assert str(refusal.value).endswith(".")


def _told(exchange: Exchange) -> Exchange:
    """The same call with a body that the gateway itself takes: the refusal is to be the room's."""
    plain = {Api.CHAT: CHAT, Api.COMPLETIONS: PROMPT, Api.EMBEDDINGS: {"input": "a"}}
    return replace(exchange, asks=plain.get(exchange.api, {"query": "q", "documents": ["a"], "prompt": "a"}))
