"""Reading a request body once, and changing single top-level values of it at byte offsets.

Bodies are never decoded and encoded again: whatever the gateway does not know passes byte for byte.
"""

import codecs
import re
from typing import Final, NoReturn

import msgspec

from core.errors import InvalidRequest
from gateway.relay.members import DuplicateMember, MalformedJson, Span, apply_edits, scan_members
from gateway.relay.plan import Api, ParsedBody

MAX_CHOICES: Final = 128
"""Most answers to one prompt."""

LLAMACPP_MAX: Final = "n_predict"
"""What llama.cpp reads the end of an answer from before it looks at OpenAI's members; others pass it over."""

_ANSWER_ENDS: Final = ("max_tokens", "max_completion_tokens", LLAMACPP_MAX)

_MAX_TOKENS: Final = 2**31 - 1
_UTF8_STEP: Final = 1 << 16
_NEVER_STREAMED: Final = frozenset({Api.EMBEDDINGS, Api.RERANK, Api.TOKENIZE})

_string = msgspec.json.Decoder(str, strict=True)
_integer = msgspec.json.Decoder(int, strict=True)
_empty_array = re.compile(rb"\[[ \t\n\r]*\]")
_prompt = re.compile(rb'"|\[[ \t\n\r]*+["\[0-9]')  # a text, or texts, tokens, or lists of tokens
_fault_place = re.compile(r" - at `\$(.*)`$")
_missing_field = re.compile(r"missing required field `(\w+)`")


class _Message(msgspec.Struct, gc=False):
    """What every engine wants of a message; the rest is between client and engine."""

    role: str


_messages = msgspec.json.Decoder(list[_Message])


def parse_body(api: Api, body: bytes) -> ParsedBody:
    """What the gateway needs to know of a body in OpenAI's words (chat, completions, embeddings, rerank, tokenize).

    Raises InvalidRequest with `param` naming the member at fault. Members that are not listed here
    are not looked at: engines differ in what they know.
    """
    check_utf8(body)
    try:
        spans = scan_members(body)
    except DuplicateMember as error:
        raise InvalidRequest(f"The body is not valid: {error}.", param=error.name) from error
    except MalformedJson as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
    find = spans.get
    _check_input(api, body, spans)
    if api in _NEVER_STREAMED:
        return ParsedBody(
            _model(body, find("model")), stream=False, include_usage=False, n=1, max_tokens=0, spans=spans
        )
    stream = _boolean("stream", _value(body, span)) if (span := find("stream")) else False
    include_usage = _include_usage(_value(body, span)) if (span := find("stream_options")) else False
    n = _count("n", _value(body, span), 1, MAX_CHOICES) if (span := find("n")) else None
    limit = _count("max_tokens", _value(body, span), 0, _MAX_TOKENS) if (span := find("max_tokens")) else None
    if span := find("max_completion_tokens"):
        other = _count("max_completion_tokens", _value(body, span), 0, _MAX_TOKENS)
        # Engines differ in which of the two wins; the larger one is a bound.
        limit = other if limit is None else limit if other is None else max(limit, other)
    return ParsedBody(
        model=_model(body, find("model")),
        stream=stream,
        include_usage=stream and include_usage,
        n=n or 1,
        max_tokens=limit,
        spans=spans,
    )


def _check_input(api: Api, body: bytes, spans: dict[str, Span]) -> None:
    match api:
        case Api.CHAT:
            _check_messages(body, spans.get("messages"))
        case Api.COMPLETIONS:
            _check_texts("prompt", body, spans)
        case Api.EMBEDDINGS:
            _check_texts("input", body, spans)
        case Api.RERANK:
            _check_texts("query", body, spans)
            if not body.startswith(b"[", _required("documents", body, spans)[2]):
                _refuse("documents", "expected an array")
        case Api.TOKENIZE if "messages" in spans:
            _check_messages(body, spans["messages"])
        case Api.TOKENIZE:
            _check_texts("prompt", body, spans)
        case _:
            raise ValueError(f"{api} is not in OpenAI's words")


