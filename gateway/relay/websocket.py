"""The relay's end of a websocket: uvicorn's protocol, taken over from an HTTP connection, bounded.

What uvicorn bounds itself: a message's size, one message read ahead, pings that are not answered.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Final

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from gateway.relay.guards import ABORT, ON_STOPPING

MESSAGE_BYTES: Final = 1024 * 1024
_UNREAD_BYTES: Final = 1024 * 1024  # of pongs and events that the client does not take
_FRAGMENTS: Final = 1024  # of one message: empty ones have no size that could be bounded
_LINE_BYTES: Final = 8000  # the websockets library takes 8192, and 128 headers
_HEADERS: Final = 120
_KEY_BYTES: Final = 16
_VERSION: Final = b"13"
_ANSWERS: Final = ("http.response.start", "http.response.body")


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """One websocket of a client. A server that stops leaves its end to the application, which is told."""

    on_lost: Callable[[], None] | None = None
    """Called once the connection is no more."""

    on_stopping: Callable[[], None] | None = None
    """The application's, see gateway.relay.guards.ON_STOPPING; called by servers that end no websockets otherwise."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.conn.debug = False  # it would log headers, and keys with them, and whatever is said

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def shutdown(self) -> None:
        """The door ends its websockets: those that are idle at once, the others with what they are telling."""

    def data_received(self, data: bytes) -> None:
        if self.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self.transport.abort()  # it asks, in pings that are answered at once, and does not read
            return
        super().data_received(data)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]  # a server's own key
            self.scope[ON_STOPPING] = self._note_on_stopping  # type: ignore[typeddict-unknown-key]

    def _note_on_stopping(self, call: Callable[[], None]) -> None:
        self.on_stopping = call

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= _FRAGMENTS:
            self.transport.abort()
            return
        super().handle_cont(event)

    async def send(self, message: Any) -> None:
        if not self.handshake_complete and message["type"] in _ANSWERS:
            message = {**message, "type": f"websocket.{message['type']}"}  # refused before it came to the application
        elif self.close_sent:
            raise ClientDisconnected
        await super().send(message)


def offers_websocket(headers: Sequence[tuple[bytes, bytes]], *, offer: bytes) -> bool:
    """Whether a GET's headers (lower-case names) ask for a websocket; `offer`: the name of the Upgrade header here."""
    return any(name in (b"upgrade", offer) and value.strip().lower() == b"websocket" for name, value in headers)


def handshake_fault(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """What is wrong with a websocket's handshake (RFC 6455, 4.2.1), in a sentence; None when nothing is."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        found.setdefault(name, []).append(value.strip())
    if len(headers) > _HEADERS or any(len(name) + len(value) > _LINE_BYTES for name, value in headers):
        return "Its headers are too large."
    if not any(b"upgrade" in value.lower() for value in found.get(b"connection", ())):
        return "It lacks 'Connection: Upgrade'."
    if b"content-length" in found or b"transfer-encoding" in found:
        return "It has a body."
    if found.get(b"sec-websocket-version") != [_VERSION]:
        return "It must be of version 13."
    try:
        (key,) = found.get(b"sec-websocket-key", [])
        if len(base64.b64decode(key, validate=True)) == _KEY_BYTES:
            return None
    except (ValueError, binascii.Error):
        pass
    return "Its Sec-WebSocket-Key is not valid."
