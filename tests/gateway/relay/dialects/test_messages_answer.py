"""Whole answers of engines become message objects."""

import json
from typing import Any
from uuid import UUID

import pytest

from gateway.relay.dialects.messages.dialect import MessagesDialect, TokenCountDialect

REQUEST_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


def answer(message: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


async def message(whole: dict[str, Any], **options: Any) -> dict[str, Any]:
    dialect = MessagesDialect(REQUEST_ID, "alias", **options)
    told: dict[str, Any] = json.loads(await dialect.whole(json.dumps(whole).encode()))
    return told


def call(identity: str | None, arguments: str | None, name: str = "look") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


async def test_a_plain_answer() -> None:
    assert await message(answer({"content": "Hello"})) == {
        "id": "msg_01890a5dac96774bbcceb302099a8057",
        "type": "message",
        "role": "assistant",
        "model": "alias",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 3,
        },
    }


@pytest.mark.parametrize("member", ["reasoning_content", "reasoning"])
async def test_thoughts_come_before_words(member: str) -> None:
    whole = answer({"content": "Yes.", member: "Hm."})
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    text = {"type": "text", "text": "Yes."}
    assert (await message(whole))["content"] == [thinking, text]
    assert (await message(whole, show_thinking=False))["content"] == [text]


async def test_calls_become_blocks_with_their_input() -> None:
    calls = [call("a", '{"at": "世", "n": 1.0}'), call("b", ""), call(None, None), call("d", '{"cut')]
    told = await message(answer({"content": None, "tool_calls": calls}, finish_reason="tool_calls"))
    assert told["stop_reason"] == "tool_use"
    assert [block["type"] for block in told["content"]] == ["tool_use"] * 4
    inputs: list[Any] = [{"at": "世", "n": 1.0}, {}, {}, {"INVALID_JSON": '{"cut'}]
    assert [block["input"] for block in told["content"]] == inputs
    identities = [block["id"] for block in told["content"]]
    assert (identities[0], identities[1], identities[3]) == ("a", "b", "d")
    assert identities[2].startswith("toolu_")


@pytest.mark.parametrize(
    ("choice", "reason", "sequence"),
    [
        ({"finish_reason": "stop"}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "matched_stop": "END"}, "stop_sequence", "END"),
        ({"finish_reason": "stop", "matched_stop": 2}, "end_turn", None),
        ({"finish_reason": "stop", "stop_reason": "other"}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "content_filter"}, "refusal", None),
        ({"finish_reason": "abort"}, "end_turn", None),
        ({"finish_reason": None}, "end_turn", None),
    ],
)
async def test_why_it_ended(choice: dict[str, Any], reason: str, sequence: str | None) -> None:
    told = await message(answer({"content": "x"}, **choice), stop_sequences=("END",))
    assert (told["stop_reason"], told["stop_sequence"]) == (reason, sequence)


async def test_an_engine_that_says_stop_after_calls() -> None:
    assert (await message(answer({"tool_calls": [call("a", "{}")]})))["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}, (2, 5, 3)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}, (7, 0, 3)),
        (None, (0, 0, 0)),
    ],
)
async def test_what_was_cached_is_counted_beside_the_input(usage: Any, told: tuple[int, int, int]) -> None:
    said = (await message({**answer({"content": "x"}), "usage": usage}))["usage"]
    assert (said["input_tokens"], said["cache_read_input_tokens"], said["output_tokens"]) == told


@pytest.mark.parametrize("body", [b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": 1}}]}', b"["])
async def test_another_shape_is_no_message(body: bytes) -> None:
    with pytest.raises(ValueError):
        await MessagesDialect(REQUEST_ID, "alias").whole(body)


async def test_a_count() -> None:
    dialect = TokenCountDialect(REQUEST_ID)
    assert json.loads(await dialect.whole(b'{"count": 12, "max_model_len": 9, "tokens": [1]}')) == {"input_tokens": 12}
    for body in (b"{}", b'{"count": "12"}', b'{"tokens": [1]}'):
        with pytest.raises(ValueError):
            await dialect.whole(body)
