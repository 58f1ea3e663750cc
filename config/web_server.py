"""The web process's server: uvicorn with the relay's guards on its connections, and websockets wherever asked for."""

import asyncio
from typing import ClassVar, Final

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from config.environment import Environment
from config.wiring import build_client_guard
from gateway.relay.files import allow_connections
from gateway.relay.protocol import GuardedProtocol, ProtocolLimits
from gateway.relay.server import check_connections
from gateway.relay.websocket import GuardedWebSocket

_CLOSE_SECONDS: Final = 5
"""How long open websockets and requests have after SIGTERM."""


class WebSocket(GuardedWebSocket):
    """A stream of a page or a node agent is told to come back when this process stops; a conversation ends itself."""

    def shutdown(self) -> None:
        if self.on_stopping is None or self.close_sent:
            WebSocketsSansIOProtocol.shutdown(self)
        else:
            self.on_stopping()


class WebProtocol(GuardedProtocol):
    """A connection of the web process; the application's router knows which addresses are websockets'."""

    websocket_class: ClassVar[type[GuardedWebSocket]] = WebSocket

    def takes_websocket(self, path: str) -> bool:
        return True


class WebServer(uvicorn.Server):
    """Looks after connections as the relay's server does."""

    _next_check = 0.0

    async def on_tick(self, counter: int) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._next_check:
            self._next_check = now + 1.0
            check_connections(self.server_state, now)
        return await super().on_tick(counter)


def build_server(environment: Environment, application: str) -> WebServer:
    """The server of `application` (module:attribute). Raises SettingsError."""
    limits = ProtocolLimits(
        head_deadline_seconds=environment.head_deadline_seconds,
        connection_cap=allow_connections(environment.connections),
    )
    clients = build_client_guard(environment, door="drf")
    protocol = type("WebProtocol", (WebProtocol,), {"limits": limits, "clients": clients})
    return WebServer(
        uvicorn.Config(
            application,
            host=environment.web_host,
            port=environment.web_port,
            lifespan="on",
            http=protocol,
            ws=WebSocket,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            proxy_headers=False,
        )
    )
