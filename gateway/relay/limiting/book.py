"""What a process has reserved and spent, and what it tells Valkey of it. Pure: `limiter` does the asking.

Open reservations, and settled ones whose row the ledger is not known to have, are remembered: whenever the process has
to declare anew what it holds (gateway.relay.limiting.layout), it is added up from them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from gateway.policies.slices import is_near, kept, largest_after, wished
from gateway.relay.limiting.accounts import Account, Accounts, Plan, Units, units_of
from gateway.relay.limiting.base import Charge
from gateway.relay.limiting.headers import ratelimit_headers
from gateway.relay.limiting.layout import BUCKET, CALENDAR, MINUTE, STANDING, WINDOW_SECONDS
from gateway.relay.limiting.settled import Settled

Record = tuple[Any, ...]
Saved = list[tuple[Account, dict[int, int], int]]
"""Of each account, what a message tells of seconds and of a bucket's level."""

_OPEN: Final = -1
_MOMENT: Final = 0.001  # seconds


class Held:
    """A Reservation."""

    __slots__ = ("book", "plan", "second", "sequence", "units")

    def __init__(self, book: "Book", plan: Plan, units: Units, second: int) -> None:
        self.book = book
        self.plan = plan
        self.units = units
        self.second = second
        self.sequence = _OPEN

    def settle(self, used: Charge | None, sequence: int) -> None:
        if self.sequence != _OPEN:
            return
        if used is None and not sequence:
            self.book.keep(self)
        else:
            self.book.settle(self, self.units if used is None else units_of(used), sequence)

    def within(self, moment: float) -> float:
        plan = self.plan
        if plan.start <= moment < plan.end:
            return moment
        return max(plan.start, min(moment, plan.end - _MOMENT))

    def headers(self) -> list[tuple[bytes, bytes]]:
        return ratelimit_headers(self.plan.entries, self.book.valkey_now())


