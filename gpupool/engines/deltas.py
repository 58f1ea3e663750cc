"""The one token stream: what every engine's own stream is decoded into, and how OpenAI's clients are told of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import msgspec

_REPLACEMENT: Final = "\ufffd"  # what a tokenizer shows of a character whose last bytes are in the next token


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, whole; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What has been added to one choice; `finish_reason` (in OpenAI's words) with its last one."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """All choices are finished. Token counts over all of them; None where the engine does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt's


@dataclass(frozen=True, slots=True)
class EngineFailure:
    """The engine says that it failed; `status` as it would have been, had the answer not begun."""

    message: str
    status: int = 500
    type: str = "server_error"


Step = Delta | Done | EngineFailure
"""Nothing follows Done or EngineFailure."""


class Growth:
    """The new part of a text that is told anew, from its beginning, with each frame.

    Half a character at its end is kept back until the other half is there: what has been told cannot be untold.
    """

    __slots__ = ("_told",)

    def __init__(self, told: str = "") -> None:
        self._told = told

    def grow(self, text: str, *, last: bool = False) -> str:
        """Raises ValueError when `text` is another than before; one that became shorter adds nothing."""
        if not last:
            text = text.rstrip(_REPLACEMENT)
        if self._told.startswith(text):
            return ""
        if not text.startswith(self._told):
            raise ValueError("the text so far does not begin with what was told of it before")
        new = text[len(self._told) :]
        self._told = text
        return new


class Chunks:
    """Renders one answer in OpenAI's words, streamed or whole.

    `identity` is the answer's id, which an engine that says one of its own may replace before the first step.
    """

    __slots__ = ("_begun", "_calls", "_chat", "_created", "_model", "identity")

    def __init__(self, *, chat: bool, model: str, identity: str, created: int) -> None:
        self.identity = identity
        self._chat = chat
        self._model = model
        self._created = created
        self._begun: set[int] = set()  # choices that have said their role
        self._calls: dict[int, int] = {}  # tool calls told so far, by choice

    def event(self, step: Step) -> bytes:
        """The step as whole SSE events; those of Done end with `[DONE]`."""
        match step:
            case Delta():
                return self._data({"choices": [self._choice(step)]})
            case Done():
                usage = _usage(step)
                told = self._data({"choices": [], "usage": usage}) if usage else b""
                return told + b"data: [DONE]\n\n"
            case EngineFailure():
                return b"data: " + _failure(step) + b"\n\n"
            case _:
                assert_never(step)

    def whole(self, steps: Sequence[Step]) -> bytes:
        """All of an answer's steps as one. Raises ValueError when no choice is among them."""
        choices: dict[int, list[Delta]] = {}
        usage: dict[str, Any] | None = None
        for step in steps:
            match step:
                case Delta():
                    choices.setdefault(step.index, []).append(step)
                case Done():
                    usage = _usage(step)
                case EngineFailure():
                    return _failure(step)
        if not choices:
            raise ValueError("the answer holds no choice")
        body = self._body("chat.completion" if self._chat else "text_completion")
        body["choices"] = [self._whole_choice(index, deltas) for index, deltas in sorted(choices.items())]
        if usage is not None:
            body["usage"] = usage
        return msgspec.json.encode(body)

    def _data(self, members: dict[str, Any]) -> bytes:
        body = self._body("chat.completion.chunk" if self._chat else "text_completion") | members
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    def _body(self, kind: str) -> dict[str, Any]:
        return {"id": self.identity, "object": kind, "created": self._created, "model": self._model}

    def _choice(self, step: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": step.index}
        if not self._chat:
            choice["text"] = step.text
        else:
            choice["delta"] = self._delta(step)
        return choice | {"logprobs": None, "finish_reason": step.finish_reason}

    def _delta(self, step: Delta) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if step.index not in self._begun:
            self._begun.add(step.index)
            delta = {"role": "assistant", "content": ""}
        if step.text:
            delta["content"] = step.text
        if step.reasoning:
            delta["reasoning_content"] = step.reasoning
        if step.tool_calls:
            first = self._calls.get(step.index, 0)
            self._calls[step.index] = first + len(step.tool_calls)
            delta["tool_calls"] = [{"index": i} | _call(call) for i, call in enumerate(step.tool_calls, first)]
        return delta

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        text = "".join(delta.text for delta in deltas)
        finish_reason = next((delta.finish_reason for delta in reversed(deltas) if delta.finish_reason), None)
        choice: dict[str, Any] = {"index": index}
        if not self._chat:
            return choice | {"text": text, "logprobs": None, "finish_reason": finish_reason}
        calls = [_call(call) for delta in deltas for call in delta.tool_calls]
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
        if reasoning := "".join(delta.reasoning for delta in deltas):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return choice | {"message": message, "logprobs": None, "finish_reason": finish_reason}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(done: Done) -> dict[str, Any] | None:
    """OpenAI's usage; only what is known, for a made-up zero would be charged."""
    usage: dict[str, Any] = {}
    if done.prompt_tokens is not None:
        usage["prompt_tokens"] = done.prompt_tokens
    if done.completion_tokens is not None:
        usage["completion_tokens"] = done.completion_tokens
    if done.prompt_tokens is not None and done.completion_tokens is not None:
        usage["total_tokens"] = done.prompt_tokens + done.completion_tokens
    if done.cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": done.cached_tokens}
    return usage or None


def _failure(failure: EngineFailure) -> bytes:
    error = {"message": failure.message, "type": failure.type, "param": None, "code": failure.status}
    return msgspec.json.encode({"error": error})
