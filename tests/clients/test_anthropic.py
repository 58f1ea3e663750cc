"""The official `anthropic` client notices nothing of the gateway."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.house import TestHouse

MESSAGES: list[MessageParam] = [{"role": "user", "content": "Say something, 请."}]
LOOK: ToolParam = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def doors(house: TestHouse) -> dict[str, str]:
    house.start("web")
    return {"relay": house.relay_url, "drf": house.web_url}


@pytest.fixture(params=["relay", "drf"])
def client(house: TestHouse, doors: dict[str, str], request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    base_url = doors[request.param]
    with anthropic.Anthropic(base_url=base_url, api_key=house.key.secret, max_retries=0, timeout=30) as client:
        yield client


def test_answers_a_message_and_writes_it_down(house: TestHouse, client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model="tiny", max_tokens=12, messages=MESSAGES, system="Be brief.", extra_body={"ignore_eos": True}
    )
    message = raw.parse()
    assert (message.type, message.role, message.model) == ("message", "assistant", "tiny")
    assert message.stop_reason == "max_tokens"
    assert [block.type for block in message.content] == ["text"]
    assert message.usage.output_tokens == 12
    row = house.ledger_row(raw.headers["x-request-id"])
    assert (row.outcome, row.status, row.usage_source) == ("success", 200, "engine")
    cached = message.usage.cache_read_input_tokens or 0
    assert (row.input_tokens, row.output_tokens) == (message.usage.input_tokens + cached, 12)
    assert (row.tenant_id, row.key_id, row.model) == (house.tenant.pk, house.key.id, "tiny")
    assert (row.api, row.streamed, row.instance_id) == ("messages", False, house.instance.pk)


def test_streams_a_message_and_writes_it_down(house: TestHouse, client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="tiny", max_tokens=12, messages=MESSAGES, extra_body={"ignore_eos": True}
    ) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()
        request_id = stream.response.headers["x-request-id"]
        assert stream.response.headers["content-type"].startswith("text/event-stream")
    assert len(texts) > 1
    assert message.stop_reason == "max_tokens"
    row = house.ledger_row(request_id)
    assert (row.outcome, row.streamed, row.usage_source, row.api) == ("success", True, "engine", "messages")
    assert row.output_tokens == message.usage.output_tokens == 12
    assert row.ttft_ms is not None


def test_says_the_same_as_to_openais_clients(house: TestHouse, client: anthropic.Anthropic) -> None:
    greedy = {"ignore_eos": True, "temperature": 0}
    with house.client() as plain:
        asked = {"model": "tiny", "max_tokens": 8, "messages": MESSAGES, **greedy}
        said = plain.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
    with client.messages.stream(model="tiny", max_tokens=8, messages=MESSAGES, extra_body=greedy) as stream:
        assert stream.get_final_text() == said
    whole = client.messages.create(model="tiny", max_tokens=8, messages=MESSAGES, extra_body=greedy)
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": said}]


def test_counts_the_tokens_that_a_message_then_has(house: TestHouse, client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.")
    counted = raw.parse().input_tokens
    message = client.messages.create(model="tiny", max_tokens=1, messages=MESSAGES, system="Be brief.")
    assert abs(counted - message.usage.input_tokens - (message.usage.cache_read_input_tokens or 0)) <= 1  # its BOS
    row = house.ledger_row(raw.headers["x-request-id"])
    assert (row.outcome, row.api, row.status) == ("success", "count_tokens", 200)


def test_takes_tools_and_their_results(client: anthropic.Anthropic) -> None:
    """What a model of random weights says is not known; that the engine takes the conversation is."""
    conversation: list[MessageParam] = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "A wall."}]},
    ]
    message = client.messages.create(model="tiny", max_tokens=4, messages=conversation, tools=[LOOK])
    assert message.usage.output_tokens > 0


def test_a_client_that_leaves_is_written_down(house: TestHouse, client: anthropic.Anthropic) -> None:
    slowly = {"ignore_eos": True, "logprobs": True, "top_logprobs": 200}  # else it has ended before anyone can leave
    stream = client.messages.create(model="tiny", max_tokens=400, messages=MESSAGES, stream=True, extra_body=slowly)
    assert next(stream).type == "message_start"
    stream.close()
    row = house.ledger_row(stream.response.headers["x-request-id"])
    assert (row.outcome, row.api, row.streamed) == ("cancelled", "messages", True)


@pytest.mark.shows("G23")
def test_refusals_are_the_clients_own_exceptions(house: TestHouse, client: anthropic.Anthropic) -> None:
    for name in ("none", "hidden"):
        with pytest.raises(anthropic.NotFoundError) as not_found:
            client.messages.create(model=name, max_tokens=1, messages=MESSAGES)
        assert not_found.value.type == "not_found_error"
    with pytest.raises(anthropic.AuthenticationError) as refused:
        client.with_options(api_key="sk-gh-wrong").messages.create(model="tiny", max_tokens=1, messages=MESSAGES)
    assert refused.value.type == "authentication_error"
    with pytest.raises(anthropic.BadRequestError, match="'messages'") as bad:
        client.messages.create(model="tiny", max_tokens=1, messages=[])
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(anthropic.InternalServerError) as idle:
        client.messages.create(model="idle", max_tokens=1, messages=MESSAGES)
    assert (idle.value.status_code, idle.value.type) == (503, "overloaded_error")
    limited = client.with_options(api_key=house.new_key("one a minute", rpm_limit=1).secret)
    limited.messages.create(model="tiny", max_tokens=1, messages=MESSAGES)
    with pytest.raises(anthropic.RateLimitError) as too_many:
        limited.messages.create(model="tiny", max_tokens=1, messages=MESSAGES)
    assert int(too_many.value.response.headers["retry-after"]) >= 1


@pytest.mark.shows("G23")
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_keeps_its_status(client: anthropic.Anthropic, stream: bool) -> None:
    long: list[MessageParam] = [{"role": "user", "content": "words " * 3000}]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model="tiny", max_tokens=1, messages=long, stream=stream)
    assert refused.value.type == "invalid_request_error"
