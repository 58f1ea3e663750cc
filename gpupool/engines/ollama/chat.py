"""A chat of OpenAI's as `/api/chat` takes it: texts and images apart, tool calls with arguments as objects."""

import string
from typing import Any, Final

import msgspec

from gpupool.engines.asked import Asked
from gpupool.engines.base import CallNotSupported, OpenAICall, WireRequest
from gpupool.engines.ollama.options import common_members, rest_of

_BASE64: Final = f"{string.ascii_letters}{string.digits}+/".encode()
_ROLES: Final = {"developer": "system", "function": "tool"}


def chat_request(call: OpenAICall) -> WireRequest:
    """Raises CallNotSupported."""
    asked = Asked(call, "Ollama")
    messages = asked.take("messages", list) or []
    body: dict[str, Any] = {"model": call.served_name, "messages": _messages(messages), "stream": call.stream}
    body |= common_members(asked)
    tools = asked.take("tools", list)
    choice = asked.left.pop("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise CallNotSupported("Ollama leaves it to the model whether it calls a tool; tool_choice cannot force it.")
    if tools and choice == "auto":
        asked.only("parallel_tool_calls", True)
        body["tools"] = tools
    asked.left.pop("parallel_tool_calls", None)
    return WireRequest("POST", "/api/chat", msgspec.json.encode(rest_of(asked) | body))


def _messages(messages: list[Any]) -> list[dict[str, Any]]:
    tool_names: dict[str, str] = {}  # by the id of the call: Ollama wants the tool's name with its result
    told: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallNotSupported("Ollama takes messages that are objects with a role.")
        role = _ROLES.get(message["role"], message["role"])
        text, images = _content(message.get("content"))
        out: dict[str, Any] = {"role": role, "content": text}
        if images:
            out["images"] = images
        thinking = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thinking, str):
            out["thinking"] = thinking
        if message.get("tool_calls"):
            out["tool_calls"] = _tool_calls(message["tool_calls"], tool_names)
        if role == "tool":
            name = message.get("name") or tool_names.get(str(message.get("tool_call_id")))
            if name:
                out["tool_name"] = name
            if message.get("tool_call_id"):
                out["tool_call_id"] = message["tool_call_id"]
        told.append(out)
    return told


def _content(content: object) -> tuple[str, list[str]]:
    """Text and images (base64) of a message."""
    if content is None:
        return "", []
    if isinstance(content, str):
        return content, []
    texts: list[str] = []
    images: list[str] = []
    for part in content if isinstance(content, list) else [content]:
        match part:
            case {"type": "text" | "input_text", "text": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                images.append(_image(url))
            case {"type": str(kind)} if kind not in ("text", "image_url"):
                raise CallNotSupported(f"Ollama takes text and images, no content of type {kind!r}.")
            case _:
                raise CallNotSupported("Ollama does not take content in this form.")
    return "\n".join(texts), images


def _image(url: str) -> str:
    head, _, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        raise CallNotSupported("Ollama fetches no images: send them as data: URLs in base64.")
    if not _is_base64(data):
        raise CallNotSupported("An image's data: URL does not hold base64.")
    return data


def _is_base64(data: str) -> bool:
    """Looked at and not decoded: an image of 24 MiB would take half a second, and nobody here wants its bytes."""
    text = data.rstrip("=")
    padded = len(data) % 4 == 0 and len(data) - len(text) <= 2
    return padded and text.isascii() and not text.encode().translate(None, _BASE64)


def _tool_calls(calls: object, tool_names: dict[str, str]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    for call in calls if isinstance(calls, list) else [calls]:
        match call:
            case {"function": {"name": str(name), "arguments": str(arguments)}, **others}:
                try:
                    values = msgspec.json.decode(arguments or "{}")
                except (msgspec.MsgspecError, RecursionError):
                    values = None
                if not isinstance(values, dict):
                    raise CallNotSupported("Ollama takes tool calls whose arguments are a JSON object.")
                function = {"name": name, "arguments": values}
            case _:
                raise CallNotSupported("Ollama takes tool calls with a function's name and its arguments as JSON.")
        out: dict[str, Any] = {"function": function}
        if isinstance(identity := others.get("id"), str):
            tool_names[identity] = name
            out["id"] = identity
        told.append(out)
    return told
