"""Errors in the shape that a client knows, by the endpoint that it asked."""

from typing import Final
from uuid import UUID

from core.errors import (
    GatehouseError,
    error_headers,
    render_anthropic,
    render_anthropic_event,
    render_openai,
    render_openai_event,
    render_sentence,
)
from gateway.relay.plan import Api, Headers, Ready

_ANTHROPIC: Final = frozenset({Api.MESSAGES, Api.COUNT_TOKENS})


def render_error(api: Api, error: GatehouseError, request_id: UUID) -> bytes:
    """An error's body in the shape that clients of this API know."""
    if api is Api.INFER:
        return render_sentence(error)
    return render_anthropic(error, str(request_id)) if api in _ANTHROPIC else render_openai(error)


def id_headers(api: Api, request_id: UUID) -> Headers:
    """The request's id, under every name that clients of this API read it by."""
    told = str(request_id).encode()
    ours = (b"x-request-id", told)
    return (ours, (b"request-id", told)) if api in _ANTHROPIC else (ours,)


def own_headers(ready: Ready) -> list[tuple[bytes, bytes]]:
    """What every answer to the request says of it: its limits and its id."""
    return [*ready.response_headers, *id_headers(ready.request.api, ready.request.request_id)]


def error_answer(
    api: Api, error: GatehouseError, request_id: UUID, own: Headers | None = None
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of an answer that is an error from its first byte. `own`: `own_headers`, where there are any."""
    body = render_error(api, error, request_id)
    own = id_headers(api, request_id) if own is None else own
    return [*error_headers(error), (b"content-length", b"%d" % len(body)), *own], body


def render_error_event(api: Api, error: GatehouseError, request_id: UUID) -> bytes:
    """The same as an SSE event, for a stream that has already begun."""
    return render_anthropic_event(error, str(request_id)) if api in _ANTHROPIC else render_openai_event(error)
