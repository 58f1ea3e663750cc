"""What a session, or one response of it, asks of the model: read strictly, told to engines as chat's members."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from core.errors import InvalidRequest

_TOOL_CHOICES: Final = frozenset({"auto", "none", "required"})
_ENDLESS: Final = "inf"
_MOST_TOKENS: Final = 2**31 - 1


class Options(msgspec.Struct, frozen=True):
    """As clients see them in `session` and give them in `response`."""

    instructions: str = ""
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    max_output_tokens: int | str = _ENDLESS
    temperature: float | None = None
    parallel_tool_calls: bool | None = None

    def changed(self, given: Mapping[str, Any], *, at: str, known: frozenset[str]) -> "Options":
        """With the members of `given`; `known` ones are somebody else's.

        `at` is where they stand in the event. Raises InvalidRequest naming the member at fault.
        """
        changes: dict[str, Any] = {}
        for name, value in given.items():
            read = _READERS.get(name)
            if read is not None:
                changes[name] = read(value, f"{at}.{name}")
            elif name not in known:
                raise UnknownParameter(f"'{name}' is not understood here.", param=f"{at}.{name}")
        return msgspec.structs.replace(self, **changes)

    def chat_members(self) -> dict[str, Any]:
        """The members of a chat body that say the same; instructions are a message and not among them."""
        members: dict[str, Any] = {}
        if self.tools:
            members["tools"] = [
                {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in self.tools
            ]
            members["tool_choice"] = (
                self.tool_choice
                if isinstance(self.tool_choice, str)
                else {"type": "function", "function": {"name": self.tool_choice["name"]}}
            )
            if self.parallel_tool_calls is not None:
                members["parallel_tool_calls"] = self.parallel_tool_calls
        if isinstance(self.max_output_tokens, int):
            members["max_tokens"] = self.max_output_tokens
        if self.temperature is not None:
            members["temperature"] = self.temperature
        return members

    def shown(self) -> dict[str, Any]:
        """As clients are told them."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}


class UnknownParameter(InvalidRequest):
    """A member that would be passed over without a word, and perhaps was meant."""

    code = "unknown_parameter"


def check_modalities(value: Any, at: str) -> None:
    """Raises InvalidRequest for anything but text."""
    if value is not None and value != ["text"]:
        raise InvalidRequest('This gateway answers in text: expected ["text"].', param=at)


def _instructions(value: Any, at: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidRequest("Expected a text.", param=at)
    return value


def _tools(value: Any, at: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest("Expected a list of tools.", param=at)
    for number, tool in enumerate(value):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InvalidRequest("Expected a tool of type function.", param=f"{at}[{number}].type")
        if not isinstance(tool.get("name"), str) or not tool["name"]:
            raise InvalidRequest("Expected a function's name.", param=f"{at}[{number}].name")
    return value


def _tool_choice(value: Any, at: str) -> str | dict[str, Any]:
    if value is None:
        return "auto"
    if isinstance(value, str) and value in _TOOL_CHOICES:
        return value
    if isinstance(value, dict) and value.get("type") == "function" and isinstance(value.get("name"), str):
        return value
    raise InvalidRequest("Expected auto, none, required or one function.", param=at)


def _max_output_tokens(value: Any, at: str) -> int | str:
    if value is None or value == _ENDLESS:
        return _ENDLESS
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_TOKENS:
        raise InvalidRequest(f'Expected "{_ENDLESS}" or a number from 1 on.', param=at)
    return value


def _temperature(value: Any, at: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 2:
        raise InvalidRequest("Expected a number from 0 to 2.", param=at)
    return value


def _parallel_tool_calls(value: Any, at: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest("Expected true or false.", param=at)
    return value


_READERS: Final = {
    "instructions": _instructions,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "max_output_tokens": _max_output_tokens,
    "temperature": _temperature,
    "parallel_tool_calls": _parallel_tool_calls,
}
