"""What a limit would have done to requests that were made: replayed one after the other, in the order of their time.

Counted is what requests used. The doors reserve more (a bound) until a request ends, so that close to a limit they
refuse some requests that are let through here; a client that was refused might also have sent less, or again.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple, Protocol

from tenants.policies.periods import Period, period_at

WINDOW_SECONDS: Final = 60
MOST_FIRST: Final = 10
_LONGEST_SECONDS: Final = 86_400.0


class Use(NamedTuple):
    """One request: when it began (seconds since the epoch), what it used of the metric, how long it took."""

    at: float
    amount: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit as the replay needs it; see tenants.models.Limit."""

    window: str
    amount: int
    zone: str = "UTC"
    refill_per_second: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What would have happened. Amounts in the metric's unit."""

    requests: int = 0
    blocked: int = 0
    used: int = 0
    blocked_amount: int = 0
    first: list[float] = field(default_factory=list)  # when the first ones were blocked, MOST_FIRST of them
    last: float | None = None

    @property
    def blocked_share(self) -> float:
        """Of the requests, 0 to 1."""
        return self.blocked / self.requests if self.requests else 0.0


class Gate(Protocol):
    """A limit's count; `admits` counts what it admits."""

    def admits(self, use: Use) -> bool: ...


class _Calendar:
    """Each period by itself: a row of the old one may come after rows of the new."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._period = Period(0.0, 0.0)
        self._used: defaultdict[float, int] = defaultdict(int)  # by the period's start

    def admits(self, use: Use) -> bool:
        if not self._period.holds(use.at):
            self._period = period_at(self._rule.window, self._rule.zone, use.at)
        if self._used[self._period.start] + use.amount > self._rule.amount:
            return False
        self._used[self._period.start] += use.amount
        return True


class _Sliding:
    """Any 60 seconds, by whole seconds, as the doors count it."""

    def __init__(self, rule: Rule) -> None:
        self._amount = rule.amount
        self._seconds: deque[tuple[int, int]] = deque()
        self._used = 0

    def admits(self, use: Use) -> bool:
        second = int(use.at)
        while self._seconds and self._seconds[0][0] <= second - WINDOW_SECONDS:
            self._used -= self._seconds.popleft()[1]
        if self._used + use.amount > self._amount:
            return False
        self._used += use.amount
        if self._seconds and self._seconds[-1][0] >= second:  # rows may come a little out of order
            last, amount = self._seconds.pop()
            self._seconds.append((last, amount + use.amount))
        else:
            self._seconds.append((second, use.amount))
        return True


class _Bucket:
    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._level = float(rule.amount)
        self._at: float | None = None

    def admits(self, use: Use) -> bool:
        if self._at is not None and use.at > self._at:
            self._level = min(
                float(self._rule.amount), self._level + (use.at - self._at) * self._rule.refill_per_second
            )
        self._at = use.at if self._at is None else max(self._at, use.at)
        if self._level < use.amount:
            return False
        self._level -= use.amount
        return True


class _Standing:
    """Requests at once."""

    def __init__(self, rule: Rule) -> None:
        self._amount = rule.amount
        self._ends: list[float] = []

    def admits(self, use: Use) -> bool:
        while self._ends and self._ends[0] <= use.at:
            heappop(self._ends)
        if len(self._ends) >= self._amount:
            return False
        heappush(self._ends, use.at + min(max(use.seconds, 0.0), _LONGEST_SECONDS))
        return True


_GATES: Final[Mapping[str, Callable[[Rule], Gate]]] = {
    "day": _Calendar,
    "month": _Calendar,
    "minute": _Sliding,
    "bucket": _Bucket,
    "standing": _Standing,
}


def gate(rule: Rule) -> Gate:
    """Raises ValueError for an unknown window."""
    kind = _GATES.get(rule.window)
    if kind is None:
        raise ValueError(f"{rule.window} is no window")
    return kind(rule)


def replay(rule: Rule, uses: Iterable[Use]) -> Outcome:
    """Put the requests through the limit. Memory does not grow with their number."""
    outcome, passes = Outcome(), gate(rule)
    for use in uses:
        outcome.requests += 1
        outcome.used += use.amount
        outcome.last = use.at
        if not passes.admits(use):
            outcome.blocked += 1
            outcome.blocked_amount += use.amount
            if len(outcome.first) < MOST_FIRST:
                outcome.first.append(use.at)
    return outcome


def first_of(uses: Iterable[Use], most: int) -> Iterator[Use]:
    """The first `most` of them and no more: a bound of the time that a replay takes."""
    for number, use in enumerate(uses):
        if number == most:
            return
        yield use
