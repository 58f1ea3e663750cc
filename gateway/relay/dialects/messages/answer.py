"""A whole answer of an engine as Anthropic's message object, and the words that a streamed one shares with it.

Source: Anthropic's API reference, "Messages"; engines' extensions: `reasoning_content` or `reasoning` beside the
content, the stop string in `stop_reason` (vLLM) or `matched_stop` (SGLang).
"""

from collections.abc import Collection
from typing import Any, Final
from uuid import UUID

import msgspec

from gateway.relay.completion import read_usage
from gateway.relay.plan import Usage

_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"} | {
    "content_filter": "refusal"
}
_NULL: Final = msgspec.Raw(b"null")


class Function(msgspec.Struct, gc=False):
    """Of a call, or of a piece of one."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct, gc=False):
    """A call of a tool, or in a stream a piece of one."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct, gc=False):
    """What a model says: a message, or in a stream a delta."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def thought(self) -> str | None:
        return self.reasoning_content or self.reasoning


class _WholeChoice(msgspec.Struct):
    message: Said
    index: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class _Whole(msgspec.Struct):
    choices: list[_WholeChoice]
    usage: msgspec.Raw = _NULL


class _Count(msgspec.Struct):
    count: int


_wholes = msgspec.json.Decoder(_Whole)
_counts = msgspec.json.Decoder(_Count)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


def message_id(request_id: UUID) -> str:
    """The answer's id, from which the request can be found."""
    return f"msg_{request_id.hex}"


def call_id(request_id: UUID, number: int) -> str:
    """For a call that the engine gave no id."""
    return f"toolu_{request_id.hex}{number:02d}"


def stop_words(
    finish_reason: str | None, matched: Collection[object], stop_sequences: Collection[str], *, calls: bool
) -> dict[str, str | None]:
    """`stop_reason` and `stop_sequence`. `matched`: what the engine says that it stopped at."""
    if finish_reason in _REASONS:
        return {"stop_reason": _REASONS[finish_reason], "stop_sequence": None}
    if calls:  # some engines say "stop" after calls too
        return {"stop_reason": "tool_use", "stop_sequence": None}
    for word in matched:
        if isinstance(word, str) and word in stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": word}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage_words(usage: Usage | None) -> dict[str, int]:
    """Anthropic counts what was read from the cache beside the input, not within it."""
    usage = usage or Usage()
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": max(0, (usage.input_tokens or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.output_tokens or 0,
    }


def whole_message(
    body: bytes, *, request_id: UUID, model: str, stop_sequences: Collection[str], show_thinking: bool
) -> bytes:
    """The message object of a whole chat completion. Raises ValueError for an answer of another shape."""
    whole = _wholes.decode(body)
    choice = next((choice for choice in whole.choices if choice.index == 0), None)
    if choice is None:
        raise ValueError("it has no choices")
    said = choice.message
    content: list[dict[str, Any]] = []
    if said.thought and show_thinking:
        content.append({"type": "thinking", "thinking": said.thought, "signature": ""})
    content.extend({"type": "text", "text": text} for text in (said.content, said.refusal) if text)
    calls = said.tool_calls or []
    content.extend(_tool_use(call, request_id, number) for number, call in enumerate(calls))
    return msgspec.json.encode(
        {
            "id": message_id(request_id),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            **stop_words(
                choice.finish_reason, (choice.stop_reason, choice.matched_stop), stop_sequences, calls=bool(calls)
            ),
            "usage": usage_words(read_usage(bytes(whole.usage))),
        }
    )


def token_count(body: bytes) -> bytes:
    """The answer to a count, from an engine's `count`. Raises ValueError for an answer of another shape."""
    return msgspec.json.encode({"input_tokens": _counts.decode(body).count})


def _tool_use(call: Call, request_id: UUID, number: int) -> dict[str, Any]:
    function = call.function or Function()
    return {
        "type": "tool_use",
        "id": call.id or call_id(request_id, number),
        "name": function.name or "",
        "input": _input(function.arguments or ""),
    }


def _input(arguments: str) -> object:
    """The arguments as the object that `input` must be.

    What a model wrote that is none (cut off by max_tokens, say) is kept as text, wrapped as Anthropic's guide to
    fine-grained tool streaming advises.
    """
    if not arguments.strip():
        return {}
    try:
        _objects.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {"INVALID_JSON": arguments}
    return msgspec.Raw(arguments.encode())
