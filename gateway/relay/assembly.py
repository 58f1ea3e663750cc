"""What a model said, put together from what a client was told: whole, or event by event, in either dialect.

OpenAI's chat and completions, and Anthropic's messages. Bounded: what is said beyond `most_bytes` is left out.
"""

from typing import Any, Final

import msgspec

from gateway.relay.plan import Api
from gateway.relay.sse import EventSplitter, EventTooLarge, event_fields

_Json = dict[str, Any]
_objects: Final = msgspec.json.Decoder(_Json)
_OF_ANOTHER_SHAPE: Final = (ValueError, RecursionError, KeyError, AttributeError, TypeError)
"""What reading an answer raises that is not ours."""
_FOLD_BYTES: Final = 16 * 1024
"""Events are gathered up to this size, and read then: a few hundred at once cost less than one by one."""


class Assembly:
    """One answer. `add` is cheap; `messages` tells what was said: for each choice the message."""

    def __init__(self, api: Api, *, streamed: bool, most_bytes: int) -> None:
        self.truncated = False
        """More was said than is kept, or it could not be read."""
        self._anthropic = api is Api.MESSAGES
        self._streamed = streamed
        self._most = self._left = most_bytes
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._splitter = EventSplitter(most_bytes)
        self._choices: dict[int, _Merged] = {}

    @property
    def held_bytes(self) -> int:
        """About what is held: what is not read yet, and of what is read the texts."""
        return self._pending_bytes + self._most - max(0, self._left)

    def add(self, told: bytes) -> None:
        """The next bytes that the client was told; any size."""
        if self.truncated:
            return
        if not self._streamed and self._pending_bytes + len(told) > 4 * self._left:
            self._cut()
            return
        self._pending.append(told)
        self._pending_bytes += len(told)
        if self._streamed and self._pending_bytes > _FOLD_BYTES:
            self._fold()

    def messages(self) -> list[_Json]:
        """What was said so far, plain JSON values."""
        if self._streamed:
            self._fold()
        elif self._pending:
            self._read_whole(b"".join(self._pending))
            self._pending.clear()
        return [self._choices[index].message() for index in sorted(self._choices)]

    def _fold(self) -> None:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        try:
            events = self._splitter.feed(data)
        except EventTooLarge:
            self._cut()
            return
        for event in events:
            said = event_fields(event)[1]
            if said is None or said == b"[DONE]" or self.truncated:
                continue
            try:
                self._read_event(_objects.decode(said))
            except _OF_ANOTHER_SHAPE:
                self.truncated = True

    def _read_event(self, event: _Json) -> None:
        if self._anthropic:
            self._read_anthropic(event)
            return
        for choice in event.get("choices") or ():
            merged = self._choice(choice.get("index") or 0)
            delta = choice.get("delta")
            self._merge(merged, {"content": choice.get("text")} if delta is None else delta)
            if choice.get("finish_reason") is not None:
                merged.finish_reason = choice["finish_reason"]

    def _read_anthropic(self, event: _Json) -> None:
        kind = event.get("type")
        if kind == "content_block_start":
            block = dict(event["content_block"])
            self._choice(0).block(event["index"], block)
        elif kind == "content_block_delta":
            delta = event["delta"]
            for name in ("text", "thinking", "partial_json"):
                if isinstance(piece := delta.get(name), str) and self._room(piece):
                    self._choice(0).block(event["index"], {}).add("input" if name == "partial_json" else name, piece)
        elif kind == "message_delta":
            self._choice(0).finish_reason = event["delta"].get("stop_reason")

    def _read_whole(self, body: bytes) -> None:
        try:
            answer = _objects.decode(body)
            choices: list[_Json]
            if self._anthropic:
                choices = [{"message": {"content": answer["content"]}, "finish_reason": answer.get("stop_reason")}]
            else:
                choices = answer["choices"]
            if not self._room(body):
                return
            for position, choice in enumerate(choices):
                merged = self._choice(choice.get("index", position))
                merged.fixed = dict(choice.get("message") or {"content": choice.get("text")})
                merged.finish_reason = choice.get("finish_reason")
        except _OF_ANOTHER_SHAPE:
            self.truncated = True

    def _choice(self, index: int) -> "_Merged":
        return self._choices.setdefault(_checked(index), _Merged())

    def _merge(self, merged: "_Merged", delta: _Json) -> None:
        for name, piece in delta.items():
            if name == "tool_calls":
                for call in piece or ():
                    known = merged.block(call.get("index") or 0, {})
                    known.fixed |= {key: call[key] for key in ("id", "type") if call.get(key)}
                    function = call.get("function") or {}
                    if function.get("name"):
                        known.fixed["name"] = function["name"]
                    if isinstance(said := function.get("arguments"), str) and self._room(said):
                        known.add("arguments", said)
            elif name != "role" and isinstance(piece, str) and piece and self._room(piece):
                merged.add(name, piece)

    def _room(self, said: str | bytes) -> bool:
        self._left -= len(said)
        if self._left < 0:
            self._cut()
        return not self.truncated

    def _cut(self) -> None:
        self.truncated = True
        self._pending.clear()
        self._pending_bytes = 0


class _Merged:
    """A message, or a part of one, that comes in pieces."""

    __slots__ = ("_blocks", "_pieces", "finish_reason", "fixed")

    def __init__(self) -> None:
        self.fixed: _Json = {}
        self.finish_reason: str | None = None
        self._pieces: dict[str, list[str]] = {}
        self._blocks: dict[int, _Merged] = {}

    def add(self, name: str, piece: str) -> None:
        self._pieces.setdefault(name, []).append(piece)

    def block(self, index: int, fixed: _Json) -> "_Merged":
        block = self._blocks.setdefault(_checked(index), _Merged())
        block.fixed |= fixed
        return block

    def message(self) -> _Json:
        said: _Json = {"role": "assistant", **self.fixed}
        said |= self._own()
        if self._blocks:
            said["parts"] = [{**block.fixed, **block._own()} for _, block in sorted(self._blocks.items())]
        if self.finish_reason is not None:
            said["finish_reason"] = self.finish_reason
        return said

    def _own(self) -> _Json:
        return {name: "".join(pieces) for name, pieces in self._pieces.items()}


def _checked(index: Any) -> int:
    """Raises TypeError for what could not be sorted among numbers."""
    if not isinstance(index, int):
        raise TypeError("an index is a whole number")
    return index
