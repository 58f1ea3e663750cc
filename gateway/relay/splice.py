"""Reading a request body once, and changing single top-level values of it at byte offsets.

Bodies are never decoded and encoded again: whatever the gateway does not know passes byte for byte.
msgspec checks the syntax of the whole body and yields the raw values; walking the top-level members
with their known lengths then gives offsets, in time linear in the body, without a Python step per
nested value.
"""

import codecs
import re
from typing import Final, NoReturn

import msgspec

from core.errors import InvalidRequest
from gateway.relay.plan import Api, ParsedBody

Span = tuple[int, int, int, int]
"""Key start, key end, value start, value end: bytes into the body, quotes of the key included."""

_MAX_CHOICES: Final = 128
_MAX_TOKENS: Final = 2**31 - 1
_UTF8_STEP: Final = 1 << 16

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str, strict=True)
_integer = msgspec.json.Decoder(int, strict=True)
# Possessive repeats: no backtracking, so a key of many megabytes costs no memory.
_key = re.compile(rb'[ \t\n\r]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_after_value = re.compile(rb"[ \t\n\r]*([,}])")
_open = re.compile(rb"[ \t\n\r]*\{")
_empty_array = re.compile(rb"\[[ \t\n\r]*\]")


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
    try:
        raw_members = _members.decode(body)
    except msgspec.ValidationError as error:
        raise MalformedJson("it is not a JSON object") from error
    except msgspec.DecodeError as error:
        raise MalformedJson(str(error)) from error
    except RecursionError as error:
        raise MalformedJson("it is nested too deeply") from error
    spans: dict[str, Span] = {}
    opening = _open.match(body)
    if opening is None:  # msgspec saw an object, so there is a brace
        raise MalformedJson("it is not a JSON object")
    position = opening.end()
    match_key, match_after = _key.match, _after_value.match
    for name, raw in raw_members.items():
        key = match_key(body, position)
        if key is None:
            raise MalformedJson("its members cannot be told apart")
        start = key.end()
        end = start + len(memoryview(raw))
        after = match_after(body, end)
        if after is None or not body.startswith(raw, start):
            raise DuplicateMember(name)
        spans[name] = (key.start(1), key.end(1), start, end)
        position = after.end()
    if body[position - 1] == ord(","):
        repeated = match_key(body, position)
        raise DuplicateMember(_string.decode(repeated[1]) if repeated else "a member")
    return spans


def parse_body(api: Api, body: bytes) -> ParsedBody:
    """What the gateway needs to know of a chat or completions body.

    Raises InvalidRequest with `param` naming the member at fault. Members that are not listed here
    are not looked at: engines differ in what they know.
    """
    _check_utf8(body)
    try:
        spans = scan_members(body)
    except DuplicateMember as error:
        raise InvalidRequest(f"The body is not valid: {error}.", param=error.name) from error
    except MalformedJson as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    if api is Api.CHAT:
        _check_messages(_value(body, spans, "messages"))
    else:
        _check_prompt(_value(body, spans, "prompt"))
    stream = _boolean("stream", _value(body, spans, "stream"))
    include_usage = _include_usage(_value(body, spans, "stream_options"))
    limits = [
        limit
        for name in ("max_tokens", "max_completion_tokens")
        if (limit := _count(name, _value(body, spans, name), minimum=0, maximum=_MAX_TOKENS)) is not None
    ]
    return ParsedBody(
        model=_model(_value(body, spans, "model")),
        stream=stream,
        include_usage=stream and include_usage,
        n=_count("n", _value(body, spans, "n"), minimum=1, maximum=_MAX_CHOICES) or 1,
        max_tokens=max(limits, default=None),  # engines differ in which one wins: the larger is a bound
        spans=spans,
    )


def splice(body: bytes, parsed: ParsedBody, *, served_name: str) -> bytes:
    """The body for the engine: its own model name, and for streams usage asked for.

    Everything else stays byte for byte as the client wrote it.
    """
    edits: list[tuple[int, int, bytes]] = []
    if parsed.model != served_name:
        start, end = parsed.spans["model"][2:]
        edits.append((start, end, msgspec.json.encode(served_name)))
    if parsed.stream and not parsed.include_usage:
        edits.append(_ask_for_usage(body, parsed.spans.get("stream_options")))
    return apply_edits(body, edits)


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


def _ask_for_usage(body: bytes, span: Span | None) -> tuple[int, int, bytes]:
    if span is None:
        inside = body.index(b"{") + 1
        return inside, inside, b'"stream_options":{"include_usage":true},'
    start, end = span[2:]
    options = body[start:end]
    if options == b"null":
        return start, end, b'{"include_usage":true}'
    members = scan_members(options)
    asked = members.get("include_usage")
    if asked is not None:
        return start + asked[2], start + asked[3], b"true"
    return start + 1, start + 1, b'"include_usage":true' + (b"," if members else b"")


def _value(body: bytes, spans: dict[str, Span], name: str) -> bytes | None:
    """The raw value of a member; None where it is missing or null."""
    span = spans.get(name)
    if span is None:
        return None
    value = body[span[2] : span[3]]
    return None if value == b"null" else value


def _refuse(param: str, problem: str) -> NoReturn:
    raise InvalidRequest(f"Invalid value for '{param}': {problem}.", param=param)


def _model(value: bytes | None) -> str:
    if value is None:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    try:
        name = _string.decode(value)
    except msgspec.DecodeError:
        _refuse("model", "expected a string")
    if not name:
        _refuse("model", "it is empty")
    return name


def _check_messages(value: bytes | None) -> None:
    if value is None:
        raise InvalidRequest("Missing required parameter: 'messages'.", param="messages")
    if not value.startswith(b"["):
        _refuse("messages", "expected an array")
    if _empty_array.match(value):
        _refuse("messages", "expected at least one message")


def _check_prompt(value: bytes | None) -> None:
    if value is None:
        raise InvalidRequest("Missing required parameter: 'prompt'.", param="prompt")
    if value[:1] not in b'"[':
        _refuse("prompt", "expected a string or an array")


def _boolean(param: str, value: bytes | None) -> bool:
    if value is None or value == b"false":
        return False
    if value != b"true":
        _refuse(param, "expected true or false")
    return True


def _count(param: str, value: bytes | None, *, minimum: int, maximum: int) -> int | None:
    if value is None:
        return None
    try:
        number = _integer.decode(value)
    except msgspec.DecodeError:
        _refuse(param, "expected an integer")
    if not minimum <= number <= maximum:
        _refuse(param, f"expected at least {minimum} and at most {maximum}")
    return number


def _include_usage(value: bytes | None) -> bool:
    if value is None:
        return False
    if not value.startswith(b"{"):
        _refuse("stream_options", "expected an object")
    try:
        members = scan_members(value)
    except DuplicateMember as error:
        _refuse("stream_options", str(error))
    return _boolean("stream_options.include_usage", _value(value, members, "include_usage"))


def _check_utf8(body: bytes) -> None:
    """Raises InvalidRequest when `body` is not UTF-8: msgspec does not look inside what it skips."""
    if body.isascii():
        return
    try:
        if len(body) <= _UTF8_STEP:
            body.decode()
            return
        # Step by step: the text of a large body would take up to four times its bytes.
        decoder = codecs.getincrementaldecoder("utf-8")()
        for start in range(0, len(body), _UTF8_STEP):
            decoder.decode(body[start : start + _UTF8_STEP])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not valid UTF-8.") from error
