"""Reads out of a body in OpenAI's words how much it can use at most; see gateway.policies.bounds."""

from typing import Final

import msgspec

from core.errors import InvalidRequest
from gateway.policies.bounds import Size
from gateway.relay.members import Span
from gateway.relay.plan import Api, ParsedBody, Work
from gateway.relay.splice import LLAMACPP_MAX, MAX_CHOICES

_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning"})
_STRING, _ARRAY, _OBJECT = b'"[{'
_TEXTS: Final = frozenset({_STRING, _ARRAY, _OBJECT})
_CHOICES: Final = ("best_of", "n_cmpl")  # engines' own words for more answers than are told
_VECTORS: Final = "prompt_embeds"  # vLLM's; each has more bytes than tokens
_TOOLS: Final = ("tools", "functions")
_SELDOM: Final = frozenset({"chat_template", LLAMACPP_MAX, *_CHOICES, *_TOOLS})
_RERANK_TOKENS: Final = 128
"""What templates of rerankers write around each pair of query and document."""


class _Message(msgspec.Struct, gc=False):
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct, gc=False):
    type: str = ""


_messages = msgspec.json.Decoder(list[_Message])
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_part = msgspec.json.Decoder(_Part)
_integer = msgspec.json.Decoder(int, strict=True)


def measure(work: Work) -> Size:
    """Raises InvalidRequest where a member that says how much is wanted makes no sense."""
    parsed, body = work.parsed, work.body
    match work.api:
        case Api.TOKENIZE:
            return Size(0)  # nothing is computed
        case Api.INFER:
            return Size(len(body))
        case Api.EMBEDDINGS:
            texts, media = _texts(body, parsed.spans.get("input"))
            return Size(len(body), prompts=texts, media=media)
        case Api.RERANK:
            return _rerank(body, parsed)
        case Api.COMPLETIONS:
            prompts, media = _texts(body, parsed.spans.get("prompt"))
            if (vectors := parsed.spans.get(_VECTORS)) is not None and not body.startswith(b"null", vectors[2]):
                prompts += _texts(body, vectors)[0]
            return _generated(body, parsed, prompts, 0, media)
        case _:
            messages, media = _conversation(body, parsed.spans.get("messages"))
            return _generated(body, parsed, 1, messages, media)


def _generated(body: bytes, parsed: ParsedBody, prompts: int, messages: int, media: int) -> Size:
    spans, answers, tools_bytes, max_tokens = parsed.spans, parsed.n, 0, parsed.max_tokens
    if not _SELDOM.isdisjoint(spans):
        if "chat_template" in spans:
            media += 1  # a template of the client's own can make any prompt of a few bytes
        for name in _CHOICES:
            if (span := spans.get(name)) is not None:
                answers = max(answers, _count(name, body, span))
        for name in _TOOLS:
            if (span := spans.get(name)) is not None:
                tools_bytes += span[3] - span[2]
        max_tokens = _max_tokens(body, parsed)
    return Size(len(body), prompts, messages, tools_bytes, media, answers, max_tokens)


def _max_tokens(body: bytes, parsed: ParsedBody) -> int | None:
    """The largest end that the body names, since engines differ in which one they go by; None for none at all."""
    span = parsed.spans.get(LLAMACPP_MAX)
    if span is None or parsed.max_tokens is None:
        return parsed.max_tokens
    try:
        own = _integer.decode(body[span[2] : span[3]])
    except msgspec.DecodeError:
        return None
    return None if own < 0 else max(parsed.max_tokens, own)  # below 0: no end


def _rerank(body: bytes, parsed: ParsedBody) -> Size:
    documents, media = _texts(body, parsed.spans.get("documents"))
    query = parsed.spans.get("query")
    query_bytes = 0 if query is None else query[3] - query[2]
    # The query is read with each of the documents.
    repeated = max(0, documents - 1) * query_bytes + documents * _RERANK_TOKENS
    return Size(len(body) + repeated, prompts=documents, media=media)


def _texts(body: bytes, span: Span | None) -> tuple[int, int]:
    """How many texts there are, and how many of them are no text; numbers are the tokens of one."""
    if span is None or not body.startswith(b"[", span[2]):
        return 1, 0
    texts = media = 0
    for element in _elements.decode(memoryview(body)[span[2] : span[3]]):
        first = memoryview(element)[0]
        if first in _TEXTS:
            texts += 1
            media += first == _OBJECT
    return max(1, texts), media


def _conversation(body: bytes, span: Span | None) -> tuple[int, int]:
    """How many messages there are, and how many parts of them are no text."""
    if span is None:
        return 0, 0
    media = 0
    messages = _messages.decode(memoryview(body)[span[2] : span[3]])
    for message in messages:
        content = memoryview(message.content)
        if content[0] == _ARRAY:
            media += sum(1 for part in _elements.decode(content) if not _is_text(part))
        elif content[0] == _OBJECT:
            media += 1
    return len(messages), media


def _is_text(part: msgspec.Raw) -> bool:
    if memoryview(part)[0] == _STRING:
        return True
    try:
        return _part.decode(part).type in _TEXT_PARTS
    except msgspec.DecodeError:
        return False


def _count(name: str, body: bytes, span: Span) -> int:
    value = body[span[2] : span[3]]
    if value == b"null":
        return 1
    try:
        number = _integer.decode(value)
    except msgspec.DecodeError:
        raise InvalidRequest(f"Invalid value for '{name}': expected an integer.", param=name) from None
    if not 1 <= number <= MAX_CHOICES:
        raise InvalidRequest(f"Invalid value for '{name}': expected at least 1 and at most {MAX_CHOICES}.", param=name)
    return number
