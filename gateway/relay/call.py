"""One inference request under way, why it may have to end early, and what a server tells of it."""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Protocol
from uuid import UUID

from core.errors import GatehouseError
from gateway.relay.carrier import Carrier
from gateway.relay.guards import Receive, Scope
from gateway.relay.plan import Api


class Interruption(Enum):
    """Why a request's task is cancelled."""

    CLIENT_LEFT = auto()
    BODY_LATE = auto()
    SEND_LATE = auto()
    SHUTDOWN = auto()


class Call:
    """One inference request under way."""

    __slots__ = (
        "api",
        "defect",
        "ended",
        "exchange",
        "give_up",
        "held_bytes",
        "interruption",
        "late",
        "late_at",
        "request_id",
        "started",
        "task",
        "watcher",
    )

    def __init__(self, task: asyncio.Task[Any] | None, request_id: UUID, api: Api) -> None:
        self.task = task  # None: nothing has to be waited for in one yet
        self.api = api
        self.request_id = request_id
        self.exchange: Carrier | None = None
        self.started = False  # the response's head is sent
        self.ended = False  # everything is decided: a client that leaves from here on changes nothing
        self.interruption: Interruption | None = None
        self.late_at: int | None = None  # the tick at which the present wait is too long
        self.late = Interruption.BODY_LATE
        self.give_up: Callable[[Call], None] | None = None  # ends it while it has no task
        self.defect: GatehouseError | None = None  # of ours: it is to be told and nothing else
        self.watcher: asyncio.Task[None] | None = None  # where the server does not tell that the client leaves
        self.held_bytes = 0

    def client_left(self) -> None:
        """The client has gone."""
        if not self.ended:
            self.interrupt(Interruption.CLIENT_LEFT)

    def interrupt(self, interruption: Interruption) -> None:
        """End it early: its task is cancelled, or what stands in for one is called. Only the first reason counts."""
        if self.interruption is not None:
            return
        self.interruption = interruption
        if self.task is not None:
            self.task.cancel()
        elif self.give_up is not None:
            self.give_up(self)


class Cycle(Protocol):
    """A request that has come whole, and the way to answer it; our server's, see gateway.relay.cycle."""

    scope: Scope
    body: bytearray

    @property
    def congested(self) -> bool:
        """The client has not yet taken what it was sent before."""

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """The whole response."""

    def on_leaving(self, call: Callable[[], None]) -> None:
        """Have `call` called when the client leaves before the response is complete."""


async def watch(receive: Receive, call: Call) -> None:
    """Notice the client leaving; ends by itself when the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.client_left()
