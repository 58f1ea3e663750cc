"""What brings an admitted request its answer, as doors see it: an exchange of its own, or a share in another's."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from core.errors import GatehouseError
from gateway.relay.attempt import Soon, Write
from gateway.relay.exchange import ResponseHead


class Carrier(Protocol):
    """gateway.relay.exchange.Exchange, which see; the ticket is settled once, before the last byte is handed out."""

    finished: bool
    """The last bytes have been handed out."""

    def start_now(self, news: Callable[[], None]) -> bool:
        """Send the request without a task, where nothing has to be waited for first."""

    def whole_now(self) -> tuple[ResponseHead, bytes] | Soon:
        """The whole answer, settled, if it is there and nothing is special about it."""

    async def open(self) -> ResponseHead:
        """Status and headers, once the first bytes for the client are there."""

    async def next_chunk(self, write: Write | None = None) -> bytes:
        """The next bytes, b"" at the end."""

    def abort(self, error: GatehouseError, task: asyncio.Task[Any] | None) -> None:
        """End it with `error`: the client is told, the ticket settled."""

    async def aclose(self, error: GatehouseError | None = None) -> None:
        """The client has left, or has everything."""

    def close(self, error: GatehouseError | None = None) -> None:
        """`aclose`, for those who cannot wait."""
