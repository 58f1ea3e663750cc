"""Anthropic's conversation as OpenAI's messages: content blocks become parts, tool calls and tool messages.

What only text can carry to an engine (an error flag, a document's title) is written as text; what cannot be
carried is refused. Values that are not looked into (a tool's input) stay the client's own bytes.
Source: Anthropic's API reference, "Messages".
"""

from typing import Any, Final, NoReturn

import msgspec

from gateway.relay.dialects.messages.refusals import missing, read, refuse, refuse_many

Message = dict[str, Any]
Part = dict[str, Any]

_NULL: Final = msgspec.Raw(b"null")
_ROLES: Final = frozenset({"user", "assistant", "system"})


class _Message(msgspec.Struct):
    role: str
    content: str | list[msgspec.Raw]


class _Typed(msgspec.Struct):
    type: str


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str


class _Source(msgspec.Struct):
    type: str
    data: str | None = None
    content: str | list[msgspec.Raw] | None = None


class _ImageSource(msgspec.Struct):
    type: str
    media_type: str = ""
    data: msgspec.Raw = _NULL  # many megabytes: copied as it is
    url: str | None = None


class _Image(msgspec.Struct):
    source: _ImageSource
    transformations: msgspec.Raw = _NULL


class _Citations(msgspec.Struct):
    enabled: bool = False


class _Document(msgspec.Struct):
    source: _Source
    title: str | None = None
    context: str | None = None
    citations: _Citations | None = None


class _SearchResult(msgspec.Struct):
    source: str
    title: str
    content: list[msgspec.Raw]
    citations: _Citations | None = None


class _ToolUse(msgspec.Struct):
    id: str
    name: str
    input: msgspec.Raw


class _ToolResult(msgspec.Struct):
    tool_use_id: str
    content: str | list[msgspec.Raw] | None = None
    is_error: bool | None = None


_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(_Message)
_typed = msgspec.json.Decoder(_Typed)
_text = msgspec.json.Decoder(_Text)
_thinking = msgspec.json.Decoder(_Thinking)
_image = msgspec.json.Decoder(_Image)
_document = msgspec.json.Decoder(_Document)
_search_result = msgspec.json.Decoder(_SearchResult)
_tool_use = msgspec.json.Decoder(_ToolUse)
_tool_result = msgspec.json.Decoder(_ToolResult)
_text_or_blocks = msgspec.json.Decoder(str | list[msgspec.Raw])


def system_message(raw: bytes) -> Message | None:
    """The member `system` as a message; None where it says nothing. Raises InvalidRequest."""
    text = _plain_text(read(_text_or_blocks, raw, "system"), "system")
    return {"role": "system", "content": text} if text else None


def chat_messages(raw: bytes) -> list[Message]:
    """The member `messages` as OpenAI's. Raises InvalidRequest."""
    told = read(_messages, raw, "messages")
    if not told:
        refuse("messages", "expected at least one message")
    pieces = len(told)
    refuse_many(pieces, "messages")
    out: list[Message] = []
    for number, raw_message in enumerate(told):
        at = f"messages.{number}"
        message = read(_message, raw_message, at)
        if message.role not in _ROLES:
            refuse(f"{at}.role", "expected user, assistant or system")
        at += ".content"
        pieces += len(message.content) if isinstance(message.content, list) else 0
        refuse_many(pieces, "messages")
        if isinstance(message.content, str):
            out.append({"role": message.role, "content": message.content})
        elif message.role == "user":
            out.extend(_user_messages(message.content, at))
        elif message.role == "assistant":
            out.append(_assistant_message(message.content, at))
        else:
            out.append({"role": "system", "content": _plain_text(message.content, at)})
    return out


def _user_messages(blocks: list[msgspec.Raw], at: str) -> list[Message]:
    """Results of tools first, as engines want them right after the calls; then what the user says.

    A tool's message is text: pictures among its result follow in the user's.
    """
    if not blocks:
        refuse(at, "expected at least one block")
    results: list[Message] = []
    parts: list[Part] = []
    for number, raw in enumerate(blocks):
        place = f"{at}.{number}"
        kind = read(_typed, raw, place).type
        if kind == "tool_result":
            result, pictures = _tool_message(raw, place)
            results.append(result)
            parts += pictures
        else:
            parts += _parts(kind, raw, place)
    return [*results, {"role": "user", "content": _content(parts)}] if parts else results


def _tool_message(raw: msgspec.Raw, at: str) -> tuple[Message, list[Part]]:
    result = read(_tool_result, raw, at)
    parts = _parts_of(result.content or "", f"{at}.content")
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    pictures = [part for part in parts if part["type"] != "text"]
    if pictures:
        pictures.insert(0, _text_part(f"Images in the result of {result.tool_use_id}:"))
    if result.is_error:
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": result.tool_use_id, "content": text}, pictures


