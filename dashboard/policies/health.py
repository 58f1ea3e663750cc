"""When a part of the installation is fine, when somebody should look at it, and when it is broken."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final


class PartState(StrEnum):
    FINE = "fine"
    WARNING = "warning"
    BROKEN = "broken"
    UNKNOWN = "unknown"  # nobody can tell, which is not fine


LAG_WARNING_SECONDS: Final = 10.0
LAG_BROKEN_SECONDS: Final = 120.0
BATCH_WARNING_SECONDS: Final = 120.0
BATCH_BROKEN_SECONDS: Final = 900.0
UNHEARD_SECONDS: Final = BATCH_WARNING_SECONDS
"""How long a process has run when no word of batch work means that there is none."""

CONNECTIONS_WARNING: Final = 0.85
"""Share of all connections that PostgreSQL gives: beyond, new processes may find none."""

NEARLY_FULL: Final = 0.8
"""Share of a usage spool, or of what Valkey may use: full, they take nothing more.

Without a spool, or the state server's counters, limited requests get 503.
"""


def ledger_state(lag_seconds: float | None, dead_letters: int) -> PartState:
    """By how old the oldest row is that is not in the ledger; a dead letter is a row that is never billed."""
    if lag_seconds is None:
        return PartState.UNKNOWN
    if lag_seconds >= LAG_BROKEN_SECONDS:
        return PartState.BROKEN
    return PartState.WARNING if lag_seconds >= LAG_WARNING_SECONDS or dead_letters else PartState.FINE


def batch_state(age_seconds: float | None) -> PartState:
    """By when beat last sent, and a worker did, the smallest of tasks."""
    if age_seconds is None:
        return PartState.UNKNOWN
    if age_seconds >= BATCH_BROKEN_SECONDS:
        return PartState.BROKEN
    return PartState.WARNING if age_seconds >= BATCH_WARNING_SECONDS else PartState.FINE


def fill_state(used: int | None, most: int | None) -> PartState:
    """Of what takes nothing more once it is full; fine where it has no end, or nobody can tell."""
    return PartState.WARNING if used is not None and most and used >= NEARLY_FULL * most else PartState.FINE


def takes_nothing_soon(used: int | None, most: int | None, policy: str) -> bool:
    """Of Valkey, by its bytes and its maxmemory-policy: whatever evicts is full for most of its life, and fine."""
    return policy == "noeviction" and fill_state(used, most) is not PartState.FINE


def partitions_state(months_ahead: int) -> PartState:
    """Partitions of the ledger that are made for months to come; without this month's, rows go to the default one."""
    if months_ahead < 0:
        return PartState.BROKEN
    return PartState.FINE if months_ahead >= 1 else PartState.WARNING


def connections_state(used: int, most: int) -> PartState:
    return PartState.WARNING if most and used >= CONNECTIONS_WARNING * most else PartState.FINE


def worst(states: Iterable[PartState]) -> PartState:
    """Of several; fine of none."""
    order = (PartState.FINE, PartState.UNKNOWN, PartState.WARNING, PartState.BROKEN)
    return max(states, key=order.index, default=PartState.FINE)
