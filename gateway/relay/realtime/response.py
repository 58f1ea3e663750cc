"""One response of a realtime conversation: OpenAI's chat chunks in, the Realtime API's events out. Pure.

Nothing is told of a response that the engine did not say: one that breaks off ends as failed, cancelled or
incomplete, its items with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from core.errors import GatehouseError
from gateway.relay.plan import Usage
from gateway.relay.realtime.items import Item, NewId, size_of
from gateway.relay.realtime.options import Options
from gateway.relay.sse import EventSplitter, event_fields

Event = dict[str, Any]


class Status(StrEnum):
    """How a response stands, or ended."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why an answer is not whole, by the engine's finish_reason."""


class AnswerTooLarge(GatehouseError):
    """A response that would not fit into the conversation's memory."""

    status = 502
    code = "answer_too_large"
    default_message = "The model's answer is larger than this gateway keeps for a conversation."


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    message: _Delta | None = None  # of an answer that came whole
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: dict[str, Any] | None = None


_chunks = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class _Writing:
    """An item that is being written; `pieces` are its text or its arguments."""

    item: Item
    output_index: int
    pieces: list[str] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        return bool(self.item.body["type"] == "function_call")


class Response:
    """Made for one response.create. `body` is what the engine is asked."""

    def __init__(
        self,
        *,
        body: bytes,
        options: Options,
        metadata: dict[str, Any] | None,
        conversation_id: str | None,
        new_id: NewId,
        add_item: Callable[[Item], str | None],
        cause: str | None,
        answer_bytes: int,
    ) -> None:
        """`add_item` puts an item into the conversation, returns the one before it; `cause`: the client's event_id."""
        self.body = body
        self.id = new_id("resp_")
        self.cause = cause
        self.status = Status.IN_PROGRESS
        self.error: dict[str, Any] | None = None
        """The error that the stream ended with, in OpenAI's shape."""
        self._options = options
        self._metadata = metadata
        self._conversation_id = conversation_id
        self._new_id = new_id
        self._add_item = add_item
        self._left_bytes = answer_bytes
        self._splitter = EventSplitter()
        self._items: list[_Writing] = []
        self._message: _Writing | None = None
        self._calls: dict[int, _Writing] = {}
        self._finish_reason: str | None = None

    def created(self) -> Event:
        return self._event("response.created", response=self._shown(None, None))

    def feed(self, data: bytes) -> list[Event]:
        """Bytes of the answer, an event stream. Raises AnswerTooLarge, ValueError for what is no completion."""
        events: list[Event] = []
        for event in self._splitter.feed(data):
            chunk = event_fields(event)[1]
            if chunk is not None and chunk != b"[DONE]":
                events += self.feed_chunk(chunk)
        return events

    def feed_chunk(self, data: bytes) -> list[Event]:
        """One chunk, or a whole completion. Raises like `feed`."""
        chunk = _chunks.decode(data)
        if chunk.error is not None:
            self.error = chunk.error
            return []
        events: list[Event] = []
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message
            if delta is not None and delta.content:
                events += self._write_text(delta.content)
            if delta is not None:
                for number, call in enumerate(delta.tool_calls or ()):
                    events += self._write_call(number if call.index is None else call.index, call)
            self._finish_reason = choice.finish_reason or self._finish_reason
        return events

    def complete(self, usage: Usage | None) -> list[Event]:
        """The answer has come to its end: what is still to be told."""
        reason = _INCOMPLETE.get(self._finish_reason or "")
        return self._end(Status.INCOMPLETE if reason else Status.COMPLETED, usage, reason=reason)

    def cancel(self, usage: Usage | None) -> list[Event]:
        """The client has taken it back."""
        return self._end(Status.CANCELLED, usage, reason="client_cancelled")

    def fail(self, error: dict[str, Any], usage: Usage | None) -> list[Event]:
        """It broke off; `error` is OpenAI's error object."""
        return self._end(Status.FAILED, usage, error={"type": error.get("type"), "code": error.get("code")})

    # Writing

    def _write_text(self, text: str) -> list[Event]:
        events: list[Event] = []
        writing = self._message
        if writing is None:
            writing, events = self._begin({"type": "message", "role": "assistant", "content": []}, "item_")
            self._message = writing
            part = {"type": "text", "text": ""}
            events.append(self._of("response.content_part.added", writing, content_index=0, part=part))
        self._take(writing, text)
        return [*events, self._of("response.output_text.delta", writing, content_index=0, delta=text)]

    def _write_call(self, index: int, call: _Call) -> list[Event]:
        events: list[Event] = []
        function = call.function or _Function()
        writing = self._calls.get(index)
        if writing is None:
            body = {
                "type": "function_call",
                "call_id": call.id or self._new_id("call_"),
                "name": function.name or "",
                "arguments": "",
            }
            writing, events = self._begin(body, "item_")
            self._calls[index] = writing
        elif function.name and not writing.item.body["name"]:
            writing.item.body["name"] = function.name
        if not function.arguments:
            return events
        self._take(writing, function.arguments)
        delta = self._of(
            "response.function_call_arguments.delta",
            writing,
            call_id=writing.item.body["call_id"],
            delta=function.arguments,
        )
        return [*events, delta]

    def _take(self, writing: _Writing, text: str) -> None:
        self._left_bytes -= len(text.encode())
        if self._left_bytes < 0:
            raise AnswerTooLarge
        writing.pieces.append(text)

    def _begin(self, members: dict[str, Any], prefix: str) -> tuple[_Writing, list[Event]]:
        body = {"id": self._new_id(prefix), "object": "realtime.item", **members, "status": "in_progress"}
        item = Item(body, size_of(body), open=True)
        writing = _Writing(item, len(self._items))
        self._items.append(writing)
        events = [self._output("response.output_item.added", writing)]
        if self._conversation_id is not None:
            before = self._add_item(item)
            events.append(self._event("conversation.item.added", previous_item_id=before, item=dict(body)))
        return writing, events

    # Ends

    def _end(
        self, status: Status, usage: Usage | None, *, reason: str | None = None, error: dict[str, Any] | None = None
    ) -> list[Event]:
        if self.status is not Status.IN_PROGRESS:
            return []
        self.status = status
        events: list[Event] = []
        for writing in self._items:
            events += self._close(writing, "completed" if status is Status.COMPLETED else "incomplete")
        details: dict[str, Any] = {"type": status.value}
        if reason is not None:
            details["reason"] = reason
        if error is not None:
            details["error"] = error
        events.append(self._event("response.done", response=self._shown(details, usage)))
        return events

    def _close(self, writing: _Writing, status: str) -> list[Event]:
        item, text = writing.item, "".join(writing.pieces)
        body = item.body
        body["status"] = status
        events: list[Event] = []
        if writing.is_call:
            body["arguments"] = text
            done = self._of(
                "response.function_call_arguments.done",
                writing,
                call_id=body["call_id"],
                name=body["name"],
                arguments=text,
            )
            events.append(done)
        else:
            body["content"] = [{"type": "output_text", "text": text}]
            events.append(self._of("response.output_text.done", writing, content_index=0, text=text))
            part = {"type": "text", "text": text}
            events.append(self._of("response.content_part.done", writing, content_index=0, part=part))
        item.size_bytes = size_of(body)
        item.open = False
        if self._conversation_id is not None:
            events.append(self._event("conversation.item.done", item=dict(body)))
        events.append(self._output("response.output_item.done", writing))
        return events

    # Events

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "event_id": self._new_id("event_"), **members}

    def _of(self, kind: str, writing: _Writing, **members: Any) -> Event:
        where = {"response_id": self.id, "item_id": writing.item.id, "output_index": writing.output_index}
        return self._event(kind, **where, **members)

    def _output(self, kind: str, writing: _Writing) -> Event:
        return self._event(kind, response_id=self.id, output_index=writing.output_index, item=dict(writing.item.body))

    def _shown(self, details: dict[str, Any] | None, usage: Usage | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": self.status.value,
            "status_details": details,
            "output": [dict(writing.item.body) for writing in self._items],
            "conversation_id": self._conversation_id,
            "output_modalities": ["text"],
            "max_output_tokens": self._options.max_output_tokens,
            "metadata": self._metadata,
            "usage": _shown_usage(usage),
        }


def _shown_usage(usage: Usage | None) -> dict[str, Any] | None:
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    taken, given = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "total_tokens": taken + given,
        "input_tokens": taken,
        "output_tokens": given,
        "input_token_details": {"text_tokens": taken, "audio_tokens": 0, "cached_tokens": usage.cached_tokens or 0},
        "output_token_details": {"text_tokens": given, "audio_tokens": 0},
    }
