"""A request in the words of Anthropic's Messages API as work in OpenAI's.

The body for the engine is put together from values: those that both APIs write alike, and those that nobody
here knows (an engine's own, as chat_template_kwargs), keep the client's bytes.
"""

from typing import Any, Final

import msgspec

from core.errors import InvalidRequest
from gateway.relay.dialects.messages.content import chat_messages, system_message
from gateway.relay.dialects.messages.dialect import MessagesDialect, TokenCountDialect
from gateway.relay.dialects.messages.refusals import missing, read, refuse
from gateway.relay.dialects.messages.tools import function_tools, tool_choice
from gateway.relay.members import DuplicateMember, MalformedJson, scan_members
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body

_NULL: Final = b"null"
_HINTS: Final = frozenset({"cache_control", "service_tier"})
"""Say how Anthropic should serve a request, not what to answer; engines cache prefixes by themselves."""
_REFUSED: Final = {
    "container": "there are no containers here",
    "mcp_servers": "tools are called by the client only",
    "inference_geo": "where engines run is not a choice of the request",
    "diagnostics": "there is no diagnosis of caches here",
    "user_profile_id": "there are no user profiles here",
    "workspace_id": "the key says whose request it is",
}
_NOT_COUNTED: Final = frozenset({"max_tokens", "stop", "stream", "stream_options", "user", "response_format"}) | {
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
}
"""Members of the chat body that change no token of the prompt, or that engines do not take with a count."""


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Thinking(msgspec.Struct):
    type: str
    display: str | None = None


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, msgspec.Raw]


class _OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None
    format: _Format | None = None


class _Edit(msgspec.Struct):
    type: str
    keep: msgspec.Raw = msgspec.Raw(_NULL)


class _ContextManagement(msgspec.Struct):
    edits: list[_Edit] = []


