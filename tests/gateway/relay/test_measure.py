"""What of a body says how much it can use, and that a real engine never uses more than its bound."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from core.errors import InvalidRequest
from gateway.policies.bounds import Context, Size, bound_tokens
from gateway.relay.measure import measure
from gateway.relay.plan import Api, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body, splice
from tests.house import LlamaEngine

HELLO = {"role": "user", "content": "Hello"}
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
TEXT = {"type": "text", "text": "x"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def work(api: Api, **members: Any) -> Work:
    body = json.dumps({"model": "tiny", **members}, ensure_ascii=False).encode()
    return Work(api, ENGINE_PATHS[api], body, parse_body(api, body))


def size(api: Api, **members: Any) -> Size:
    return measure(work(api, **members))


def test_a_chat_has_messages_and_answers() -> None:
    found = size(Api.CHAT, messages=[HELLO, HELLO], n=3, max_tokens=7)
    assert (found.messages, found.answers, found.max_tokens, found.media) == (2, 3, 7, 0)
    assert size(Api.CHAT, messages=[HELLO], max_tokens=7, max_completion_tokens=9).max_tokens == 9
    assert size(Api.CHAT, messages=[HELLO], tools=[TOOL]).tools_bytes == len(json.dumps([TOOL]))


@pytest.mark.parametrize(("embeds", "prompts"), [("AAAA", 2), (["AAAA", "BBBB"], 3), (None, 1)])
def test_prompts_that_are_given_as_vectors_are_answered_besides(embeds: Any, prompts: int) -> None:
    found = size(Api.COMPLETIONS, prompt="a", prompt_embeds=embeds)
    assert found.prompts == prompts


@pytest.mark.parametrize(
    ("content", "media"),
    [
        ("text", 0),
        (None, 0),
        ([TEXT], 0),
        (["a", TEXT], 0),
        ([IMAGE, TEXT, IMAGE], 2),
        ([{"image_url": "x"}], 1),
        ([{"type": 3}], 1),
        ([{"type": "input_audio", "input_audio": {}}], 1),
        ({"type": "image_url"}, 1),
    ],
)
def test_parts_that_are_no_text_are_seen(content: Any, media: int) -> None:
    assert size(Api.CHAT, messages=[{"role": "user", "content": content}]).media == media


def test_a_template_of_the_clients_own_may_make_any_prompt() -> None:
    assert size(Api.CHAT, messages=[HELLO], chat_template="{{ x }}").media == 1


def test_the_escapes_of_json_hide_no_part() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":[{"\\u0074ype":"im\\u0061ge_url"}]}]}'
    assert measure(Work(Api.CHAT, "/", body, parse_body(Api.CHAT, body))).media == 1


@pytest.mark.parametrize(
    ("prompt", "prompts"), [("a", 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1], [2, 3]], 2), ([1, "a"], 1)]
)
def test_each_prompt_is_answered(prompt: Any, prompts: int) -> None:
    found = size(Api.COMPLETIONS, prompt=prompt, best_of=4, n=2)
    assert (found.prompts, found.answers) == (prompts, 4)


@pytest.mark.parametrize("value", [0, -1, 129, "many"])
def test_absurd_numbers_of_answers_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        size(Api.COMPLETIONS, prompt="a", best_of=value)
    assert refused.value.param == "best_of"


def test_what_takes_in_only_has_no_answers() -> None:
    assert size(Api.EMBEDDINGS, input=["a", "b"])[1:6] == (2, 0, 0, 0, 0)
    assert size(Api.TOKENIZE, prompt="a") == Size(0)
    ranked = work(Api.RERANK, query="0123456789", documents=["a", "b", "c"])
    assert measure(ranked).text_bytes == len(ranked.body) + 2 * 12 + 3 * 128  # the query is read with each


@pytest.mark.parametrize(
    ("members", "most"),
    [
        ({"n_predict": -1, "max_tokens": 5}, None),
        ({"n_predict": 50, "max_tokens": 5}, 50),
        ({"n_predict": 5}, None),
        ({"n_predict": "x", "max_tokens": 5}, None),
        ({"max_tokens": None}, None),
    ],
)
def test_an_engines_own_end_counts_too(members: dict[str, Any], most: int | None) -> None:
    assert size(Api.CHAT, messages=[HELLO], **members).max_tokens == most


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, {"max_completion_tokens": 9}),
        ({"max_tokens": None}, {"max_tokens": 9}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 50}, {"max_tokens": 9}),
        ({"max_completion_tokens": 50, "max_tokens": 5}, {"max_completion_tokens": 9, "max_tokens": 5}),
        ({"n_predict": -1}, {"n_predict": 9, "max_completion_tokens": 9}),
        ({"max_tokens": 3, "n_predict": -1}, {"n_predict": 9, "max_tokens": 3}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_end_is_put_where_the_engine_reads_it(
    members: dict[str, Any], expected: dict[str, Any], stream: bool
) -> None:
    asked = work(Api.CHAT, messages=[HELLO], other=1, stream=stream, **members)
    told = splice(asked.body, asked.parsed, served_name="s", most_tokens=9, cap_member="max_completion_tokens")
    sent = json.loads(told)
    assert {name: sent[name] for name in expected} == expected
    assert sent == {"model": "s", "messages": [HELLO], "other": 1, "stream": stream, **expected} | (
        {"stream_options": {"include_usage": True}} if stream else {}
    )


def test_an_engine_that_knows_the_old_name_only_is_told_under_it() -> None:
    asked = work(Api.CHAT, messages=[HELLO], max_completion_tokens=4)
    sent = json.loads(splice(asked.body, asked.parsed, served_name="s", most_tokens=4))
    assert (sent["max_completion_tokens"], sent["max_tokens"]) == (4, 4)


# Against a real engine

_texts = st.text(max_size=60) | st.sampled_from(
    ["é" * 30, "漢字" * 12, "\U0001f600" * 9, '\x00\n\t\\"' * 8, "a " * 60, ""]
)
_messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": _texts}),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    engine = LlamaEngine(tmp_path_factory.mktemp("engine"), slots=2, slot_tokens=1024)
    engine.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{engine.port}", timeout=30.0) as client:
        yield client
    engine.stop()


def _check(client: httpx.Client, asked: Work, default_max: int = 12) -> None:
    bound = bound_tokens(measure(asked), context=Context(1024, 1024), allowance=256, default_max=default_max)
    body = splice(asked.body, asked.parsed, served_name="tiny", most_tokens=bound.most_tokens)
    answer = client.post(asked.path, content=body, headers={"content-type": "application/json"})
    if answer.status_code != 200:
        assert answer.status_code < 500, answer.text
        return
    usage = answer.json()["usage"]
    assert usage["prompt_tokens"] <= bound.input_tokens
    assert usage.get("completion_tokens", 0) <= bound.output_tokens


_often = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@_often
@given(
    messages=_messages, ends=st.sampled_from([{}, {"max_tokens": 0}, {"max_tokens": 1}, {"max_completion_tokens": 3}])
)
def test_a_chat_uses_no_more_than_its_bound(
    engine: httpx.Client, messages: list[dict[str, str]], ends: dict[str, int]
) -> None:
    _check(engine, work(Api.CHAT, messages=messages, **ends))


@_often
@given(prompt=_texts, own=st.sampled_from([{}, {"n_predict": -1}, {"n_predict": 40, "max_tokens": 2}, {"n": 2}]))
def test_a_completion_uses_no_more_than_its_bound(engine: httpx.Client, prompt: str, own: dict[str, int]) -> None:
    assume(prompt or "n" not in own)  # llama.cpp never answers those
    _check(engine, work(Api.COMPLETIONS, prompt=prompt, **own))
