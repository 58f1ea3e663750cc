"""Parallel tool calls that an engine sends all under one index.

Clients put the pieces of a streamed call together by its index. Some engines always say 0; their calls can still
be told apart, because a call begins with an id and a name. So a new id and a name under an index that is in use open
a new call, and only that number in the event is changed, at its byte offset. A new id alone does not: some engines
make one up for each piece. Streams that are in order pass byte for byte.
"""

from typing import Final

import msgspec

from gateway.relay.members import DuplicateMember, MalformedJson, apply_edits, scan_members
from gateway.relay.sse import with_data

_SPACE: Final = b" \t\n\r,"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None

    @property
    def named(self) -> bool:
        return self.function is not None and bool(self.function.name)


class _Delta(msgspec.Struct, gc=False):
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None


_chunks = msgspec.json.Decoder(_Chunk)
_elements = msgspec.json.Decoder(list[msgspec.Raw])


class _Calls:
    """The calls of one choice: which of the client's indexes each of the engine's means now."""

    __slots__ = ("_by_id", "_present", "_used")

    def __init__(self) -> None:
        self._by_id: dict[tuple[int, str], int] = {}
        self._present: dict[int, tuple[int, bool]] = {}  # engine's index -> (client's index, has an id)
        self._used: set[int] = set()

    def place(self, index: int, identity: str | None, *, named: bool) -> int:
        """The client's index of a piece that came under `index`; `named`: it says a function's name."""
        present = self._present.get(index)
        if identity:
            known = self._by_id.get((index, identity))
            if known is None and present is not None and present[1] and not named:
                return present[0]
            if known is None:
                known = self._open(index) if present is None or present[1] else present[0]
                self._by_id[index, identity] = known
            self._present[index] = (known, True)
            return known
        if present is None:
            present = self._present[index] = (self._open(index), False)
        return present[0]

    def _open(self, index: int) -> int:
        place = max(self._used) + 1 if index in self._used else index
        self._used.add(place)
        return place


class CallIndexes:
    """Puts the indexes of one stream's tool calls right."""

    __slots__ = ("_choices",)

    def __init__(self) -> None:
        self._choices: dict[int, _Calls] = {}

    def put_right(self, event: bytes, data: bytes) -> tuple[bytes, bytes]:
        """An event and its data, with other indexes where they must be; the very same objects where not."""
        try:
            chunk = _chunks.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return event, data  # not in a shape that is known: between client and engine
        changes: dict[tuple[int, int], int] = {}  # (place of the choice, place of the call) -> index
        for number, choice in enumerate(chunk.choices or ()):
            for position, call in enumerate((choice.delta and choice.delta.tool_calls) or ()):
                if call.index is None:
                    continue
                place = self._choices.setdefault(choice.index, _Calls()).place(call.index, call.id, named=call.named)
                if place != call.index:
                    changes[number, position] = place
        if not changes:
            return event, data
        edited = _with_indexes(data, changes)
        return (event.replace(data, edited, 1) if data in event else with_data(event, edited)), edited


def _with_indexes(data: bytes, changes: dict[tuple[int, int], int]) -> bytes:
    edits: list[tuple[int, int, bytes]] = []
    try:
        choices = _array(data, *_member(data, 0, len(data), "choices"))
        for (number, position), index in changes.items():
            delta = _member(data, *choices[number], "delta")
            calls = _array(data, *_member(data, *delta, "tool_calls"))
            start, end = _member(data, *calls[position], "index")
            edits.append((start, end, b"%d" % index))
    except (DuplicateMember, MalformedJson):
        return data
    return apply_edits(data, edits)


def _member(data: bytes, start: int, end: int, name: str) -> tuple[int, int]:
    """Where the value of this member is, of the object at these offsets."""
    span = scan_members(data[start:end])[name]
    return start + span[2], start + span[3]


def _array(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Where the elements are of the array at these offsets."""
    spans: list[tuple[int, int]] = []
    position = start + 1
    for raw in _elements.decode(data[start:end]):
        while data[position] in _SPACE:
            position += 1
        spans.append((position, position + len(memoryview(raw))))
        position = spans[-1][1]
    return spans
