"""`/v1/realtime` as an ASGI websocket application: every response of a conversation is a request of its own.

Authentication, permission, limits and the ledger's row are each turn's, not the connection's. Two tasks carry a
connection: one reads what the client says, one brings the response that is under way.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from core.clock import Clock
from core.errors import Draining, GatehouseError, NotFound
from gateway.relay.exchange import Exchange
from gateway.relay.guards import ON_STOPPING
from gateway.relay.memory import MemoryBudget
from gateway.relay.plan import Decision, Ready, SlimRequest
from gateway.relay.realtime.connection import Connection, RealtimeLimits
from gateway.relay.realtime.handshake import (
    Send,
    choose_subprotocol,
    permission_request,
    read_headers,
    read_model,
    refuse,
)
from gateway.relay.realtime.session import Session
from gateway.relay.routes import REALTIME

log = structlog.get_logger(__name__)

_ID_BYTES: Final = 12


class Pipeline(Protocol):
    """What decides about turns."""

    async def prepare(self, request: SlimRequest) -> Decision:
        """Authenticate, parse, authorise, reserve and route."""

    async def models(self, request: SlimRequest) -> bytes:
        """Raises GatehouseError unless the key may use the model that the request's path names."""


def new_id(prefix: str) -> str:
    """An identifier of an event, item, response or session."""
    return prefix + secrets.token_hex(_ID_BYTES)


class RealtimeApp:
    """Both doors' websocket application. `exchange` makes what carries an admitted turn to an engine."""

    def __init__(
        self,
        pipeline: Pipeline,
        exchange: Callable[[Ready], Exchange],
        clock: Clock,
        limits: RealtimeLimits | None = None,
        memory: Callable[[], MemoryBudget] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._exchange = exchange
        self._clock = clock
        self._limits = limits or RealtimeLimits()
        own_memory = MemoryBudget()
        self._memory = memory or (lambda: own_memory)
        self._connections: set[Connection] = set()
        self._draining = False

    @property
    def in_flight(self) -> int:
        """Responses under way."""
        return sum(connection.responding for connection in self._connections)

    def close_idle(self) -> None:
        """Take no more connections and end those that are idle; the others end with their response."""
        self._draining = True
        for connection in list(self._connections):
            connection.drain()

    def abort_all(self, error: GatehouseError | None = None) -> None:
        """End what is under way with an error event, settled."""
        for connection in list(self._connections):
            connection.abort(error or Draining(retry_after_seconds=1.0))

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        await receive()  # websocket.connect
        try:
            if scope["path"] != REALTIME:
                raise NotFound
            if self._draining:
                raise Draining(retry_after_seconds=1.0)
            model, headers = read_model(scope), read_headers(scope)
            await self._pipeline.models(permission_request(headers, model, self._clock.monotonic()))
        except GatehouseError as error:
            await refuse(scope, send, error)
            return
        except Exception:
            # The last line of defence, as for requests: a defect of ours is answered in shape.
            log.exception("handshake_failed")
            await refuse(scope, send, GatehouseError())
            return
        connection = Connection(
            Session(model, new_id=new_id, limits=self._limits.session),
            headers,
            scope,
            receive,
            send,
            pipeline=self._pipeline,
            exchange=self._exchange,
            clock=self._clock,
            limits=self._limits,
            memory=self._memory(),
        )
        if (on_stopping := scope.get(ON_STOPPING)) is not None:
            on_stopping(lambda: connection.abort(Draining(retry_after_seconds=1.0)))
        self._connections.add(connection)  # before anything is awaited: whoever drains must not miss it
        try:
            await send({"type": "websocket.accept", "subprotocol": choose_subprotocol(scope)})
            await connection.run()
        finally:
            self._connections.discard(connection)
