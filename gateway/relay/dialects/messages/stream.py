"""A streamed answer of an engine as the events of Anthropic's message.

OpenAI's deltas may jump between text, thinking and several calls; Anthropic's blocks come one after the other. So
blocks stand in a queue, in the order in which they began: the first one is told as it grows, the others wait until
it is complete. Source: Anthropic's API reference, "Streaming messages".
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from gateway.relay.completion import read_usage
from gateway.relay.dialects.messages.answer import Call, Function, Said, call_id, message_id, stop_words, usage_words
from gateway.relay.plan import Usage
from gateway.relay.sse import event_fields
from gateway.relay.upstream_errors import BadResponse

_NULL: Final = msgspec.Raw(b"null")


class _Choice(msgspec.Struct, gc=False):
    delta: Said | None = None
    index: int = 0
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    matched_stop: str | int | list[int] | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _NULL


_chunks = msgspec.json.Decoder(_Chunk)
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class _Kind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    TOOL_USE = "tool_use"


_DELTAS: Final = {
    _Kind.TEXT: b'"delta":{"type":"text_delta","text":%b}',
    _Kind.THINKING: b'"delta":{"type":"thinking_delta","thinking":%b}',
    _Kind.TOOL_USE: b'"delta":{"type":"input_json_delta","partial_json":%b}',
}


@dataclass(slots=True)
class _Block:
    kind: _Kind
    id: str = ""  # of a call
    name: str = ""
    waiting: list[str] = field(default_factory=list)  # not told yet
    told: list[str] = field(default_factory=list)  # of a call: its arguments so far
    index: int | None = None  # once its beginning is told

    @property
    def complete(self) -> bool:
        """Nothing more can come of it once another block has begun."""
        if self.kind is not _Kind.TOOL_USE:
            return True
        if not self.told or not self.told[-1].rstrip().endswith("}"):
            return False
        try:
            _objects.decode("".join(self.told))
        except (msgspec.DecodeError, RecursionError):
            return False
        return True


class MessageStream:
    """One answer; see gateway.relay.plan.DialectStream. Of several choices only the first is told."""

    def __init__(
        self, request_id: UUID, model: str, *, stop_sequences: Collection[str] = (), show_thinking: bool = True
    ) -> None:
        self._request_id = request_id
        self._model = model
        self._stop_sequences = stop_sequences
        self._show_thinking = show_thinking
        self._started = False
        self._queue: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}  # by the engine's index
        self._next_index = 0
        self._finish_reason: str | None = None
        self._matched: tuple[object, ...] = ()
        self._usage: Usage | None = None

    def feed(self, event: bytes) -> bytes:
        """Raises BadResponse for an event that is no chunk of a chat."""
        data = event_fields(event)[1]
        if data is None:
            return event  # a comment: every reader of event streams passes over it
        try:
            chunk = _chunks.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadResponse(f"the event is no chunk of a chat: {error}", said=data) from error
        if bytes(chunk.usage) != b"null":
            self._usage = read_usage(bytes(chunk.usage)) or self._usage
        out: list[bytes] = []
        self._start(out)
        for choice in chunk.choices or ():
            if choice.index == 0:
                self._take(choice)
        self._advance(out)
        return b"".join(out)

    async def finish(self) -> bytes:
        out: list[bytes] = []
        self._start(out)
        while self._queue:
            self._tell(self._queue[0], out)
            self._stop(self._queue.popleft(), out)
        words = stop_words(self._finish_reason, self._matched, self._stop_sequences, calls=bool(self._calls))
        out.append(_event("message_delta", {"delta": words, "usage": usage_words(self._usage)}))
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def _start(self, out: list[bytes]) -> None:
        if self._started:
            return
        self._started = True
        message: dict[str, Any] = {
            "id": message_id(self._request_id),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_words(self._usage),  # as a rule nothing yet: message_delta has it
        }
        out.append(_event("message_start", {"message": message}))

    def _take(self, choice: _Choice) -> None:
        if choice.finish_reason:
            self._finish_reason = choice.finish_reason
            self._matched = (choice.stop_reason, choice.matched_stop)
        delta = choice.delta
        if delta is None:
            return
        if (thought := delta.thought) and self._show_thinking:
            self._grow(_Kind.THINKING, thought)
        if delta.content:
            self._grow(_Kind.TEXT, delta.content)
        if delta.refusal:
            self._grow(_Kind.TEXT, delta.refusal)
        for call in delta.tool_calls or ():
            self._take_call(call)

    def _grow(self, kind: _Kind, text: str) -> None:
        if not self._queue or self._queue[-1].kind is not kind:
            self._queue.append(_Block(kind))
        self._queue[-1].waiting.append(text)

    def _take_call(self, call: Call) -> None:
        number = call.index or 0
        block = self._calls.get(number)
        if block is None:
            block = self._calls[number] = _Block(_Kind.TOOL_USE)
            self._queue.append(block)
        function = call.function or Function()
        block.id = block.id or call.id or ""
        block.name = block.name or function.name or ""
        if function.arguments:
            block.waiting.append(function.arguments)

    def _advance(self, out: list[bytes]) -> None:
        """Tell what may be told: the first block as far as it has grown, and the next where it is complete."""
        queue = self._queue
        while queue:
            block = queue[0]
            if block.kind is _Kind.TOOL_USE and block.index is None and not block.name:
                return  # its beginning cannot be told yet
            self._tell(block, out)
            if len(queue) == 1 or not block.complete:
                return
            self._stop(queue.popleft(), out)

    def _tell(self, block: _Block, out: list[bytes]) -> None:
        if block.index is None:
            block.index = self._next_index
            self._next_index += 1
            out.append(_event("content_block_start", {"index": block.index, "content_block": self._beginning(block)}))
        for text in block.waiting:
            head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % block.index
            out.append(head + _DELTAS[block.kind] % _encode(text) + b"}\n\n")
        if block.kind is _Kind.TOOL_USE:
            block.told += block.waiting
        block.waiting.clear()

    def _beginning(self, block: _Block) -> dict[str, Any]:
        match block.kind:
            case _Kind.TEXT:
                return {"type": "text", "text": ""}
            case _Kind.THINKING:
                return {"type": "thinking", "thinking": "", "signature": ""}
            case _Kind.TOOL_USE:
                identity = block.id or call_id(self._request_id, block.index or 0)
                return {"type": "tool_use", "id": identity, "name": block.name, "input": {}}

    def _stop(self, block: _Block, out: list[bytes]) -> None:
        out.append(_event("content_block_stop", {"index": block.index}))


def _event(name: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))
