"""A limiter that a test looks into: what it was asked to reserve, and how each reservation was settled."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.errors import GatehouseError
from gateway.relay.limiting.base import Charge
from gateway.relay.rows import LimitRow


@dataclass
class NotedReservation:
    """Keeps what it was settled with; the second time is a no-op."""

    limits: Sequence[LimitRow]
    bound: Charge
    settled: list[tuple[Charge | None, int]] = field(default_factory=list)
    period_from: float = 0.0

    def settle(self, used: Charge | None, sequence: int) -> None:
        if not self.settled:
            self.settled.append((used, sequence))

    def within(self, moment: float) -> float:
        return max(moment, self.period_from)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-ratelimit-limit-" + row.metric.encode(), b"%d" % row.amount) for row in self.limits]


class NotingLimiter:
    """Grants everything, or refuses with `refusals`, one after the other. `at_hand`: without a wait."""

    def __init__(self, *, at_hand: bool = True) -> None:
        self.at_hand = at_hand
        self.refusals: list[GatehouseError | None] = []
        self.made: list[NotedReservation] = []
        self.asked = 0
        """How often a wait was needed."""

    def reserve_now(self, limits: Sequence[LimitRow], bound: Charge) -> NotedReservation | None:
        return self._make(limits, bound) if self.at_hand and not self.refusals else None

    async def reserve(self, limits: Sequence[LimitRow], bound: Charge) -> NotedReservation:
        self.asked += 1
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal is not None:
            raise refusal
        return self._make(limits, bound)

    def _make(self, limits: Sequence[LimitRow], bound: Charge) -> NotedReservation:
        made = NotedReservation(limits, bound)
        self.made.append(made)
        return made

    @property
    def open(self) -> list[NotedReservation]:
        """Those that nobody has settled."""
        return [made for made in self.made if not made.settled]
