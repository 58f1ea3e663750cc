"""Answers in the words of the Responses API: items, usage, and the response object around them."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from gateway.relay.dialects.response_store import response_name
from gateway.relay.dialects.responses_items import item_id

_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A call, or a piece of one; `index` tells pieces of different calls apart."""

    index: int = 0
    id: str | None = None
    function: Function | None = None


class Said(msgspec.Struct):
    """A message, or what one chunk adds to it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same in vLLM's newer words
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""


class Logprobs(msgspec.Struct):
    content: list[dict[str, Any]] | None = None


class Choice(msgspec.Struct):
    message: Said | None = None
    delta: Said | None = None
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    index: int = 0


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChatUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class Completion(msgspec.Struct):
    """A whole chat completion, or a chunk of one."""

    choices: list[Choice] = []
    usage: ChatUsage | None = None


completions: Final = msgspec.json.Decoder(Completion)


class Frame(NamedTuple):
    """What is the same in everything told about one response."""

    id: UUID
    created_at: int  # seconds since the epoch
    model: str
    echo: Mapping[str, Any]

    def response(
        self,
        status: str,
        output: list[dict[str, Any]],
        *,
        usage: ChatUsage | None = None,
        finish_reason: str | None = None,
        completed_at: int | None = None,
    ) -> dict[str, Any]:
        """The response object."""
        reason = _INCOMPLETE.get(finish_reason or "") if status == "incomplete" else None
        return {
            "id": response_name(self.id),
            "object": "response",
            "created_at": self.created_at,
            "completed_at": completed_at,
            "status": status,
            "error": None,
            "incomplete_details": None if reason is None else {"reason": reason},
            "model": self.model,
            "output": output,
            "usage": None if usage is None else _usage(usage),
            **self.echo,
        }


def final_status(finish_reason: str | None) -> str:
    """How an answer that ended for this reason is called."""
    return "incomplete" if finish_reason in _INCOMPLETE else "completed"


def _usage(usage: ChatUsage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    thought = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else None
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached or 0, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought or 0},
        "total_tokens": prompt + completion,
    }


# Items


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def reasoning_item(identity: str, text: str | None, status: str) -> dict[str, Any]:
    """`text` is None while there is none yet."""
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {"id": identity, "type": "reasoning", "summary": [], "content": content, "status": status}


def message_item(identity: str, parts: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": parts}


def call_item(identity: str, call_id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": identity,
        "type": "function_call",
        "status": status,
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def call_name(response_id: UUID, place: int) -> str:
    """A call's id where the engine gave none."""
    return f"call_{response_id.hex}{place}"


def output_items(said: Said, logprobs: list[dict[str, Any]], response_id: UUID, status: str) -> list[dict[str, Any]]:
    """What the model said, as items; only the last one can have been cut (`status`).

    An answer without anything is an empty message.
    """
    items: list[dict[str, Any]] = []

    def name(kind: str) -> str:
        return item_id(kind, response_id, f"o{len(items)}")

    calls = said.tool_calls or []
    if said.thought:
        items.append(reasoning_item(name("reasoning"), said.thought, "completed"))
    if said.content or said.refusal or not (calls or items):
        parts = [refusal_part(said.refusal)] if said.refusal else []
        if said.content or not parts:
            parts.insert(0, text_part(said.content or "", logprobs))
        items.append(message_item(name("message"), parts, "completed" if calls else status))
    for number, call in enumerate(calls, 1):
        function = call.function or Function()
        call_id = call.id or call_name(response_id, len(items))
        ended = status if number == len(calls) else "completed"
        items.append(call_item(name("function_call"), call_id, function.name or "", function.arguments or "", ended))
    return items
