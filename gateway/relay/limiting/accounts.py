"""What a process holds of each counter, and how requests are charged to it. Pure: no clock, no I/O.

Of a counter that adds up over a calendar period, a process's part of `held` in Valkey is always
free + consumed + the reservations of open requests. Of minutes and buckets it is `granted`, of which `free` is left.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.layout import BUCKET, CALENDAR, MINUTE, MOST, STANDING, Counter, counter_of
from gateway.relay.rows import LimitRow

Units = tuple[int, int, int, int, int, int]
"""A charge by index: requests, tokens, input tokens, output tokens, money, one request at a time."""

ONE: Final[Units] = (0, 0, 0, 0, 0, 1)
_INDEX: Final = {
    "requests": 0,
    "tokens": 1,
    "input_tokens": 2,
    "output_tokens": 3,
    "money": 4,
    "concurrency": 5,
    "held_requests": 5,
}
HELD_REQUESTS: Final = "held_requests"
_NEVER: Final = float("inf")
_STEP: Final = 1_000
_T = TypeVar("_T")
_HALF: Final = MOST // 2


def units_of(charge: Charge) -> Units:
    """A charge as accounts take it; what is negative counts as nothing, what nobody can count as just too much."""
    incoming, outgoing, micros, requests = charge
    if not (0 <= incoming <= _HALF and 0 <= outgoing <= _HALF and 0 <= micros <= MOST):
        incoming, outgoing, micros = (min(max(0, units), MOST + 1) for units in (incoming, outgoing, micros))
        return requests, min(incoming + outgoing, MOST + 1), incoming, outgoing, micros, 1
    return requests, incoming + outgoing, incoming, outgoing, micros, 1


class Account:
    """One counter, as a process knows it. Units are whole."""

    __slots__ = (
        "active",
        "amount",
        "asked",
        "consumed",
        "counter",
        "free",
        "granted",
        "inflight",
        "kind",
        "largest",
        "left",
        "limit",
        "near",
        "overrun",
        "pending",
        "plans",
        "quiet_until",
        "recent",
        "refund",
    )

    def __init__(self, counter: Counter, limit: LimitRow) -> None:
        self.counter = counter
        self.kind = counter.kind
        self.limit = limit
        self.amount = 0
        """In force when last looked at; 0 before."""
        self.free = 0
        """Held and not reserved: what requests are admitted out of without asking."""
        self.granted = 0
        """Minutes and buckets: slices granted and not reported as spent."""
        self.consumed = 0
        """Calendar: settled and not reported."""
        self.overrun = 0
        """Calendar and buckets: used beyond what was reserved, and not reported."""
        self.refund = 0
        """To be given back at the next report, besides what is free."""
        self.pending: dict[int, int] = {}
        """Minutes: second -> units to be counted in it (or taken out of it) by the next report."""
        self.plans = 0
        """How many plans charge it."""
        self.inflight = 0
        """Standing: requests that run now."""
        self.asked = 0
        """Units reserved since the last rotation."""
        self.recent = 0
        """Units reserved in the rotation before."""
        self.largest = 1
        """Of recent reservations."""
        self.left = 0
        """What Valkey last said was neither used nor held by anyone."""
        self.near = True
        """Too little is left for slices: what is free goes back at once."""
        self.active = False
        """Whether it has anything to report."""
        self.quiet_until = 0.0
        """Until when (monotonic) other processes are not asked again to give back what they might have."""

    @property
    def rate(self) -> float:
        """A bucket's refill a second, a calendar counter's start: what scripts take in that place."""
        return self.limit.refill_per_second or 0.0 if self.kind == BUCKET else float(self.counter.start)

    def filled_since(self, now: float) -> float:
        """What a bucket lost before that (seconds since the epoch) has flowed in again."""
        return now - self.amount / self.rate if self.rate > 0 else 0.0

    def remaining(self) -> int:
        """What requests of this process may still use, as far as it knows."""
        return max(0, self.left + self.free)

    def idle(self) -> bool:
        """Whether nothing of it is here or owed."""
        return not (self.free or self.granted or self.consumed or self.overrun or self.refund or self.pending)

    def unused(self) -> bool:
        """Whether it could be made anew as well, unless something that was charged to it has to be remembered."""
        return not (self.plans or self.active or self.inflight) and self.idle()

    def owes(self) -> bool:
        """Whether the next report gives something back."""
        return self.refund > 0 or self.free > 0 or any(units < 0 for units in self.pending.values())

    def surrender(self) -> None:
        """Stop spending what is free; it is given back with the next report."""
        if self.free > 0:
            if self.kind in (CALENDAR, STANDING, BUCKET):
                self.refund += self.free
            self.free = 0


class Plan:
    """The accounts that a request is charged to, by the tuple of its limits; valid until a period ends."""

    __slots__ = (
        "accounts",
        "calendar",
        "end",
        "entries",
        "limits",
        "minutes",
        "others",
        "standing",
        "start",
        "until",
        "used",
    )

    def __init__(self, limits: Sequence[LimitRow], entries: list[tuple[Account, int]], until: float) -> None:
        self.limits = tuple(limits)  # kept, so that the ids by which the plan is found stay theirs
        self.entries = tuple(entries)
        self.accounts = tuple(account for account, _ in entries)
        self.calendar = tuple(entry for entry in entries if entry[0].kind == CALENDAR)
        self.minutes = tuple(entry for entry in entries if entry[0].kind == MINUTE)
        self.standing = tuple(entry for entry in entries if entry[0].kind == STANDING)
        self.others = tuple(entry for entry in entries if entry[0].kind == BUCKET)
        self.until = until
        """Seconds since the epoch, by Valkey's clock: when a period or a boost ends."""
        self.start = max((max(a.counter.start, a.limit.counts_from) for a, _ in self.calendar), default=0.0)
        """The periods that it counts in have all begun by then (seconds since the epoch)."""
        self.end = min((float(account.counter.end) for account, _ in self.calendar), default=_NEVER)
        """And none has ended before."""
        self.used = True

    def part(self, *, calendar: bool) -> "Plan":
        """The accounts of periods alone, or the others."""
        return Plan(self.limits, [e for e in self.entries if (e[0].kind == CALENDAR) is calendar], self.until)

    def missing(self, units: Units) -> list[int]:
        """What each account lacks of a reservation."""
        return [max(0, units[index] - max(0, account.free)) for account, index in self.entries]


