"""The suite against real engines: what every one of them must answer through the relay, whatever its model says."""

import base64
import json
import struct
from typing import Any

from gateway.relay.plan import Outcome, UsageSource
from tests.gateway.relay.door.house import Answer, DoorHouse
from tests.gpupool.engines.conformance.exchange import read_answer, read_events

MESSAGES = [{"role": "user", "content": "Hi"}]


async def chat_and_its_stream_agree(house: DoorHouse) -> None:
    """Greedy decoding twice, whole and streamed: the same text, the same counts, both from the engine."""
    body = {"model": "alias", "messages": MESSAGES, "max_tokens": 6, "temperature": 0}
    whole, usage = await _asked(house, body)
    streamed, stream_usage = await _asked(house, body | {"stream": True})
    told, stream_told = read_answer(whole.body), read_events([streamed.body])
    assert told.finish == stream_told.finish
    assert told.finish[0] in ("stop", "length")
    assert told.text == stream_told.text
    assert usage == stream_usage
    assert told.usage == usage
    with_usage, _ = await _asked(house, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert read_events([with_usage.body]).usage == usage


async def completion_and_its_stream_agree(house: DoorHouse, **more: Any) -> str:
    """The text of a greedy completion."""
    body = {"model": "alias", "prompt": "Hello", "max_tokens": 6, "temperature": 0, **more}
    whole, usage = await _asked(house, body, "/v1/completions")
    streamed, stream_usage = await _asked(house, body | {"stream": True}, "/v1/completions")
    told = read_answer(whole.body)
    assert read_events([streamed.body]).text == told.text
    assert usage == stream_usage
    return told.text


async def messages_are_counted_as_they_are_charged(house: DoorHouse) -> None:
    """`/tokenize` of messages says what the chat's usage then says; of a prompt, as many as it lists."""
    counted, _ = await _asked(house, {"model": "alias", "messages": MESSAGES}, "/tokenize")
    body = {"model": "alias", "messages": MESSAGES, "max_tokens": 1, "temperature": 0}
    _, usage = await _asked(house, body)
    assert counted.json["count"] == len(counted.json["tokens"]) == usage[0]
    prompt, _ = await _asked(house, {"model": "alias", "prompt": "Grüße 世界"}, "/tokenize")
    assert prompt.json["count"] == len(prompt.json["tokens"]) > 0


async def anthropics_counts_are_what_is_charged(house: DoorHouse) -> None:
    """`/v1/messages/count_tokens` says what the usage of the same message then says."""
    tool = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"x": {}}}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"x": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "nothing"}]}
    asks: list[dict[str, Any]] = [
        {"messages": MESSAGES},
        {"messages": MESSAGES, "system": [{"type": "text", "text": "Be brief."}]},
        {"messages": MESSAGES, "tools": [tool], "tool_choice": {"type": "auto"}},
        {"messages": MESSAGES, "thinking": {"type": "disabled"}},
        {
            "messages": [*MESSAGES, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}],
            "tools": [tool],
        },
    ]
    for ask in asks:
        body = {"model": "alias", **ask}
        counted = await house.ask(json.dumps(body).encode(), path="/v1/messages/count_tokens")
        message = await house.ask(json.dumps(body | {"max_tokens": 1}).encode(), path="/v1/messages")
        assert (counted.status, message.status) == (200, 200), (counted.body, message.body)
        usage = message.json["usage"]
        assert counted.json["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"], ask


async def embeddings_are_vectors(house: DoorHouse) -> None:
    """One for each text, alike as numbers and as base64."""
    body = {"model": "alias", "input": ["a b", "c"]}
    plain, usage = await _asked(house, body, "/v1/embeddings")
    packed, _ = await _asked(house, body | {"encoding_format": "base64"}, "/v1/embeddings")
    assert [item["index"] for item in plain.json["data"]] == [0, 1]
    for item, other in zip(plain.json["data"], packed.json["data"], strict=True):
        data = base64.b64decode(other["embedding"])
        numbers = struct.unpack(f"<{len(data) // 4}f", data)
        assert all(abs(a - b) < 1e-3 for a, b in zip(item["embedding"], numbers, strict=True))
    assert usage[0] is not None
    assert usage[0] > 0


async def documents_are_ranked(house: DoorHouse) -> None:
    """A score for each document."""
    body = {"model": "alias", "query": "a", "documents": ["a b", "c", "d e f"]}
    answer, usage = await _asked(house, body, "/v1/rerank")
    assert sorted(item["index"] for item in answer.json["results"]) == [0, 1, 2]
    assert all(isinstance(item["relevance_score"], float) for item in answer.json["results"])
    assert usage[0] is not None


async def _asked(
    house: DoorHouse, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[Answer, tuple[int | None, int | None]]:
    """The answer and the usage it was settled with."""
    before = len(house.settlements)
    answer = await house.ask(json.dumps(body).encode(), path=path)
    assert answer.status == 200, answer.body
    settlement = (await house.settled(before + 1))[before]
    assert settlement.outcome is Outcome.SUCCESS
    if path != "/tokenize":
        assert settlement.usage.source is UsageSource.ENGINE
    return answer, (settlement.usage.input_tokens, settlement.usage.output_tokens)
