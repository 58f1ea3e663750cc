"""Between Django's requests and responses and the words of the relay."""

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from core.errors import GatehouseError, error_headers
from core.ids import uuid7
from gateway.relay.carrier import Carrier
from gateway.relay.dialects.base import id_headers, render_error
from gateway.relay.guards import decode_body, too_large
from gateway.relay.memory import Claim
from gateway.relay.plan import Api, Headers, SlimRequest

BODY_CUT: Final = "gatehouse.body_cut"
"""Key of the ASGI scope that says that the server's side stopped reading a body at the cap."""

CLIENT_LEFT: Final = "gatehouse.client_left"
"""Key of the ASGI scope that says that the client has gone. Django cancels what a view awaits at that moment; between
two awaits, on the view's thread, there is nothing to cancel, and it would go on as if somebody listened."""

_CLIENT_CLOSED_REQUEST: Final = 499  # for nobody to see; nginx's number


def slim_request(request: HttpRequest, api: Api, *, body_cap_bytes: int, read_body: bool, claim: Claim) -> SlimRequest:
    """The request as the pipeline sees it; what is held of its body is put on `claim`. Raises BodyTooLarge,
    RelayMemoryExhausted, and what gateway.relay.guards.decode_body raises.

    `read_body` is False where a body has no meaning; it is then left unread.
    """
    received_at = time.monotonic()
    body = _read(request, body_cap_bytes) if read_body else b""
    claim.take(len(body))
    return SlimRequest(uuid7(), api, request.path, _headers(request), body, received_at, claim=claim)


def _headers(request: HttpRequest) -> Headers:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]


def _read(request: HttpRequest, cap_bytes: int) -> bytes:
    """The raw body, encodings undone. Django's own cap (DATA_UPLOAD_MAX_MEMORY_SIZE) is for forms, not for this."""
    if getattr(request, "scope", {}).get(BODY_CUT):
        raise too_large(cap_bytes)
    announced = request.META.get("CONTENT_LENGTH") or "0"
    if announced.isdigit() and int(announced) > cap_bytes:
        raise too_large(cap_bytes)
    body = request.read(cap_bytes + 1)
    if len(body) > cap_bytes:
        raise too_large(cap_bytes)
    return decode_body(body, _encoding(request), cap_bytes=cap_bytes)


def _encoding(request: HttpRequest) -> bytes | None:
    encoding: str | None = request.headers.get("content-encoding")
    return None if encoding is None else encoding.encode("latin-1")


def error_response(error: GatehouseError, api: Api = Api.CHAT, slim: SlimRequest | None = None) -> HttpResponse:
    """An error in the shape that clients of this API know: the relay's bytes."""
    request_id = slim.request_id if slim else uuid7()
    response = HttpResponse(render_error(api, error, request_id), status=error.status)
    set_headers(response, [*error_headers(error), *id_headers(api, request_id)])
    return response


def json_response(body: bytes, slim: SlimRequest) -> HttpResponse:
    """A body that is JSON already."""
    response = HttpResponse(body, content_type="application/json")
    response["x-request-id"] = str(slim.request_id)
    return response


async def open_response(exchange: Carrier, scope: Mapping[str, Any] | None = None) -> HttpResponseBase:
    """The answer that the exchange brings: whole when it ends with its first bytes, else as it comes.

    `scope` is the request's, for `CLIENT_LEFT`. The exchange is closed whatever happens.
    """
    scope = {} if scope is None else scope
    if scope.get(CLIENT_LEFT):
        await exchange.aclose()
        return HttpResponse(status=_CLIENT_CLOSED_REQUEST)
    try:
        head = await exchange.open()
        first = await exchange.next_chunk()
    except BaseException:
        await exchange.aclose()
        raise
    response: HttpResponseBase
    if exchange.finished:
        await exchange.aclose()
        response = HttpResponse(first, status=head.status)
    else:
        response = StreamingHttpResponse(_Stream(exchange, first, scope), status=head.status)
        # A client that leaves while the response is on its way to the server: nobody begins to read it.
        weakref.finalize(response, _close_unread, exchange, asyncio.get_running_loop()).atexit = False
    set_headers(response, head.headers)
    return response


class _Stream:
    """What a streaming response iterates over.

    Django closes it with the response, also when sending was given up in the middle: a generator alone would hold
    its exchange until it is collected, whenever that is.
    """

    def __init__(self, exchange: Carrier, first: bytes, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self._exchange = exchange
        self._first = first
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        try:
            if self._scope.get(CLIENT_LEFT):
                return
            yield self._first
            while not exchange.finished:
                chunk = await exchange.next_chunk()
                if chunk:
                    yield chunk
        finally:
            await exchange.aclose()

    def close(self) -> None:
        """Called by Django on a thread of its own."""
        _close_unread(self._exchange, self._loop)


def _close_unread(exchange: Carrier, loop: asyncio.AbstractEventLoop) -> None:
    """The response is closed or gone, on whatever thread; its exchange must not outlive it."""
    if exchange.finished or loop.is_closed():
        return
    with contextlib.suppress(RuntimeError):  # closed meanwhile
        asyncio.run_coroutine_threadsafe(exchange.aclose(), loop)


def set_headers(response: HttpResponseBase, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Headers as the relay has them."""
    for name, value in headers:
        response[name.decode("latin-1")] = value.decode("latin-1")
