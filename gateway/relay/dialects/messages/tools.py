"""Anthropic's tools and the choice among them in OpenAI's words. Only tools with a schema of their own can be."""

from typing import Any, Final

import msgspec

from gateway.relay.dialects.messages.refusals import missing, read, refuse, refuse_many

_NULL: Final = msgspec.Raw(b"null")


class _Tool(msgspec.Struct):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: msgspec.Raw = _NULL
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[msgspec.Raw] | None = None


class _Named(msgspec.Struct):
    type: str | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_tools = msgspec.json.Decoder(list[msgspec.Raw])
_named = msgspec.json.Decoder(_Named)
_tool = msgspec.json.Decoder(_Tool)
_choice = msgspec.json.Decoder(_Choice)


def function_tools(raw: bytes) -> list[dict[str, Any]]:
    """The member `tools` as OpenAI's; schemas stay the client's bytes. Raises InvalidRequest."""
    given: list[msgspec.Raw] = read(_tools, raw, "tools")
    refuse_many(len(given), "tools")
    return [_function(entry, f"tools.{number}") for number, entry in enumerate(given)]


def _function(raw: msgspec.Raw, at: str) -> dict[str, Any]:
    kind = read(_named, raw, at).type
    if kind not in (None, "custom"):
        refuse(f"{at}.type", f"'{kind}' is Anthropic's own; an engine can be offered tools with an input_schema only")
    tool = read(_tool, raw, at)
    if bytes(tool.input_schema) == b"null":
        missing(f"{at}.input_schema")
    if not bytes(tool.input_schema).startswith(b"{"):
        refuse(f"{at}.input_schema", "expected an object")
    if tool.defer_loading:
        refuse(f"{at}.defer_loading", "there is no search for tools here")
    if tool.allowed_callers is not None and tool.allowed_callers != ["direct"]:
        refuse(f"{at}.allowed_callers", "tools are called by the model only")
    description = tool.description or ""
    if tool.input_examples:
        examples = msgspec.json.encode(tool.input_examples).decode()
        description = f"{description}\n\nExamples of its input: {examples}".lstrip()
    function: dict[str, Any] = {"name": tool.name}
    if description:
        function["description"] = description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def tool_choice(raw: bytes) -> dict[str, Any]:
    """The member `tool_choice` as the members that OpenAI has for it. Raises InvalidRequest."""
    choice = read(_choice, raw, "tool_choice")
    told: Any
    match choice.type:
        case "auto" | "none":
            told = choice.type
        case "any":
            told = "required"
        case "tool":
            if choice.name is None:
                missing("tool_choice.name")
            told = {"type": "function", "function": {"name": choice.name}}
        case _:
            refuse("tool_choice.type", "expected auto, any, tool or none")
    members: dict[str, Any] = {"tool_choice": told}
    if choice.disable_parallel_tool_use:
        members["parallel_tool_calls"] = False
    return members