def _assistant_message(blocks: list[msgspec.Raw], at: str) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Message] = []
    for number, raw in enumerate(blocks):
        place = f"{at}.{number}"
        match read(_typed, raw, place).type:
            case "text":
                texts.append(read(_text, raw, place).text)
            case "thinking":
                thoughts.append(read(_thinking, raw, place).thinking)
            case "tool_use":
                calls.append(_tool_call(raw, place))
            case kind:
                _refuse_block(kind, place)
    message: Message = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        # Newer vLLM reads only the first of these names (vllm#38488), llama.cpp and SGLang the second.
        message["reasoning"] = message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(raw: msgspec.Raw, at: str) -> Message:
    call = read(_tool_use, raw, at)
    arguments = bytes(call.input)
    if not arguments.startswith(b"{"):
        refuse(f"{at}.input", "expected an object")
    try:
        text = arguments.decode()
    except UnicodeDecodeError:
        refuse(f"{at}.input", "it is not valid UTF-8")
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": text}}


def _parts_of(content: str | list[msgspec.Raw], at: str) -> list[Part]:
    if isinstance(content, str):
        return [_text_part(content)]
    out: list[Part] = []
    for number, raw in enumerate(content):
        place = f"{at}.{number}"
        out += _parts(read(_typed, raw, place).type, raw, place)
    return out


def _parts(kind: str, raw: msgspec.Raw, at: str) -> list[Part]:
    match kind:
        case "text":
            return [_text_part(read(_text, raw, at).text)]
        case "image":
            return [_image_part(raw, at)]
        case "document":
            return _document_parts(raw, at)
        case "search_result":
            return [_search_result_part(raw, at)]
    return _refuse_block(kind, at)


def _image_part(raw: msgspec.Raw, at: str) -> Part:
    image = read(_image, raw, at)
    if bytes(image.transformations) != b"null":
        refuse(f"{at}.transformations", "images are handed to the engine as they are")
    source = image.source
    at += ".source"
    url: str | msgspec.Raw
    match source.type:
        case "base64":
            url = _data_url(source, at)
        case "url":
            url = _given(source.url, f"{at}.url")
        case _:
            refuse(f"{at}.type", "expected base64 or url; there are no stored files here")
    return {"type": "image_url", "image_url": {"url": url}}


def _data_url(source: _ImageSource, at: str) -> msgspec.Raw:
    if not source.media_type.startswith("image/"):
        refuse(f"{at}.media_type", "expected the media type of an image")
    data = memoryview(source.data)
    if bytes(data[:4]) == b"null":
        missing(f"{at}.data")
    if bytes(data[:1]) != b'"':
        refuse(f"{at}.data", "expected a string")
    head = msgspec.json.encode(f"data:{source.media_type};base64,")
    return msgspec.Raw(b"".join((head[:-1], data[1:])))


def _document_parts(raw: msgspec.Raw, at: str) -> list[Part]:
    document = read(_document, raw, at)
    _refuse_citations(document.citations, at)
    source = document.source
    place = f"{at}.source"
    heading = [_text_part(words) for words in (document.title, document.context) if words]
    match source.type:
        case "text":
            return [*heading, _text_part(_given(source.data, f"{place}.data"))]
        case "content":
            content = source.content
            if content is None:
                missing(f"{place}.content")
            return [*heading, *_parts_of(content, f"{place}.content")]
    return refuse(f"{place}.type", "expected text or content; engines cannot read PDF or stored files")


def _search_result_part(raw: msgspec.Raw, at: str) -> Part:
    result = read(_search_result, raw, at)
    _refuse_citations(result.citations, at)
    return _text_part("\n".join([result.title, result.source, _plain_text(result.content, f"{at}.content")]))


def _plain_text(content: str | list[msgspec.Raw], at: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for number, raw in enumerate(content):
        place = f"{at}.{number}"
        if (kind := read(_typed, raw, place).type) != "text":
            refuse(f"{place}.type", f"expected text, not '{kind}'")
        texts.append(read(_text, raw, place).text)
    return "\n".join(texts)


def _content(parts: list[Part]) -> str | list[Part]:
    """Text alone is a string: not every chat template takes parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _given(value: str | None, at: str) -> str:
    if value is None:
        missing(at)
    return value


def _refuse_citations(citations: _Citations | None, at: str) -> None:
    if citations is not None and citations.enabled:
        refuse(f"{at}.citations", "engines give no citations")


def _refuse_block(kind: str, at: str) -> NoReturn:
    refuse(f"{at}.type", f"blocks of type '{kind}' are not supported here")
