"""What Ollama's answers say, line by line or whole; both have the same shape."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gpupool.engines.deltas import Delta, Done, EngineFailure, Step, ToolCall
from gpupool.engines.translation import decode


class _Function(msgspec.Struct):
    name: str
    arguments: dict[str, Any] = {}


class _ToolCall(msgspec.Struct):
    function: _Function
    id: str = ""


class _Message(msgspec.Struct):
    content: str = ""
    thinking: str = ""
    tool_calls: list[_ToolCall] | None = None


class _Answer(msgspec.Struct):
    message: _Message | None = None  # of /api/chat
    response: str | None = None  # of /api/generate
    thinking: str = ""
    done: bool = False
    done_reason: str = ""
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: str | None = None


class OllamaDecoder:
    """`identity` makes the ids of tool calls, which older versions leave out."""

    def __init__(self, identity: str) -> None:
        self._identity = identity
        self._calls = 0

    def decode(self, frame: bytes) -> Sequence[Step]:
        return self._steps(decode(frame, _Answer))

    def end(self) -> Sequence[Step]:
        return []

    def whole(self, body: bytes) -> Sequence[Step]:
        answer = decode(body, _Answer)
        if answer.error is None and not answer.done:
            raise ValueError("the answer says that it is not done")
        return self._steps(answer)

    def _steps(self, answer: _Answer) -> list[Step]:
        if answer.error is not None:
            return [EngineFailure(answer.error)]
        message = answer.message
        if message is None:
            if answer.response is None:
                raise ValueError("neither a message nor a response")
            message = _Message(answer.response, answer.thinking)
        calls = tuple(self._call(call) for call in message.tool_calls or [])
        finish_reason = None
        if answer.done:
            finish_reason = "length" if answer.done_reason == "length" else "tool_calls" if self._calls else "stop"
        steps: list[Step] = []
        if message.content or message.thinking or calls or answer.done:
            steps.append(Delta(message.content, message.thinking, calls, finish_reason))
        if answer.done:
            steps.append(Done(answer.prompt_eval_count, answer.eval_count))
        return steps

    def _call(self, call: _ToolCall) -> ToolCall:
        self._calls += 1
        arguments = msgspec.json.encode(call.function.arguments).decode()
        return ToolCall(call.id or f"call_{self._identity}_{self._calls}", call.function.name, arguments)
