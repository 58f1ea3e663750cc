"""A bound on what requests hold in one process's memory: the bodies of clients and the whole answers of engines.

What is under way as a stream is bounded for each connection (gateway.relay.connection, uvicorn's flow control) and
is not counted here. Bytes count as they come, not as they are announced: an announcement costs nothing to make.
"""

from collections.abc import Callable
from typing import ClassVar, Final

from core.errors import Unavailable

DEFAULT_BYTES: Final = 1 << 30
_RETRY_SECONDS: Final = 1.0


class RelayMemoryExhausted(Unavailable):
    code: ClassVar[str] = "relay_memory_exhausted"
    default_message: ClassVar[str] = "This gateway process holds as much of requests and answers as it may."


class MemoryBudget:
    """Bytes that may be held, and that are. `on_miss` is called whenever there is no room."""

    __slots__ = ("_on_miss", "cap_bytes", "held_bytes")

    def __init__(self, cap_bytes: int = DEFAULT_BYTES, *, on_miss: Callable[[], None] = lambda: None) -> None:
        self.cap_bytes = cap_bytes
        self.held_bytes = 0
        self._on_miss = on_miss

    def take(self, count: int) -> None:
        """Hold `count` bytes more, until `give`. Raises RelayMemoryExhausted, and then holds no more than before."""
        self.held_bytes += count
        if self.held_bytes > self.cap_bytes:
            self.held_bytes -= count
            self._on_miss()
            raise RelayMemoryExhausted(retry_after_seconds=_RETRY_SECONDS)

    def give(self, count: int) -> None:
        """`count` bytes are held no longer."""
        self.held_bytes -= count


class Claim:
    """What one request holds of a budget. `release` gives it back, once."""

    __slots__ = ("_budget", "_bytes")

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._bytes = 0

    def take(self, count: int) -> None:
        """Raises RelayMemoryExhausted."""
        self._budget.take(count)
        self._bytes += count

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def adopt(self, count: int) -> None:
        """`count` bytes that were taken before are this claim's to give back."""
        self._bytes += count

    def release(self) -> None:
        count, self._bytes = self._bytes, 0
        self._budget.give(count)
