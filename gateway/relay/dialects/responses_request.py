"""A request to the Responses API as a chat request, and what of it is told again in the answer."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from core.errors import InvalidRequest
from gateway.relay.dialects.response_store import PreviousResponseNotFound, response_uuid
from gateway.relay.dialects.responses_items import Item, Messages, read_items, refused
from gateway.relay.members import DuplicateMember, MalformedJson, Span, scan_members

_NULL: Final = msgspec.Raw(b"null")
_NOT_HERE: Final = ("background_options", "conversation", "prompt", "moderation", "context_management")
_UNUSED: Final = frozenset(
    {
        "include", "max_tool_calls", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "stream_options", "truncation",
    }
)  # fmt: skip
"""Members that are for OpenAI's own service, or for us: not for engines."""
_WRITTEN: Final = frozenset(
    {
        "background", "input", "instructions", "max_output_tokens", "model", "parallel_tool_calls",
        "previous_response_id", "reasoning", "stream", "text", "tool_choice", "tools", "top_logprobs",
    }
)  # fmt: skip
_CHATS: Final = frozenset(
    {"logprobs", "max_completion_tokens", "max_tokens", "messages", "n", "reasoning_effort", "response_format"}
)
"""Members of the chat API that are written here: given in a Responses body they would stand there twice."""
_METADATA_PAIRS: Final = 16
_METADATA_KEY: Final = 64
_METADATA_VALUE: Final = 512
_MAX_TOKENS: Final = 2**31 - 1
_MAX_LOGPROBS: Final = 20
_LOGPROBS: Final = "message.output_text.logprobs"


class _Tool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = _NULL  # msgspec knows no "Raw or null"
    strict: bool | None = None


class _Format(msgspec.Struct):
    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = _NULL
    strict: bool | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None
    verbosity: str | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None
    summary: str | None = None


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    mode: str = "auto"
    tools: list[_Tool] = []


