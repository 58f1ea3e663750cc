"""The beginning of a realtime connection: which model, whose key, and how a refusal is told."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from core.errors import GatehouseError, InvalidRequest
from core.ids import uuid7
from gateway.relay.dialects.base import error_answer
from gateway.relay.plan import Api, SlimRequest
from gateway.relay.routes import MODELS, REALTIME

Send = Callable[[Any], Awaitable[None]]

SUBPROTOCOL: Final = "realtime"
_KEY_PREFIX: Final = "openai-insecure-api-key."
_CLOSE_CODES: Final = 4000
"""Where a server cannot answer a handshake in HTTP, the close code is this and the HTTP status."""

_unsafe = re.compile(r"[\x00-\x1f\x7f]")


def read_model(scope: Mapping[str, Any]) -> str:
    """The model of the address. Raises InvalidRequest."""
    query: str = scope.get("query_string", b"").decode("latin-1")
    try:
        names = parse_qs(query, max_num_fields=32, errors="strict").get("model", [])
    except ValueError as error:
        raise InvalidRequest("The address is not valid.", param="model") from error
    if len(names) != 1 or _unsafe.search(names[0]):
        raise InvalidRequest(f"Name the model in the address: {REALTIME}?model=NAME.", param="model")
    name: str = names[0]
    return name


def read_headers(scope: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    """The headers of each turn's request: the handshake's, with a browser's key where keys are looked for.

    Browsers can set no header of a websocket; their key comes as a subprotocol. Two keys that differ are none, as
    everywhere.
    """
    headers: list[tuple[bytes, bytes]] = []
    for name, value in scope["headers"]:
        name = name.lower()
        if not name.startswith(b"sec-websocket-"):
            headers.append((name, value))
    keys = [offered.removeprefix(_KEY_PREFIX) for offered in _subprotocols(scope) if offered.startswith(_KEY_PREFIX)]
    return [*headers, *((b"x-api-key", key.encode()) for key in keys)]


def choose_subprotocol(scope: Mapping[str, Any]) -> str | None:
    """`realtime` if it is offered. Never a key: what is chosen is sent back."""
    return SUBPROTOCOL if SUBPROTOCOL in _subprotocols(scope) else None


def permission_request(headers: Sequence[tuple[bytes, bytes]], model: str, received_at: float) -> SlimRequest:
    """What the pipeline is asked before a connection is accepted: may this key use this model?"""
    return SlimRequest(uuid7(), Api.REALTIME, f"{MODELS}/{model}", headers, b"", received_at)


async def refuse(scope: Mapping[str, Any], send: Send, error: GatehouseError) -> None:
    """Refuse a connection that has not been accepted, in HTTP where the server can."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _CLOSE_CODES + error.status, "reason": error.code})
        return
    headers, body = error_answer(Api.REALTIME, error, uuid7())
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _subprotocols(scope: Mapping[str, Any]) -> Sequence[str]:
    found: Sequence[str] = scope.get("subprotocols") or ()
    return found
