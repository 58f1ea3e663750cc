"""The items of a realtime conversation, and what an engine is asked for them: chat messages.

Text only. Source: OpenAI's Realtime API reference (its general availability form), "conversation.item.create".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest

NewId = Callable[[str], str]
"""Makes an identifier that begins with the prefix it is given."""

_PARTS: Final = {
    "system": frozenset({"input_text", "text"}),
    "user": frozenset({"input_text", "text"}),
    "assistant": frozenset({"output_text", "text"}),
}
_ID_CHARACTERS: Final = 64
_STATUSES: Final = frozenset({"completed", "incomplete"})


@dataclass(slots=True)
class Item:
    """One item as clients see it. `open`: a response is still writing it."""

    body: dict[str, Any]
    size_bytes: int
    open: bool = False

    @property
    def id(self) -> str:
        return str(self.body["id"])


def read_item(given: object, new_id: NewId) -> Item:
    """The item of a client's event. Raises InvalidRequest with `param` naming the member at fault."""
    if not isinstance(given, Mapping):
        raise InvalidRequest("Expected an item.", param="item")
    body: dict[str, Any] = {"id": _identifier(given, new_id), "object": "realtime.item", "type": given.get("type")}
    match given.get("type"):
        case "message":
            body |= _message(given)
        case "function_call":
            body |= {
                "call_id": given.get("call_id") or new_id("call_"),
                "name": _text(given, "name"),
                "arguments": _text(given, "arguments"),
            }
            _text(body, "call_id")
        case "function_call_output":
            body |= {"call_id": _text(given, "call_id"), "output": _text(given, "output")}
        case _:
            raise InvalidRequest(
                "Expected an item of type message, function_call or function_call_output.", param="item.type"
            )
    status = given.get("status")
    body["status"] = status if isinstance(status, str) and status in _STATUSES else "completed"
    return Item(body, size_of(body))


def size_of(body: Mapping[str, Any]) -> int:
    """What an item counts for against the bound of its conversation, bytes."""
    return len(msgspec.json.encode(body))


def chat_messages(instructions: str, items: Iterable[Item]) -> list[dict[str, Any]]:
    """The conversation in the words of OpenAI's chat API.

    Calls that follow each other, and a message just before them, were one turn of the assistant. A call that was cut
    short has no arguments that anybody could read, and is left out.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        body = item.body
        if item.open:
            continue
        match body["type"]:
            case "message":
                messages.append({"role": body["role"], "content": _content(body["content"])})
            case "function_call" if body["status"] == "completed":
                _add_call(messages, body)
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": body["call_id"], "content": body["output"]})
            case _:
                pass
    return messages


def _add_call(messages: list[dict[str, Any]], body: Mapping[str, Any]) -> None:
    call = {
        "id": body["call_id"],
        "type": "function",
        "function": {"name": body["name"], "arguments": body["arguments"]},
    }
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _content(parts: list[dict[str, Any]]) -> Any:
    if len(parts) == 1:
        return parts[0]["text"]
    return [{"type": "text", "text": part["text"]} for part in parts]


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    role = given.get("role")
    if not isinstance(role, str) or role not in _PARTS:
        raise InvalidRequest("Expected the role system, user or assistant.", param="item.role")
    parts = given.get("content")
    if not isinstance(parts, list) or not parts:
        raise InvalidRequest("Expected a list of content parts.", param="item.content")
    kind = "output_text" if role == "assistant" else "input_text"
    content = []
    for number, part in enumerate(parts):
        at = f"item.content[{number}]"
        if not isinstance(part, Mapping):
            raise InvalidRequest("Expected a content part.", param=at)
        said = part.get("type")
        if not isinstance(said, str) or said not in _PARTS[role]:
            raise InvalidRequest(f"Only text is understood here: expected a part of type {kind}.", param=f"{at}.type")
        if not isinstance(part.get("text"), str):
            raise InvalidRequest("Expected a text.", param=f"{at}.text")
        content.append({"type": kind, "text": part["text"]})
    return {"role": role, "content": content}


def _identifier(given: Mapping[str, Any], new_id: NewId) -> str:
    identifier = given.get("id")
    if identifier is None:
        return new_id("item_")
    if not isinstance(identifier, str) or not 0 < len(identifier) <= _ID_CHARACTERS or identifier == "root":
        raise InvalidRequest(f"Expected an id of at most {_ID_CHARACTERS} characters.", param="item.id")
    return identifier


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str):
        raise InvalidRequest("Expected a text.", param=f"item.{name}")
    return value