class Accounts:
    """All accounts of a process, and the plans made of them."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self.plans: dict[tuple[int, ...], Plan] = {}
        """By the ids of the rows, which cost nothing to compare; plans keep the rows."""
        self._held_plans: dict[tuple[int, ...], Plan] = {}
        self.active: list[Account] = []

    def plan(self, limits: Sequence[LimitRow], *, holding: bool = False) -> Plan | None:
        """The plan for these rows, if there is one."""
        return (self._held_plans if holding else self.plans).get(tuple(map(id, limits)))

    def make_plan(self, limits: Sequence[LimitRow], now: float, *, holding: bool = False) -> Plan:
        """The plan for these rows at `now` (seconds since the epoch)."""
        entries = []
        until = _NEVER
        for limit in limits:
            index = _INDEX.get(limit.metric)
            if index is None or (limit.metric == HELD_REQUESTS) != holding:
                continue  # the pool's, or not about what is asked for
            counter = counter_of(limit, now)
            account = self._accounts.get(counter.name)
            if account is None:
                account = self._accounts[counter.name] = Account(counter, limit)
            account.limit = limit
            self.set_amount(account, now)
            entries.append((account, index))
            if counter.end:
                until = min(until, counter.end)
            if limit.boost_until is not None and limit.boost_until > now:
                until = min(until, limit.boost_until)
        plan = Plan(limits, entries, until)
        for account in plan.accounts:
            account.plans += 1
        plans = self._held_plans if holding else self.plans
        key = tuple(map(id, limits))
        if (before := plans.get(key)) is not None:
            self._drop(before)
        plans[key] = plan
        return plan

    def _drop(self, plan: Plan) -> None:
        for account in plan.accounts:
            account.plans -= 1

    def set_amount(self, account: Account, now: float) -> None:
        """What is in force now; when it fell, nothing more is spent without asking."""
        amount = min(MOST, account.limit.amount_at(now))
        if amount < account.amount:
            account.left -= account.amount - amount
            account.near = True
            account.surrender()
            self.activate(account)
        account.amount = amount

    def activate(self, account: Account) -> None:
        """It has something to report."""
        if not account.active:
            account.active = True
            self.active.append(account)

    def find(self, name: str) -> Account | None:
        """The account of a counter, if there is one."""
        return self._accounts.get(name)

    def all(self) -> list[Account]:
        return list(self._accounts.values())

    def forget_unused(self, in_use: Callable[[], set[Account]]) -> Iterator[None]:
        """Drop plans that nobody asked for since the last time, and accounts that nothing needs any more.

        A step at a time, so that nobody waits for long. `in_use`: accounts of what runs, or is to be declared.
        """
        for plans in (self.plans, self._held_plans):
            for keys in batched(list(plans)):
                for key in keys:
                    plan = plans.get(key)
                    if plan is None or plan.used:
                        if plan is not None:
                            plan.used = False
                        continue
                    del plans[key]
                    self._drop(plan)
                yield
        for names in batched(list(self._accounts)):
            unused = [account for name in names if (account := self._accounts.get(name)) and account.unused()]
            kept = in_use() if unused else set()
            for account in unused:
                if account not in kept:
                    del self._accounts[account.counter.name]
            yield


def batched(names: list[_T]) -> Iterator[list[_T]]:
    """In parts that are short work."""
    for start in range(0, len(names), _STEP):
        yield names[start : start + _STEP]
