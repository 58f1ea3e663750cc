"""What a client is told when an engine answers with an error, or does not answer."""

import re
from typing import Final

import msgspec

from core.errors import GatehouseError, NotSupported, RateLimited, Unavailable, UpstreamFailure, UpstreamTimeout
from gateway.relay.upstream_errors import DeadlinePassed, UpstreamError

_MESSAGE_CHARACTERS: Final = 2000
_LONGEST_RETRY_SECONDS: Final = 86_400.0
_REFUSED_OURS: Final = frozenset({401, 403, 407})
"""Statuses by which an engine refuses the gateway, not the client: its key is ours."""
_NO_PATH: Final = frozenset({(404, "Not Found"), (404, "File Not Found"), (405, "Method Not Allowed")})
"""How web frameworks say that they have no such path: vLLM has those for embeddings only where it does not generate."""


class _Said(msgspec.Struct):
    """The shapes errors come in: OpenAI's, old vLLM's flat one, FastAPI's, TGI's and Ollama's."""

    error: dict[str, object] | str | None = None
    message: str | None = None
    detail: object = None
    type: str | None = None
    error_type: str | None = None
    code: str | int | None = None


_said = msgspec.json.Decoder(_Said)


class EngineError(GatehouseError):
    """An engine's own error, with its status, in our envelope."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str,
        param: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, param=param, retry_after_seconds=retry_after_seconds)
        # The one error whose status is not its class's: it is whatever the engine said.
        self.__dict__.update(status=status, type=type, code=code)


class EngineBusy(RateLimited):
    """429 by an engine; another code than the gateway's own 429."""

    code = "engine_rate_limited"


def error_of_transport(error: UpstreamError) -> GatehouseError:
    """What a client is told when no answer came."""
    return UpstreamTimeout() if isinstance(error, DeadlinePassed) else UpstreamFailure()


def error_of_answer(
    status: int, body: bytes, *, retry_after: bytes | None, served_name: str, client_model: str
) -> GatehouseError:
    """What a client is told of an engine's error answer.

    Its status is kept when it is the client's matter (4xx), 503, or told in OpenAI's shape; the name
    that the engine knows the model by is replaced by the client's. An engine that refuses the
    gateway's own credentials is a failure of the gateway.
    """
    if status in _REFUSED_OURS or status < 400:
        return UpstreamFailure()
    said = _read(body)
    if said is None and status >= 500 and status != 503:
        return UpstreamFailure()
    message, kind, code, param = said or ("", None, None, None)
    if (status, message) in _NO_PATH:
        return NotSupported()
    message = _in_the_clients_words(message, served_name, client_model)[:_MESSAGE_CHARACTERS]
    seconds = _seconds(retry_after)
    if status == 429:
        return EngineBusy(message or None, param=param, retry_after_seconds=seconds or 1.0)
    default = Unavailable if status == 503 else UpstreamFailure
    return EngineError(
        status,
        message or ("The engine refused the request." if status < 500 else default.default_message),
        type=kind or ("invalid_request_error" if status < 500 else default.type),
        code=code or ("engine_unavailable" if status == 503 else "engine_error"),
        param=param,
        retry_after_seconds=(seconds or 1.0) if status == 503 else seconds,
    )


def error_of_event(data: bytes, *, served_name: str, client_model: str) -> GatehouseError:
    """What a client is told of an error event in a stream; its status is the event's own code, if it has one."""
    status = 500
    try:
        said = _said.decode(data)
    except msgspec.DecodeError:
        return UpstreamFailure()
    number = said.error.get("code") if isinstance(said.error, dict) else said.code
    if isinstance(number, int) and 400 <= number < 600:
        status = number
    return error_of_answer(status, data, retry_after=None, served_name=served_name, client_model=client_model)


def _read(body: bytes) -> tuple[str, str | None, str | None, str | None] | None:
    """Message, type, code and param of an error body; None when it is in no shape that is known."""
    try:
        said = _said.decode(body)
    except msgspec.DecodeError:
        return None
    inner = said.error
    if isinstance(inner, dict):
        return (
            _text(inner.get("message")) or "",
            _text(inner.get("type")),
            _text(inner.get("code")),
            _text((_text(inner.get("param")) or "").removeprefix("body.")),  # pydantic's path begins with it
        )
    message = inner or said.message or (said.detail if isinstance(said.detail, str) else None)
    if message is None:
        return None
    return message, said.type or said.error_type, _text(said.code), None


def _in_the_clients_words(message: str, served_name: str, client_model: str) -> str:
    if not served_name or served_name not in message:
        return message
    return re.sub(rf"(?<!\w){re.escape(served_name)}(?!\w)", lambda _: client_model, message)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _seconds(retry_after: bytes | None) -> float | None:
    """A Retry-After of whole seconds; dates are not computed with (clocks differ), so: None."""
    if retry_after is None or not retry_after.strip().isdigit():
        return None
    return min(float(retry_after), _LONGEST_RETRY_SECONDS)