class Book:
    """All of one process. `wake`: something should be told at once; `valkey_now`: Valkey's clock, as far as known."""

    def __init__(self, *, wake: Callable[[], None], valkey_now: Callable[[], float]) -> None:
        self.accounts = Accounts()
        self.open: set[Held] = set()
        self.settled = Settled()
        self.last_sequence = 0
        """Of the newest row that was settled here."""
        self.told = 0
        """Up to which sequence everything is in Valkey."""
        self.acknowledged = 0
        self.wake = wake
        self.valkey_now = valkey_now

    # Reserving

    def take(self, plan: Plan, units: Units, second: int) -> Held:
        """Reserve out of what is free; the caller has seen that it is enough."""
        for account, index in plan.entries:
            n = units[index]
            account.free -= n
            account.asked += n
            if n > account.largest:
                account.largest = n
        for account, index in plan.minutes:
            if n := units[index]:
                pending = account.pending
                pending[second] = pending.get(second, 0) + n
        for account, index in plan.standing:
            account.inflight += units[index]
        plan.used = True
        held = Held(self, plan, units, second)
        self.open.add(held)
        return held

    def granted(self, plan: Plan, units: Units, second: int, missing: list[int]) -> Held:
        """Reserve what was free (already taken) and what Valkey granted besides."""
        for (account, index), lacking in zip(plan.entries, missing, strict=True):
            n = units[index]
            account.asked += n
            account.largest = max(account.largest, n)
            if account.kind == MINUTE:
                if n > lacking:  # the rest was counted when it was granted
                    account.pending[second] = account.pending.get(second, 0) + n - lacking
                    self.accounts.activate(account)
            elif account.kind == STANDING:
                account.inflight += n
        plan.used = True
        held = Held(self, plan, units, second)
        self.open.add(held)
        return held

    def ask(self, plan: Plan, units: Units, missing: list[int]) -> list[Record]:
        """Take what is free of each account, and say what is to be asked for of the others."""
        records: list[Record] = []
        for (account, index), lacking in zip(plan.entries, missing, strict=True):
            account.free -= units[index] - lacking
            if lacking:
                counter = account.counter
                start = (counter.name, account.kind, account.amount, account.rate, counter.end)
                largest = max(account.largest, units[index])
                wish = wished(recent=account.recent, asked=account.asked)
                records.append((*start, lacking, wish, largest, max(0, account.free)))
        return records

    def untake(self, plan: Plan, units: Units, missing: list[int]) -> None:
        """It was not granted: what `ask` took is free again."""
        for (account, index), lacking in zip(plan.entries, missing, strict=True):
            if taken := units[index] - lacking:
                account.free += taken
                self.accounts.activate(account)
                if account.near:
                    self.wake()

    def recall(self, name: str) -> bool:
        """Give back what lies free of that counter; whether there is something to tell."""
        account = self.accounts.find(name)
        if account is None or account.idle():
            return False
        account.near = True
        self.accounts.activate(account)
        return True

    def forget_unused(self) -> Iterator[None]:
        """Drop plans and accounts that nothing needs any more, a step at a time."""
        return self.accounts.forget_unused(self._in_use)

    def _in_use(self) -> set[Account]:
        accounts = {account for held in self.open for account in held.plan.accounts}
        accounts.update(self.settled.accounts())
        return accounts

    def settle(self, held: Held, spent: Units, sequence: int) -> None:
        """See Reservation.settle."""
        held.sequence = sequence
        self.open.discard(held)
        plan, units = held.plan, held.units
        if sequence > self.last_sequence:
            self.last_sequence = sequence
        if sequence:
            self.settled.add(plan, sequence, held.second, spent)
        near = False
        for account, index in plan.calendar:
            need, use = units[index], spent[index]
            if use <= need:
                account.consumed += use
                account.free += need - use
            else:
                account.consumed += need
                account.overrun += use - need
            if not account.active:
                self.accounts.activate(account)
            near = near or account.near
        for account, index in plan.minutes:
            change = spent[index] - units[index]
            if change and held.second >= self.valkey_now() - WINDOW_SECONDS:
                account.pending[held.second] = account.pending.get(held.second, 0) + change
                self.accounts.activate(account)
                near = near or account.near
        for account, index in plan.standing:
            account.inflight -= units[index]
            account.free += units[index]
            if not account.active:
                self.accounts.activate(account)
            near = near or account.near
        for account, index in plan.others:
            if change := spent[index] - units[index]:
                if change < 0:
                    account.refund -= change
                else:
                    account.overrun += change
                self.accounts.activate(account)
                near = near or account.near
        if near:
            self.wake()

    def keep(self, held: Held) -> None:
        """It has ended, and nobody knows how: of periods all of it stays reserved, for as long as this process lives.

        Were it told as used, a comparison with the ledger would give it back: its row comes when the process has ended.
        """
        self.open.discard(held)
        held.sequence = 0
        plan = held.plan
        self.settle(Held(self, plan.part(calendar=False), held.units, held.second), held.units, 0)
        if plan.calendar:
            self.open.add(Held(self, plan.part(calendar=True), held.units, held.second))

    def acknowledge(self, sequence: int) -> None:
        """The ledger has every row up to that one."""
        self.acknowledged = max(self.acknowledged, sequence)
        self.settled.forget(min(self.acknowledged, self.told))

    # Reporting

    def report(self, *, rotate: bool, live: int, everything: bool = False) -> tuple[list[Account], list[Record], Saved]:
        """What is due, taken out of the accounts: told in one message, or in several in this order.

        `rotate`: a second has passed, slices are adjusted; `everything`: nothing stays here.
        """
        now = self.valkey_now()
        accounts: list[Account] = []
        records: list[Record] = []
        saved: Saved = []
        staying: list[Account] = []
        for account in self.accounts.active:
            self.accounts.set_amount(account, now)
            free = max(0, account.free)
            wish = 0
            over = account.kind == CALENDAR and now >= account.counter.end
            if everything or account.near or over:
                keep = 0
            elif rotate:
                keep = kept(free, asked=account.asked, left=account.left, largest=account.largest, live=live)
                if account.asked:
                    wish = max(0, account.asked - keep)
            else:
                keep = free
            if rotate:
                account.recent, account.asked = account.asked, 0
                account.largest = largest_after(account.largest)
            record = self._record(account, free, keep, wish)
            if record is not None:
                accounts.append(account)
                records.append(record)
                saved.append((account, account.pending, account.refund + free - keep - account.overrun))
                account.consumed = account.overrun = account.refund = 0
                account.pending = {}
                account.free, account.granted = keep, keep if account.granted else 0
            if account.idle() and not account.asked and not wish:
                account.active = False
            else:
                staying.append(account)
        self.accounts.active = staying
        return accounts, records, saved

    def _record(self, account: Account, free: int, keep: int, wish: int) -> Record | None:
        used = raised = 0
        seconds: list[int] = []
        if account.kind == MINUTE:
            given = account.granted - keep
            for second, units in account.pending.items():
                if units:
                    seconds += (second, units)
        elif account.kind == BUCKET:
            given = account.granted - keep
            raised = account.refund + free - keep - account.overrun
        else:
            used = account.consumed + account.overrun
            given = account.consumed + account.refund + free - keep
        if not (used or given or raised or wish or seconds):
            return None
        counter = account.counter
        return (
            *(counter.name, account.kind, account.amount, account.rate, counter.end),
            *(used, given, raised, keep, wish, account.largest, seconds),
        )

    def apply(self, accounts: list[Account], results: list[list[int]]) -> None:
        """What Valkey answered to a message about these accounts: [left, slice] of each."""
        for account, (left, extra) in zip(accounts, results, strict=True):
            self.add_slice(account, left, extra)

    def add_slice(self, account: Account, left: int, extra: int) -> None:
        account.left = left
        account.near = is_near(left + extra, account.largest)
        if extra:
            account.free += extra
            if account.kind in (MINUTE, BUCKET):
                account.granted += extra
            self.accounts.activate(account)

    def restore(self, saved: Saved) -> None:
        """A message was not heard: what it told of seconds and levels is owed again.

        Calendar and standing counters are added up anew by `declare`.
        """
        for account, pending, raised in saved:
            if account.kind == MINUTE:
                for second, units in pending.items():
                    account.pending[second] = account.pending.get(second, 0) + units
            elif account.kind == BUCKET:
                account.refund += raised
            self.accounts.activate(account)

    # Declaring

    def declare(self, *, counted: int, anew: bool, ready: bool, swept: bool) -> tuple[list[Record], Saved]:
        """What this process holds and has spent beyond sequence `counted`, as JOIN takes it; slices are given up.

        `anew`: in another generation than before; not `ready`: it is being rebuilt, all is told as held; `swept`: what
        was granted of minutes has been counted as spent already.
        """
        sums: dict[Account, list[int]] = {}  # used, held
        seconds: dict[Account, dict[int, int]] = {}
        now = self.valkey_now()
        oldest = now - WINDOW_SECONDS

        def charge(account: Account, moments: Iterable[tuple[int, int]]) -> None:
            """Units by second, of a minute or a bucket."""
            if account.kind == BUCKET:
                if ready:  # before, it has been full since
                    full = account.filled_since(now)
                    sums.setdefault(account, [0, 0])[0] += sum(n for second, n in moments if second >= full)
                return
            moments = [moment for moment in moments if moment[0] >= oldest]
            if not ready:
                sums.setdefault(account, [0, 0])[1] += sum(n for _, n in moments)
                return
            sums.setdefault(account, [0, 0])
            counts = seconds.setdefault(account, {})
            for second, n in moments:
                counts[second] = counts.get(second, 0) + n

        for held in self.open:
            for account, index in held.plan.entries:
                if account.kind in (CALENDAR, STANDING):
                    sums.setdefault(account, [0, 0])[1] += held.units[index]
                elif anew:
                    charge(account, [(held.second, held.units[index])])
        for account, uses in self.settled.after(counted):
            if account.kind == CALENDAR:
                sums.setdefault(account, [0, 0])[0 if ready else 1] += uses.total()
            elif account.kind != STANDING and anew:
                charge(account, uses.since(0.0 if account.kind == BUCKET else oldest))
        saved: Saved = []
        for account in self.accounts.all():
            if account.kind == MINUTE and swept:
                account.pending = {}
            if account.kind in (MINUTE, BUCKET) and not anew and not account.idle():
                raised = account.refund + max(0, account.free) - account.overrun if account.kind == BUCKET else 0
                saved.append((account, account.pending, raised))
                sums.setdefault(account, [0, 0])[0] = -raised
                seconds[account] = account.pending
            account.free = account.granted = account.consumed = account.overrun = account.refund = 0
            account.pending = {}
            account.near = True
        records = []
        for account, (used, amount_held) in sums.items():
            counter = account.counter
            listed = [number for pair in seconds.get(account, {}).items() for number in pair]
            if used or amount_held or listed:
                start = (counter.name, account.kind, account.amount, account.rate, counter.end)
                records.append((*start, used, amount_held, listed))
        return records, saved
