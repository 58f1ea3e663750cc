"""What requests have used whose rows the ledger is not known to have. Pure.

While the ledger is away that may be all that the spool has room for: some hundred thousand. It takes a few numbers for
each, and no object, and is added up without a step of Python for each.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.relay.limiting.accounts import Account, Plan, Units

_SECOND: Final = 1
_UNITS: Final = 2
_WIDTH: Final = 7  # sequence, second of the admission, and units but the last, which is not used but given back


class Settled:
    """Rows by plan, in the order of their sequences."""

    def __init__(self) -> None:
        self._rows: dict[Plan, array[int]] = {}

    def __len__(self) -> int:
        return sum(len(rows) for rows in self._rows.values()) // _WIDTH

    def add(self, plan: Plan, sequence: int, second: int, units: Units) -> None:
        """`sequence` is greater than any before."""
        rows = self._rows.get(plan)
        if rows is None:
            rows = self._rows[plan] = array("q")
        rows.extend((sequence, second, *units[:-1]))

    def forget(self, through: int) -> None:
        """Rows up to that sequence; some of them stay a while longer where others of before are to stay."""
        while self._rows:
            plan, rows = next(iter(self._rows.items()))
            if rows[0] > through:
                return
            del self._rows[plan]
            del rows[: _start(rows, through)]
            if rows:
                self._rows[plan] = rows  # the last one now

    def accounts(self) -> Iterator[Account]:
        """Those that something is charged to."""
        for plan in self._rows:
            yield from plan.accounts

    def after(self, sequence: int) -> "Iterator[tuple[Account, Uses]]":
        """What was charged to each account, plan by plan, by rows after that sequence."""
        for plan, rows in self._rows.items():
            start = _start(rows, sequence)
            if start < len(rows):
                for account, index in plan.entries:
                    yield account, Uses(rows, start, index)


class Uses:
    """Of one account, in rows of one plan."""

    __slots__ = ("_rows", "_second", "_units")

    def __init__(self, rows: "array[int]", start: int, index: int) -> None:
        self._rows = rows
        self._second = slice(start + _SECOND, None, _WIDTH)
        self._units = slice(start + _UNITS + index, None, _WIDTH)

    def total(self) -> int:
        return sum(self._rows[self._units])

    def since(self, moment: float) -> Iterable[tuple[int, int]]:
        """Second and units of those admitted since then."""
        seconds, units = self._rows[self._second], self._rows[self._units]
        return [pair for pair in zip(seconds, units, strict=True) if pair[0] >= moment]


def _start(rows: "array[int]", sequence: int) -> int:
    """Where the first row after that sequence begins."""
    count = len(rows) // _WIDTH
    return _WIDTH * bisect_right(range(count), sequence, key=lambda row: rows[row * _WIDTH])