class Asked:
    """A Responses body, read once. Raises InvalidRequest; `param` is in the client's words."""

    def __init__(self, body: bytes, response_id: UUID) -> None:
        self._body = body
        self._spans = _scan(body)
        self._refuse_what_is_not_here()
        self.model: str = self._read("model", str, "")
        if not self.model:
            raise InvalidRequest("Missing required parameter: 'model'.", param="model")
        self.stream: bool = self._read("stream", bool, False)
        self.store: bool = self._read("store", bool, True)
        self.instructions: str | None = self._read("instructions", str, None)
        self.metadata: dict[str, str] = self._metadata()
        self.previous_id = self._previous()
        self.max_output_tokens: int | None = self._count("max_output_tokens", 1, _MAX_TOKENS)
        include: list[str] = self._read("include", list[str], [])
        self._top_logprobs = self._count("top_logprobs", 0, _MAX_LOGPROBS)
        self._with_logprobs = _LOGPROBS in include or bool(self._top_logprobs)
        if self._read("truncation", str, "disabled") not in ("auto", "disabled"):
            raise refused("truncation", "expected auto or disabled")
        self._parallel: bool | None = self._read("parallel_tool_calls", bool, None)
        self._reasoning: _Reasoning = self._read("reasoning", _Reasoning, _Reasoning())
        self._text: _Text = self._read("text", _Text, _Text())
        self._tools = self._function_tools()
        self._tool_choice = self._choice()
        raw = self._raw("input")
        if raw is None:
            raise InvalidRequest("Missing required parameter: 'input'.", param="input")
        self.items = read_items(raw, response_id)

    def chat_body(self, before: list[Item], items: list[Item]) -> bytes:
        """The body for engines: the conversation `before`, then this request's `items`. Raises InvalidRequest."""
        messages = Messages(self.instructions)
        for item in before:
            messages.add(item, "previous_response_id")
        for index, item in enumerate(items):
            messages.add(item, f"input[{index}]")
        members: dict[str, Any] = {"model": msgspec.Raw(self._raw("model") or b"null"), "messages": messages.messages}
        if self.stream:
            members["stream"] = True
            members["stream_options"] = {"include_usage": True}
        members.update(self._settings())
        written = msgspec.json.encode(members)
        return b"".join((written[:-1], *self._passed_on(), b"}"))

    def _settings(self) -> dict[str, Any]:
        text_format = self._text.format
        said: dict[str, Any] = {
            "max_tokens": self.max_output_tokens,
            "reasoning_effort": self._reasoning.effort,
            "verbosity": self._text.verbosity,
            "parallel_tool_calls": self._parallel if self._tools else None,
            "tools": self._tools or None,
            "tool_choice": self._tool_choice if self._tools else None,
            "response_format": _response_format(text_format) if text_format is not None else None,
            "logprobs": self._with_logprobs or None,
            "top_logprobs": self._top_logprobs if self._with_logprobs else None,
        }
        return {name: value for name, value in said.items() if value is not None}

    def _passed_on(self) -> list[bytes]:
        """Members that are the engine's, byte for byte."""
        body = self._body
        return [
            b",%b:%b" % (body[span[0] : span[1]], body[span[2] : span[3]])
            for name, span in self._spans.items()
            if name not in _WRITTEN and name not in _UNUSED and name not in _NOT_HERE
        ]

    def echo(self) -> dict[str, Any]:
        """What the answer says about its request."""
        raw = self._echoed
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": raw("max_tool_calls"),
            "metadata": self.metadata,
            "parallel_tool_calls": True if self._parallel is None else self._parallel,
            "previous_response_id": raw("previous_response_id"),
            "prompt_cache_key": raw("prompt_cache_key"),
            "reasoning": {"effort": self._reasoning.effort, "summary": self._reasoning.summary},
            "safety_identifier": raw("safety_identifier"),
            "service_tier": "default",
            "store": self.store,
            "temperature": raw("temperature"),
            "text": raw("text", {"format": {"type": "text"}}),
            "tool_choice": raw("tool_choice", "auto"),
            "tools": raw("tools", []),
            "top_logprobs": self._top_logprobs or 0,
            "top_p": raw("top_p"),
            "truncation": "disabled",  # also where auto was asked for: nothing is left out of a conversation here
            "user": raw("user"),
        }

    # Members

    def _raw(self, name: str) -> bytes | None:
        span = self._spans.get(name)
        if span is None or (value := self._body[span[2] : span[3]]) == b"null":
            return None
        return value

    def _echoed(self, name: str, default: Any = None) -> Any:
        value = self._raw(name)
        return default if value is None else msgspec.Raw(value)

    def _read(self, name: str, kind: Any, default: Any) -> Any:
        value = self._raw(name)
        if value is None:
            return default
        try:
            return msgspec.json.decode(value, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise refused(name, str(error).lower()) from error

    def _count(self, name: str, least: int, most: int) -> int | None:
        number: int | None = self._read(name, int, None)
        if number is not None and not least <= number <= most:
            raise refused(name, f"expected at least {least} and at most {most}")
        return number

    def _refuse_what_is_not_here(self) -> None:
        if self._read("background", bool, False):
            raise InvalidRequest("Responses in the background are not supported here.", param="background")
        for name in _NOT_HERE:
            if self._raw(name) is not None:
                raise InvalidRequest(f"'{name}' is not supported here.", param=name)
        for name in sorted(_CHATS & self._spans.keys()):
            raise InvalidRequest(f"'{name}' is no parameter of the Responses API.", param=name)

    def _metadata(self) -> dict[str, str]:
        metadata: dict[str, str] = self._read("metadata", dict[str, str], {})
        if len(metadata) > _METADATA_PAIRS:
            raise refused("metadata", f"expected at most {_METADATA_PAIRS} pairs")
        for key, value in metadata.items():
            if len(key) > _METADATA_KEY or len(value) > _METADATA_VALUE:
                raise refused("metadata", f"a key has at most {_METADATA_KEY} characters, a value {_METADATA_VALUE}")
        return metadata

    def _previous(self) -> UUID | None:
        name: str | None = self._read("previous_response_id", str, None)
        if name is None:
            return None
        response_id = response_uuid(name)
        if response_id is None:
            raise PreviousResponseNotFound(param="previous_response_id")
        return response_id

    def _function_tools(self) -> list[dict[str, Any]]:
        tools: list[_Tool] = self._read("tools", list[_Tool], [])
        translated: list[dict[str, Any]] = []
        for index, tool in enumerate(tools):
            if tool.type != "function":
                raise InvalidRequest(
                    f"The tool '{tool.type}' is not available here: only functions are.", param=f"tools[{index}].type"
                )
            if not tool.name:
                raise refused(f"tools[{index}].name", "expected a string")
            function = {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            kept = {name: value for name, value in function.items() if value is not None and value != _NULL}
            translated.append({"type": "function", "function": kept})
        return translated

    def _choice(self) -> Any:
        """Chat's `tool_choice`; tools that may not be chosen are left out."""
        raw = self._raw("tool_choice")
        if raw is None:
            return None
        if raw.startswith(b'"'):
            chosen: str = self._read("tool_choice", str, None)
            if chosen not in ("none", "auto", "required"):
                raise refused("tool_choice", "expected none, auto, required or an object")
            return chosen
        choice: _Choice = self._read("tool_choice", _Choice, None)
        if choice.type == "function" and choice.name:
            return {"type": "function", "function": {"name": choice.name}}
        if choice.type == "allowed_tools" and choice.mode in ("auto", "required"):
            allowed = {tool.name for tool in choice.tools}
            self._tools = [tool for tool in self._tools if tool["function"]["name"] in allowed]
            return choice.mode
        raise refused("tool_choice", f"'{choice.type}' is not supported here")


def _scan(body: bytes) -> Mapping[str, Span]:
    try:
        return scan_members(body)
    except DuplicateMember as error:
        raise InvalidRequest(f"The body is not valid: {error}.", param=error.name) from error
    except MalformedJson as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error


def _response_format(asked: _Format) -> dict[str, Any] | None:
    match asked.type:
        case "text":
            return None
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            if asked.schema == _NULL or not asked.name:
                raise refused("text.format", "expected a name and a schema")
            schema = {
                "name": asked.name,
                "description": asked.description,
                "schema": asked.schema,
                "strict": asked.strict,
            }
            return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}
        case other:
            raise refused("text.format.type", f"'{other}' is not supported here")
