"""Time as a dependency, so that every wait and window can be tested without sleeping."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the code above may ask about time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never steps back; only differences mean anything."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""


class SystemClock:
    """The machine's own clock."""

    monotonic = staticmethod(time.monotonic)  # itself, and not through a method: it is asked several times a request

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A clock that moves only when told to; for tests."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed = 0.0

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._start.timestamp() + self._elapsed, tz=UTC)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`; raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError("a monotonic clock does not step back")
        self._elapsed += seconds
