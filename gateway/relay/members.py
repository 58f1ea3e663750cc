"""Top-level members of JSON objects by their place in the bytes, and changes of single values there.

msgspec checks the syntax of the whole body and yields the raw values; walking the top-level members
with their known lengths then gives offsets, in time linear in the body, without a Python step per
nested value.
"""

import re
from typing import Final

import msgspec

Span = tuple[int, int, int, int]
"""Key start, key end, value start, value end: bytes into the body, quotes of the key included."""

_MAX_MEMBERS: Final = 1024  # each costs Python steps: a body of a million would hold the loop for seconds
_LARGE_BYTES: Final = 1 << 18  # from here on a dictionary of all members would take longer than a walk

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_value = msgspec.json.Decoder(msgspec.Raw)
_trailing = re.compile(r"trailing characters \(byte (\d+)\)")
_string = msgspec.json.Decoder(str, strict=True)
# Possessive repeats: no backtracking, so a key of many megabytes costs no memory.
_KEY: Final = rb'[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\n\r]*+:[ \t\n\r]*+'
_first_member = re.compile(rb"[ \t\n\r]*+\{(?:" + _KEY + rb"|[ \t\n\r]*+\})", re.DOTALL)
_next_member = re.compile(rb"[ \t\n\r]*+(?:," + _KEY + rb"|\})", re.DOTALL)
_SPACE: Final = b" \t\n\r"


class MalformedJson(ValueError):
    """The bytes are not one JSON object; the message says why."""


class DuplicateMember(ValueError):
    """A top-level name occurs twice: engine and gateway could each believe another value."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name!r} is given twice")


def scan_members(body: bytes) -> dict[str, Span]:
    """Spans of the top-level members of the JSON object `body`, in order.

    Raises MalformedJson or DuplicateMember. msgspec keeps the last of two members with one name, so
    lengths are only believed after comparing the bytes: a duplicate then shows as a difference, as a
    value that is followed by neither comma nor brace, or as members left over.
    """
    if len(body) > _LARGE_BYTES:
        return _walk_members(body)
    try:
        raw_members = _members.decode(body)
    except msgspec.ValidationError as error:
        raise MalformedJson("it is not a JSON object") from error
    except msgspec.DecodeError as error:
        raise MalformedJson(str(error)) from error
    except RecursionError as error:
        raise MalformedJson("it is nested too deeply") from error
    if len(raw_members) > _MAX_MEMBERS:
        raise MalformedJson(f"it has more than {_MAX_MEMBERS} members")
    spans: dict[str, Span] = {}
    member = _first_member.match(body)
    next_member = _next_member.match
    for name, raw in raw_members.items():
        if member is None:  # the bytes before it were no value's end: a longer one of the same name
            raise DuplicateMember(next(reversed(spans), name))
        start = member.end()
        end = start + len(memoryview(raw))
        if not body.startswith(raw, start):
            raise DuplicateMember(name)
        key_start, key_end = member.span(1)
        spans[name] = (key_start, key_end, start, end)
        member = next_member(body, end)
    if member is None:
        raise DuplicateMember(next(reversed(spans), ""))
    if member[1] is not None:
        raise DuplicateMember(_string.decode(member[1]))
    return spans


def apply_edits(body: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """`body` with each (start, end, replacement) put in; the ranges must not overlap."""
    if not edits:
        return body
    parts: list[bytes] = []
    position = 0
    for start, end, replacement in sorted(edits):
        parts.append(body[position:start])
        parts.append(replacement)
        position = end
    parts.append(body[position:])
    return b"".join(parts)


def _walk_members(body: bytes) -> dict[str, Span]:
    """`scan_members` member by member: of a body of a million members only the first ones are looked at."""
    spans: dict[str, Span] = {}
    member = _first_member.match(body)
    if member is None:
        raise _malformed(body)
    while member[1] is not None:
        if len(spans) >= _MAX_MEMBERS:
            raise MalformedJson(f"it has more than {_MAX_MEMBERS} members")
        try:
            name = _string.decode(member[1])
        except msgspec.DecodeError:
            raise _malformed(body) from None
        if name in spans:
            raise DuplicateMember(name)
        end = _value_end(body, member.end())
        spans[name] = (*member.span(1), member.end(), end)
        member = _next_member.match(body, end)
        if member is None:
            raise _malformed(body)
    if body[member.end() :].strip(_SPACE):
        raise _malformed(body)
    return spans


def _value_end(body: bytes, start: int) -> int:
    """Where the value ends that begins at `start`. Raises MalformedJson.

    msgspec says where a value ends by what it calls trailing.
    """
    try:
        _any_value.decode(memoryview(body)[start:])
    except msgspec.DecodeError as error:
        trailing = _trailing.search(str(error))
        if trailing is None:
            raise _malformed(body) from None
        end = start + int(trailing[1]) - 1  # it counts the byte that it does not like
        while body[end - 1] in _SPACE:
            end -= 1
        return end
    except RecursionError as error:
        raise MalformedJson("it is nested too deeply") from error
    raise _malformed(body)  # a value up to the body's end: the object is not closed


def _malformed(body: bytes) -> MalformedJson:
    """Why this is no JSON object."""
    try:
        _any_value.decode(body)
    except msgspec.DecodeError as error:
        return MalformedJson(str(error))
    except RecursionError:
        return MalformedJson("it is nested too deeply")
    return MalformedJson("it is not a JSON object")