def splice(
    body: bytes,
    parsed: ParsedBody,
    *,
    served_name: str,
    most_tokens: int | None = None,
    cap_member: str = "max_tokens",
) -> bytes:
    """The body for the engine: its own model name, and for streams usage asked for.

    With `most_tokens` its answers get that end where the client gave none, or a later one; as `cap_member` where it
    named none. Everything else stays byte for byte as the client wrote it.
    """
    span = parsed.spans.get("model")
    if span is None:  # its address names it
        return body
    _, _, start, end = span
    name = msgspec.json.encode(served_name) if parsed.model != served_name else body[start:end]
    if most_tokens is not None:
        edits = _cap_answers(body, parsed, most_tokens, cap_member)
        if not edits:
            return splice(body, parsed, served_name=served_name)
        edits.append((start, end, name))
        if parsed.stream and not parsed.include_usage:
            edits.append(_ask_for_usage(body, parsed.spans.get("stream_options")))
        return apply_edits(body, edits)
    if parsed.stream and not parsed.include_usage:
        usage = _ask_for_usage(body, parsed.spans.get("stream_options"))
        return apply_edits(body, [(start, end, name), usage])
    return b"".join((body[:start], name, body[end:]))


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


def _cap_answers(body: bytes, parsed: ParsedBody, most_tokens: int, member: str) -> list[tuple[int, int, bytes]]:
    told = b"%d" % most_tokens
    edits: list[tuple[int, int, bytes]] = []
    for name in _ANSWER_ENDS:
        span = parsed.spans.get(name)
        if span is None:
            continue
        try:
            number = _integer.decode(body[span[2] : span[3]])
        except msgspec.DecodeError:
            number = -1  # null, or what only the engine that it is meant for can read
        if not 0 <= number <= most_tokens:
            edits.append((span[2], span[3], told))
    # An engine that is told the end under the old name only may not know the new one.
    if member not in parsed.spans and "max_tokens" not in parsed.spans:
        inside = body.index(b"{") + 1
        edits.append((inside, inside, b'"%b":%b,' % (member.encode(), told)))
    return edits


def _value(body: bytes, span: Span) -> bytes | None:
    """The raw value of a member; None for null."""
    value = body[span[2] : span[3]]
    return None if value == b"null" else value


def _refuse(param: str, problem: str) -> NoReturn:
    raise InvalidRequest(f"Invalid value for '{param}': {problem}.", param=param)


def _model(body: bytes, span: Span | None) -> str:
    value = _value(body, span) if span else None
    if value is None:
        raise InvalidRequest("Missing required parameter: 'model'.", param="model")
    try:
        name = _string.decode(value)
    except msgspec.DecodeError:
        _refuse("model", "expected a string")
    if not name:
        _refuse("model", "it is empty")
    return name


def _check_messages(body: bytes, span: Span | None) -> None:
    if span is None or body.startswith(b"null", span[2]):
        raise InvalidRequest("Missing required parameter: 'messages'.", param="messages")
    if not body.startswith(b"[", span[2]):
        _refuse("messages", "expected an array")
    if _empty_array.match(body, span[2]):
        _refuse("messages", "expected at least one message")
    try:
        _messages.decode(memoryview(body)[span[2] : span[3]])
    except msgspec.DecodeError as error:
        _refuse_message(str(error))
    except RecursionError:
        _refuse("messages", "it is nested too deeply")


def _refuse_message(fault: str) -> NoReturn:
    """`fault` is msgspec's, as "Expected `str`, got `int` - at `$[1].role`"."""
    place = _fault_place.search(fault)
    param = f"messages{place[1] if place else ''}"
    if missing := _missing_field.search(fault):
        param = f"{param}.{missing[1]}"
        raise InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    _refuse(param, "expected a string" if param.endswith(".role") else "expected an object")


def _required(name: str, body: bytes, spans: dict[str, Span]) -> Span:
    span = spans.get(name)
    if span is None or body.startswith(b"null", span[2]):
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name)
    return span


def _check_texts(name: str, body: bytes, spans: dict[str, Span]) -> None:
    if not _prompt.match(body, _required(name, body, spans)[2]):
        _refuse(name, "expected a string, or an array of strings or tokens")


def _boolean(param: str, value: bytes | None) -> bool:
    if value is None or value == b"false":
        return False
    if value != b"true":
        _refuse(param, "expected true or false")
    return True


def _count(param: str, value: bytes | None, minimum: int, maximum: int) -> int | None:
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
    except (DuplicateMember, MalformedJson) as error:
        _refuse("stream_options", str(error))
    span = members.get("include_usage")
    return _boolean("stream_options.include_usage", _value(value, span)) if span else False


def check_utf8(body: bytes) -> None:
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