_metadata = msgspec.json.Decoder(_Metadata)
_thinking = msgspec.json.Decoder(_Thinking)
_format = msgspec.json.Decoder(_Format)
_output_config = msgspec.json.Decoder(_OutputConfig)
_context_management = msgspec.json.Decoder(_ContextManagement)
_integer = msgspec.json.Decoder(int)
_strings = msgspec.json.Decoder(list[str])
_objects = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Translation:
    """One body on its way into OpenAI's words; `members` are the values of the new one, by name."""

    def __init__(self, body: bytes, *, counted_only: bool) -> None:
        self.members: dict[str, bytes] = {}
        self.stop_sequences: tuple[str, ...] = ()
        self.show_thinking = True
        self._counted_only = counted_only
        self._origin: dict[str, str] = {}  # name in the new body -> the client's name for it
        self._template_kwargs: dict[str, bool] = {}
        self._given = {name: body[span[2] : span[3]] for name, span in _scan(body).items()}
        self._translate()

    @property
    def body(self) -> bytes:
        named = (msgspec.json.encode(name) + b":" + value for name, value in self.members.items())
        return b"{" + b",".join(named) + b"}"

    def _translate(self) -> None:
        given = self._given
        if given.get("messages", _NULL) == _NULL:
            missing("messages")
        if not self._counted_only:
            self._check_max_tokens(given.get("max_tokens", _NULL))
        for name, raw in given.items():
            if name == "messages":
                system = system_message(given["system"]) if given.get("system", _NULL) != _NULL else None
                self._set(name, [*([system] if system else []), *chat_messages(raw)], name)
            elif name in _REFUSED and raw != _NULL:
                refuse(name, _REFUSED[name])
            elif name not in _HINTS and name not in _REFUSED and name != "system":
                self._take(name, raw)
        if self._template_kwargs:
            self._merge_template_kwargs()
        if self._counted_only:
            for name in _NOT_COUNTED & self.members.keys():
                del self.members[name]
        elif self.members.get("stream") == b"true":
            self._ask_for_usage()

    def _take(self, name: str, raw: bytes) -> None:
        """One member other than the conversation."""
        if raw == _NULL and name in _MAPPED:
            return
        match name:
            case "stop_sequences":
                words: list[str] = read(_strings, raw, name)
                self.stop_sequences = tuple(words)
                if self.stop_sequences:
                    self._put("stop", raw, name)
            case "tools":
                if tools := function_tools(raw):
                    self._set("tools", tools, name)
            case "tool_choice":
                for told, value in tool_choice(raw).items():
                    self._set(told, value, name)
            case "metadata":
                if (user := read(_metadata, raw, name).user_id) is not None:
                    self._set("user", user, name)
            case "thinking":
                self._take_thinking(read(_thinking, raw, name))
            case "output_config":
                config = read(_output_config, raw, name)
                if config.effort is not None:
                    self._set("reasoning_effort", config.effort, name)
                if config.format is not None:
                    self._take_format(config.format, name, f"{name}.format")
            case "output_format":
                self._take_format(read(_format, raw, name), name, name)
            case "context_management":
                edits = read(_context_management, raw, name).edits
                if any(edit.type != "clear_thinking_20251015" or bytes(edit.keep) != b'"all"' for edit in edits):
                    refuse(name, "the conversation goes to the engine as it is")
            case "speed":
                if raw != b'"standard"':
                    refuse(name, "expected standard")
            case "n":
                if raw not in (b"1", _NULL):
                    refuse(name, "an answer in these words is one message")
            case _:
                self._put(name, raw, name)

    def _take_thinking(self, thinking: _Thinking) -> None:
        """Told to the chat template under the two names that templates know it by; budgets have no common name."""
        if thinking.type not in ("enabled", "adaptive", "disabled"):
            refuse("thinking.type", "expected enabled, adaptive or disabled")
        wanted = thinking.type != "disabled"
        self._template_kwargs = {"enable_thinking": wanted, "thinking": wanted}
        self.show_thinking = thinking.display != "omitted"

    def _take_format(self, output: _Format, name: str, at: str) -> None:
        if output.type != "json_schema":
            refuse(f"{at}.type", "expected json_schema")
        schema = {"name": "answer", "schema": output.schema, "strict": True}
        self._set("response_format", {"type": "json_schema", "json_schema": schema}, name)

    def _check_max_tokens(self, raw: bytes) -> None:
        if raw == _NULL:
            missing("max_tokens")
        if read(_integer, raw, "max_tokens") < 0:
            refuse("max_tokens", "expected at least 0")

    def _merge_template_kwargs(self) -> None:
        """What the client itself says to the template wins."""
        own = self._object("chat_template_kwargs")
        self.members["chat_template_kwargs"] = msgspec.json.encode({**self._template_kwargs, **own})

    def _ask_for_usage(self) -> None:
        own = self._object("stream_options")
        self.members["stream_options"] = msgspec.json.encode({**own, "include_usage": True})

    def _object(self, name: str) -> dict[str, msgspec.Raw]:
        raw = self.members.get(name, _NULL)
        return {} if raw == _NULL else read(_objects, raw, name)

    def _set(self, name: str, value: Any, origin: str) -> None:
        self._put(name, msgspec.json.encode(value), origin)

    def _put(self, name: str, raw: bytes, origin: str) -> None:
        if name in self.members:
            refuse(origin, f"'{self._origin[name]}' says the same thing; give one of the two")
        self.members[name] = raw
        self._origin[name] = origin


_MAPPED: Final = frozenset(
    {"stop_sequences", "tools", "tool_choice", "metadata", "thinking", "output_config", "output_format"}
) | {"context_management", "speed", "n"}
"""Members whose null is as good as their absence."""


def messages_work(request: SlimRequest) -> Work:
    """A Messages request as a chat. Raises InvalidRequest naming the member at fault."""
    translation = _Translation(request.body, counted_only=False)
    body = translation.body
    parsed = parse_body(Api.CHAT, body)
    dialect = MessagesDialect(
        request.request_id,
        parsed.model,
        stop_sequences=translation.stop_sequences,
        show_thinking=translation.show_thinking,
    )
    return Work(Api.CHAT, ENGINE_PATHS[Api.CHAT], body, parsed, dialect)


def count_tokens_work(request: SlimRequest) -> Work:
    """The same request for its number of tokens alone. Raises InvalidRequest."""
    body = _Translation(request.body, counted_only=True).body
    dialect = TokenCountDialect(request.request_id)
    return Work(Api.TOKENIZE, ENGINE_PATHS[Api.TOKENIZE], body, parse_body(Api.TOKENIZE, body), dialect)


def _scan(body: bytes) -> dict[str, tuple[int, int, int, int]]:
    try:
        return scan_members(body)
    except DuplicateMember as error:
        raise InvalidRequest(f"The body is not valid: {error}.", param=error.name) from error
    except MalformedJson as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from error
