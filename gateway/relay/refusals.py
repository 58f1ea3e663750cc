"""What a connection is refused with before its request is anybody's, and the applications that say so."""

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from core.errors import GatehouseError, InvalidRequest, Unavailable
from core.ids import uuid7
from gateway.relay.clients import ClientGuard, TooManyOfClient
from gateway.relay.dialects.base import error_answer
from gateway.relay.guards import Message, Receive
from gateway.relay.routes import api_near


class HeadTooLarge(InvalidRequest):
    status: ClassVar[int] = 431
    code: ClassVar[str] = "headers_too_large"
    default_message: ClassVar[str] = "The request's headers are larger than this gateway accepts."


class HeadTimeout(InvalidRequest):
    status: ClassVar[int] = 408
    code: ClassVar[str] = "request_timeout"
    default_message: ClassVar[str] = "The request's headers did not arrive in time."


class BrokenHttp(InvalidRequest):
    code: ClassVar[str] = "invalid_http"
    default_message: ClassVar[str] = "This is not an HTTP request."


class BrokenHandshake(InvalidRequest):
    code: ClassVar[str] = "invalid_handshake"


class TooManyConnections(Unavailable):
    code: ClassVar[str] = "too_many_connections"
    default_message: ClassVar[str] = "This gateway process has as many connections as it takes."


def refuse_with(error: GatehouseError, *, close: bool) -> Any:
    """An application that answers everything with `error`, and with `close` ends the connection."""

    async def refuse(scope: Any, receive: Receive, send: Any) -> None:
        headers, body = error_answer(api_near(scope["path"]), error, uuid7())
        if close:
            headers.append((b"connection", b"close"))
        start: Message = {"type": "http.response.start", "status": error.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    return refuse


def counted(app: Any, clients: ClientGuard, client: str) -> Callable[[Any, Receive, Any], Awaitable[None]]:
    """`app`, for one request that counts for `client` while it is answered."""

    async def carried(scope: Any, receive: Receive, send: Any) -> None:
        over = clients.enter(client)
        try:
            # The connection is the proxy's, and carries other clients' requests.
            chosen = refuse_with(TooManyOfClient(retry_after_seconds=1.0), close=False) if over else app
            await chosen(scope, receive, send)
        finally:
            clients.leave(client)

    return carried
