"""Items of a Responses conversation as the messages of a chat.

Items are JSON objects as they came; unknown members of them are kept for the store and not sent to engines.
Source: OpenAI's API reference, "Create a model response", `input`.
"""

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import msgspec

from core.errors import InvalidRequest
from gateway.relay.dialects.response_store import ConversationTooLong, Turn

Item = dict[str, Any]

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Engines' chat templates know no `developer`; OpenAI says that the two mean the same."""
_TEXTS: Final = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_MOST_ITEMS: Final = 100_000
"""Of one request: each takes Python steps."""
_ID_PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}

_split = msgspec.json.Decoder(str | list[msgspec.Raw])
"""Items are decoded one by one: no other thread runs meanwhile, and a million at once take half a second."""
_item = msgspec.json.Decoder(Item)


def item_id(kind: str, response_id: UUID, place: str) -> str:
    """The id of an item: it tells which response it belongs to, so that a reference to it can be found.

    `place`: i or o (input, output) and the position.
    """
    return f"{_ID_PREFIXES[kind]}_{response_id.hex}{place}"


def owner_of(name: str) -> UUID | None:
    """The response that an item of this id belongs to; None where it cannot be one of ours."""
    digits = name.partition("_")[2][:32]
    if len(digits) != 32 or not digits.isascii():
        return None
    try:
        return UUID(hex=digits)
    except ValueError:
        return None


def read_items(raw: bytes, response_id: UUID) -> list[Item]:
    """The `input` member as items, each with a type. Raises InvalidRequest."""
    try:
        value = _split.decode(raw)
        if isinstance(value, list) and len(value) > _MOST_ITEMS:
            raise refused("input", f"expected at most {_MOST_ITEMS} items")
        told = value if isinstance(value, str) else [msgspec.json.decode(item) for item in value]
    except msgspec.ValidationError:
        told = None
    except (msgspec.DecodeError, RecursionError) as error:
        raise refused("input", f"it is not valid JSON ({error})") from error
    if isinstance(told, str):
        told = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": told}]}]
    if not told:
        raise refused("input", "expected a string, or an array of at least one item")
    return [_read_item(item, f"input[{index}]") for index, item in enumerate(told)]


def _read_item(item: Any, at: str) -> Item:
    if not isinstance(item, dict):
        raise refused(at, "expected an object")
    kind = item.get("type")
    if kind is None:
        kind = "message" if "role" in item else "item_reference" if "id" in item else None
    if not isinstance(kind, str):
        raise refused(f"{at}.type", "expected a string")
    identity = item.get("id")
    if identity is not None and not isinstance(identity, str):
        raise refused(f"{at}.id", "expected a string")
    return {**item, "type": kind}


def references(items: Iterable[Item]) -> dict[str, UUID]:
    """Ids of the items that are only referred to, and the responses they belong to. Raises InvalidRequest."""
    found: dict[str, UUID] = {}
    for index, item in enumerate(items):
        if item["type"] != "item_reference":
            continue
        owner = owner_of(name) if isinstance(name := item.get("id"), str) else None
        if owner is None:
            raise _no_item(index)
        found[str(name)] = owner
    return found


def resolve(items: list[Item], turns: Iterable[Turn], *, most_bytes: int) -> list[Item]:
    """`items` with the stored ones in the place of references. Raises InvalidRequest where one is not there.

    An item may be referred to many times: all that is put in together is bounded by `most_bytes`.
    """
    known: dict[str, Item] = {}
    sizes: dict[str, int] = {}
    size = 0
    for turn in turns:
        for item in _items(turn):
            known[str(item.get("id"))] = item
    resolved: list[Item] = []
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            if item["id"] not in known:
                raise _no_item(index)
            name = item["id"]
            item = known[name]
            if name not in sizes:
                sizes[name] = len(msgspec.json.encode(item))
            size += sizes[name]
            if size > most_bytes:
                raise ConversationTooLong(
                    f"The items that are referred to are larger than {most_bytes} bytes together.", param="input"
                )
        resolved.append(item)
    return resolved


def with_ids(items: list[Item], response_id: UUID) -> list[Item]:
    """`items`, each with an id that no other of them has."""
    seen: set[str] = set()
    named: list[Item] = []
    for index, item in enumerate(items):
        identity = item.get("id")
        if not identity or identity in seen:
            identity = item_id(item["type"], response_id, f"i{index}")
        seen.add(identity)
        named.append({**item, "id": identity})
    return named


