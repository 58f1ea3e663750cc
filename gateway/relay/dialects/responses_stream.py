"""A streamed chat as the events of the Responses API.

Each piece of output is an open item that grows, and is closed when the model goes on to something else; calls of
functions may grow side by side and are closed at the end. Source: OpenAI's API reference, "Streaming events".
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from core.errors import GatehouseError
from gateway.relay.dialects.responses_answer import (
    ChatUsage,
    Choice,
    Frame,
    Function,
    Said,
    ToolCall,
    call_item,
    call_name,
    completions,
    final_status,
    message_item,
    reasoning_item,
    refusal_part,
    text_part,
)
from gateway.relay.dialects.responses_items import item_id
from gateway.relay.sse import event_fields

Finish = Callable[[list[dict[str, Any]], str | None, ChatUsage | None], Awaitable[dict[str, Any]]]
"""Output items, why it ended, usage -> the response object, kept as far as it is to be kept."""

_REASONING: Final = "reasoning_text"
_TEXT: Final = "output_text"
_REFUSAL: Final = "refusal"


class _Events:
    """Writes events, numbered one after the other."""

    def __init__(self) -> None:
        self.next_number = 0
        self._written: list[bytes] = []

    def add(self, kind: str, **members: Any) -> None:
        event = {"type": kind, **members, "sequence_number": self.next_number}
        self.next_number += 1
        self._written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode(event)))

    def take(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written


class _TextItem:
    """Thoughts, or a message: one item with one growing part."""

    def __init__(self, events: _Events, index: int, response_id: UUID, kind: str) -> None:
        self.kind = kind
        self._events = events
        self._index = index
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._id = item_id("reasoning" if kind == _REASONING else "message", response_id, f"o{index}")
        self._events.add("response.output_item.added", output_index=index, item=self._item("in_progress", []))
        self._add("response.content_part.added", part=self._part("", []))

    def grow(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._pieces.append(text)
        self._logprobs.extend(logprobs)
        self._add(f"response.{self.kind}.delta", delta=text, **self._with(logprobs))

    def close(self, status: str) -> dict[str, Any]:
        """The events that end it; returns the whole item."""
        text = "".join(self._pieces)
        part = self._part(text, self._logprobs)
        told: dict[str, Any] = {"refusal" if self.kind == _REFUSAL else "text": text}
        self._add(f"response.{self.kind}.done", **told, **self._with(self._logprobs))
        self._add("response.content_part.done", part=part)
        item = self._item("completed" if self.kind == _REASONING else status, [part])
        self._events.add("response.output_item.done", output_index=self._index, item=item)
        return item

    def _add(self, event: str, **members: Any) -> None:
        self._events.add(event, item_id=self._id, output_index=self._index, content_index=0, **members)

    def _with(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": logprobs} if self.kind == _TEXT else {}

    def _part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if self.kind == _REASONING:
            return {"type": "reasoning_text", "text": text}
        return refusal_part(text) if self.kind == _REFUSAL else text_part(text, logprobs)

    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        if self.kind == _REASONING:
            return reasoning_item(self._id, parts[0]["text"] if parts else None, status)
        return message_item(self._id, parts, status)


class _CallItem:
    """A call of a function; told from when its name is known."""

    def __init__(self, events: _Events, index: int, response_id: UUID) -> None:
        self._events = events
        self._index = index
        self._id = item_id("function_call", response_id, f"o{index}")
        self._call_id = call_name(response_id, index)
        self._name = ""
        self._told = False
        self._pieces: list[str] = []

    def grow(self, call: ToolCall) -> None:
        function = call.function or Function()
        if not self._told:
            self._call_id = call.id or self._call_id
            self._name += function.name or ""
        if function.arguments:
            self._pieces.append(function.arguments)
        if self._told:
            self._tell(function.arguments or "")
        elif self._name:
            self._begin()

    def close(self, status: str) -> dict[str, Any]:
        """The events that end it; returns the whole item."""
        if not self._told:
            self._begin()
        arguments = "".join(self._pieces)
        self._events.add(
            "response.function_call_arguments.done",
            item_id=self._id,
            output_index=self._index,
            name=self._name,
            arguments=arguments,
        )
        item = self._item(arguments, status)
        self._events.add("response.output_item.done", output_index=self._index, item=item)
        return item

    def _begin(self) -> None:
        self._told = True
        self._events.add("response.output_item.added", output_index=self._index, item=self._item("", "in_progress"))
        self._tell("".join(self._pieces))

    def _tell(self, delta: str) -> None:
        if delta:
            self._events.add(
                "response.function_call_arguments.delta", item_id=self._id, output_index=self._index, delta=delta
            )

    def _item(self, arguments: str, status: str) -> dict[str, Any]:
        return call_item(self._id, self._call_id, self._name, arguments, status)


class ResponsesStream:
    """One attempt at a streamed answer; see gateway.relay.plan.DialectStream."""

    def __init__(self, frame: Frame, finish: Finish) -> None:
        self._frame = frame
        self._finish = finish
        self._events = _Events()
        self._output: list[dict[str, Any] | None] = []  # None: an item that is open
        self._open: tuple[int, _TextItem] | None = None
        self._calls: dict[int, tuple[int, _CallItem]] = {}
        self._finish_reason: str | None = None
        self._usage: ChatUsage | None = None
        self._begun = False

    def feed(self, event: bytes) -> bytes:
        """Raises ValueError for a chunk of another shape."""
        data = event_fields(event)[1]
        if data is None:
            return event  # a comment
        chunk = completions.decode(data)
        self._begin()
        if chunk.usage is not None:
            self._usage = chunk.usage
        for choice in chunk.choices:
            if choice.index == 0:
                self._take(choice)
        return self._events.take()

    async def finish(self) -> bytes:
        self._begin()
        status = final_status(self._finish_reason)
        if not self._output:
            self._text_item(_TEXT)  # an answer without anything is an empty message
        self._close_text(status)
        for index, call in self._calls.values():
            self._output[index] = call.close(status if index == len(self._output) - 1 else "completed")
        output = [item for item in self._output if item is not None]
        response = await self._finish(output, self._finish_reason, self._usage)
        self._events.add(f"response.{status}", response=response)
        return self._events.take()

    def error_event(self, error: GatehouseError) -> bytes:
        """An error after what has been told."""
        return error_event(error, self._events)

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        for kind in ("response.created", "response.in_progress"):
            self._events.add(kind, response=self._frame.response("in_progress", []))

    def _take(self, choice: Choice) -> None:
        said = choice.delta or Said()
        if said.thought:
            self._text_item(_REASONING).grow(said.thought, [])
        logprobs = (choice.logprobs.content if choice.logprobs else None) or []
        if said.content:
            self._text_item(_TEXT).grow(said.content, logprobs)
        if said.refusal:
            self._text_item(_REFUSAL).grow(said.refusal, [])
        for call in said.tool_calls or ():
            self._call(call)
        self._finish_reason = choice.finish_reason or self._finish_reason

    def _text_item(self, kind: str) -> _TextItem:
        if self._open is not None and self._open[1].kind == kind:
            return self._open[1]
        self._close_text("completed")
        index = len(self._output)
        self._output.append(None)
        item = _TextItem(self._events, index, self._frame.id, kind)
        self._open = (index, item)
        return item

    def _close_text(self, status: str) -> None:
        if self._open is not None:
            index, item = self._open
            self._output[index] = item.close(status)
            self._open = None

    def _call(self, call: ToolCall) -> None:
        self._close_text("completed")
        known = self._calls.get(call.index)
        if known is None:
            index = len(self._output)
            self._output.append(None)
            known = self._calls[call.index] = (index, _CallItem(self._events, index, self._frame.id))
        known[1].grow(call)


def error_event(error: GatehouseError, events: _Events | None = None) -> bytes:
    """An error in a stream; without `events`, one in which nothing was told."""
    events = events or _Events()
    events.add("error", code=error.code, message=error.message, param=error.param)
    return events.take()
