"""The official `openai` client notices nothing of the gateway."""

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.house import TestHouse

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Say something, 请."},
]


@pytest.fixture
def client(house: TestHouse) -> openai.OpenAI:
    return openai.OpenAI(base_url=house.relay_url + "/v1", api_key=house.key.secret, max_retries=0, timeout=30)


def test_lists_the_models_that_the_key_may_use(client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert {model.id for model in listed} == {"tiny", "idle"}
    assert all(model.object == "model" for model in listed)
    assert client.models.retrieve("tiny").id == "tiny"


def test_answers_a_chat_and_writes_it_down(house: TestHouse, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES, max_tokens=12)
    answer = raw.parse()
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    row = house.ledger_row(raw.headers["x-request-id"])
    assert (row.outcome, row.status, row.usage_source) == ("success", 200, "engine")
    assert (row.input_tokens, row.output_tokens) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    assert (row.tenant_id, row.key_id, row.model) == (house.tenant.pk, house.key.id, "tiny")
    assert (row.api, row.streamed, row.instance_id) == ("chat", False, house.instance.pk)


def test_streams_a_chat_and_writes_it_down(house: TestHouse, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=12, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = list(raw.parse())
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert chunks[-1].choices[0].finish_reason == "length"
    assert sum(bool(chunk.choices[0].delta.content) for chunk in chunks) > 1
    row = house.ledger_row(raw.headers["x-request-id"])
    assert (row.outcome, row.streamed, row.usage_source) == ("success", True, "engine")
    assert row.output_tokens == 12
    assert row.ttft_ms is not None
    assert row.duration_ms is not None
    assert 0 < row.ttft_ms <= row.duration_ms


@pytest.mark.shows("G14")
@pytest.mark.parametrize("options", ["absent", "null", "no usage", "usage"])
def test_usage_chunk_comes_only_to_those_who_asked(house: TestHouse, client: openai.OpenAI, options: str) -> None:
    bodies: dict[str, dict[str, object]] = {
        "absent": {},
        "null": {"stream_options": None},
        "no usage": {"stream_options": {"include_usage": False}},
        "usage": {"stream_options": {"include_usage": True}},
    }
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=MESSAGES, max_tokens=4, stream=True, extra_body=bodies[options]
    )
    chunks = list(raw.parse())
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    without_choices = [chunk for chunk in chunks if not chunk.choices]
    assert len(with_usage) == len(without_choices) == (1 if options == "usage" else 0)
    assert house.ledger_row(raw.headers["x-request-id"]).usage_source == "engine"


@pytest.mark.parametrize("stream", [False, True])
def test_answers_a_completion(house: TestHouse, client: openai.OpenAI, stream: bool) -> None:
    if stream:
        raw = client.completions.with_raw_response.create(model="tiny", prompt="Once", max_tokens=8, stream=True)
        assert len(list(raw.parse())) > 1
    else:
        whole = client.completions.with_raw_response.create(model="tiny", prompt="Once", max_tokens=8)
        assert whole.parse().choices[0].finish_reason in ("length", "stop")
    headers = raw.headers if stream else whole.headers
    row = house.ledger_row(headers["x-request-id"])
    assert (row.api, row.outcome, row.streamed) == ("completions", "success", stream)


async def test_many_at_once_through_the_async_client(house: TestHouse) -> None:
    import asyncio

    async with openai.AsyncOpenAI(
        base_url=house.relay_url + "/v1", api_key=house.key.secret, max_retries=0, timeout=60
    ) as client:

        async def one() -> int:
            stream = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=6, stream=True)
            return len([chunk async for chunk in stream])

        assert all(count > 0 for count in await asyncio.gather(*(one() for _ in range(40))))


def test_refusals_are_the_clients_own_exceptions(house: TestHouse, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="none", messages=MESSAGES)
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as refused:
        client.with_options(api_key="sk-gh-wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=[])
    assert bad.value.param == "messages"
    limited = client.with_options(api_key=house.new_key("one a minute", rpm_limit=1).secret)
    limited.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)
    with pytest.raises(openai.RateLimitError) as too_many:
        limited.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)
    assert int(too_many.value.response.headers["retry-after"]) >= 1