def stored_items(turns: Iterable[Turn]) -> list[Item]:
    """All items of a conversation, oldest first."""
    return [item for turn in turns for item in _items(turn)]


def _items(turn: Turn) -> list[Item]:
    return [_item.decode(raw) for part in (turn.input, turn.output) for raw in _split.decode(part)]


def _no_item(index: int) -> InvalidRequest:
    param = f"input[{index}].id"
    return InvalidRequest("The item that is referred to is not stored (any more).", param=param)


def refused(param: str, problem: str) -> InvalidRequest:
    """The refusal of a member's value."""
    return InvalidRequest(f"Invalid value for '{param}': {problem}.", param=param)


class Messages:
    """Collects items into chat messages: what the model said in one turn becomes one message."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[dict[str, Any]] = []
        self._calls: set[str] = set()
        self._reasoning: list[str] = []
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, item: Item, at: str) -> None:
        """Raises InvalidRequest; `at` is how the item is named in it."""
        match item["type"]:
            case "message":
                self._add_message(item, at)
            case "function_call":
                self._add_call(item, at)
            case "function_call_output":
                self._add_output(item, at)
            case "reasoning":
                self._reasoning.extend(_reasoning_texts(item))
            case other:
                raise refused(f"{at}.type", f"items of type '{other}' are not supported here")

    def _add_message(self, item: Item, at: str) -> None:
        said = item.get("role")
        role = _ROLES.get(said) if isinstance(said, str) else None
        if role is None:
            raise refused(f"{at}.role", f"expected one of {', '.join(_ROLES)}")
        content = _content(item.get("content"), f"{at}.content", plain=role in ("assistant", "system"))
        if role == "assistant":
            self._said()["content"] = content
            return
        self._reasoning.clear()
        last = self.messages[-1] if self.messages else None
        if role == "system" and len(self.messages) == 1 and last is not None and last["role"] == "system":
            last["content"] = f"{last['content']}\n\n{content}"  # many templates know one, at the beginning
            return
        self.messages.append({"role": role, "content": content})

    def _add_call(self, item: Item, at: str) -> None:
        call_id, name, arguments = (_string(item, member, at) for member in ("call_id", "name", "arguments"))
        self._calls.add(call_id)
        last = self.messages[-1] if self.messages else None
        # A text before its calls is one message with them; a text after them is another.
        said = last if last is not None and last["role"] == "assistant" and not self._reasoning else self._said()
        said.setdefault("tool_calls", []).append(
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        )

    def _add_output(self, item: Item, at: str) -> None:
        call_id = _string(item, "call_id", at)
        if call_id not in self._calls:
            raise refused(f"{at}.call_id", f"there is no function call '{call_id}' before it")
        content = _content(item.get("output"), f"{at}.output", plain=False)
        self._reasoning.clear()
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _said(self) -> dict[str, Any]:
        """A new message of the model's, with what it thought before it."""
        said: dict[str, Any] = {"role": "assistant", "content": None}
        if self._reasoning:
            # Engines read it under either name: llama.cpp and SGLang the first, vLLM the second.
            said["reasoning_content"] = said["reasoning"] = "\n".join(self._reasoning)
            self._reasoning.clear()
        self.messages.append(said)
        return said


def _string(item: Item, member: str, at: str) -> str:
    value = item.get(member)
    if not isinstance(value, str):
        raise refused(f"{at}.{member}", "expected a string")
    return value


def _reasoning_texts(item: Item) -> list[str]:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _content(value: Any, at: str, *, plain: bool) -> Any:
    """A message's content in chat's words; `plain`: its texts as one string."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refused(at, "expected a string or an array")
    parts = [_part(part, f"{at}[{index}]") for index, part in enumerate(value)]
    if all(part["type"] == "text" for part in parts) and (plain or len(parts) <= 1):
        return "".join(part["text"] for part in parts)
    if plain:
        raise refused(at, "expected texts only")
    return parts


def _part(part: Any, at: str) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise refused(at, "expected an object")
    kind = part.get("type")
    member = _TEXTS.get(kind) if isinstance(kind, str) else None
    if member is not None:
        return {"type": "text", "text": _string(part, member, at)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise refused(f"{at}.file_id", "there are no stored files here; give an image_url")
        image = {"url": _string(part, "image_url", at)}
        if isinstance(part.get("detail"), str):
            image["detail"] = part["detail"]
        return {"type": "image_url", "image_url": image}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    raise refused(f"{at}.type", f"content of type '{kind}' is not supported here")
