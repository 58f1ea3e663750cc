"""Compares the calendar counters with the ledger, and makes them what the ledger says.

Only they are compared: a minute's counters forget within 61 seconds by themselves, a bucket fills, and what is held at
the moment is held by processes that say so. Requests belong to the period in which they started.

Of what people write into the books, a correction of one ledger row counts for money budgets, as if the row had cost
that from the beginning. Credits, and corrections that name no row, change what is billed, not what may still be spent.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog
from django.utils import timezone

from gateway.models import EndedSpool
from gateway.policies.reported import Judgement, Standing, Taken, judge
from gateway.relay.limiting.layout import MOST
from gateway.relay.rows import LimitRow
from gateway.services.limit_base import Counted, calendar_limits, one_moment
from gateway.services.limit_counters import Correction, KeeperStopped, LimitCounters, Snapshot
from gateway.services.limit_sums import Also, sum_by_limit
from tenants.models import LedgerMark, Limit

logger = structlog.get_logger(__name__)

LEDGER_WAIT_SECONDS: Final = 5.0
"""How long reported rows are waited for; of those that are not there then, counters are only ever raised."""

GIVE_UP: Final = timedelta(hours=1)
"""After so long, and so long without a row, nothing more is expected of a dead process whose spool was never found."""

_FORGET: Final = timedelta(days=1)
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_CHUNK: Final = 2_000
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Compared:
    """One limit's counter before it was corrected by `applied`. `ledger` is what `used` should have been."""

    limit: LimitRow
    counter: str
    used: int
    held: int
    ledger: int
    applied: int

    @property
    def difference(self) -> int:
        """Of the ledger from the counter: positive where more was used than had been counted."""
        return self.ledger - self.used


def compare(
    counters: LimitCounters,
    *,
    wait: Callable[[float], None] = time.sleep,
    ledger_wait_seconds: float = LEDGER_WAIT_SECONDS,
    correct: bool = True,
    only: Sequence[UUID] | None = None,
) -> list[Compared]:
    """Compare all calendar counters, and correct them unless told not to; the caller holds the lock.

    `only`: just those limits'. What dead processes held stays held then: it is resolved in all counters or in none.
    Raises KeeperStopped when the counters are lost or being rebuilt, or the lock is.
    """
    first = counters.snapshot([])
    limits = calendar_limits(first.now, only)
    if only is not None:
        return _compare_some(counters, limits, wait, ledger_wait_seconds) if limits else []
    orphaned = {name for held in first.orphans.values() for name in held}
    limits.sort(key=lambda counted: counted.counter.name not in orphaned)  # what dead ones hold is resolved with them
    found: list[Compared] = []
    for chunk in _chunks(limits):
        counters.extend()
        judged, judgement = _compare(counters, chunk, wait, ledger_wait_seconds, correct)
        found += judged
        if correct:
            _forget(counters, judgement)
    return found


def _compare_some(
    counters: LimitCounters, limits: Sequence[Counted], wait: Callable[[float], None], wait_seconds: float
) -> list[Compared]:
    found: list[Compared] = []
    for chunk in _chunks(limits):
        counters.extend()
        found += _compare(counters, chunk, wait, wait_seconds, correct=True, resolve=False)[0]
    return found


def _chunks(limits: Sequence[Counted]) -> Iterator[Sequence[Counted]]:
    for start in range(0, max(len(limits), 1), _CHUNK):  # without limits too: there may be orphans
        yield limits[start : start + _CHUNK]


def _compare(
    counters: LimitCounters,
    limits: Sequence[Counted],
    wait: Callable[[float], None],
    wait_seconds: float,
    correct: bool,
    resolve: bool = True,
) -> tuple[list[Compared], Judgement]:
    snapshot = counters.snapshot([counted.counter.name for counted in limits])
    if snapshot.generation is None or not snapshot.ready:
        raise KeeperStopped("the counters are being rebuilt")
    _wait_for_ledger(snapshot, wait, wait_seconds)
    dead_since = counters.note_dead({*snapshot.through, *snapshot.orphans} - snapshot.alive, snapshot.now)
    with one_moment():
        judgement = _judge(snapshot, dead_since)
        ledger = sum_by_limit(
            [counted.span for counted in limits],
            through=judgement.through,
            also=[Also(taken.by, taken.first, taken.last) for taken in judgement.also],
        )
    found = []
    for counted, state, sum_ in zip(limits, snapshot.counters, ledger, strict=True):
        difference = sum_ - state.used
        # What processes have reported and the ledger does not have may be all that is too much.
        applied = (max(difference, 0) if judgement.behind else difference) if correct else 0
        found.append(Compared(counted.limit, counted.counter.name, state.used, state.held, sum_, applied))
    if not correct:
        return found, judgement
    counters.correct(
        snapshot.generation,
        [
            Correction(counted.counter.name, counted.counter.end, one.applied)
            for counted, one in zip(limits, found, strict=True)
            if one.applied
        ],
        resolved=judgement.resolved if resolve else {},
        counted=judgement.counted if resolve else {},
    )
    _tell(found, judgement, resolve)
    return found, judgement


def _wait_for_ledger(snapshot: Snapshot, wait: Callable[[float], None], seconds: float) -> None:
    """Until the ledger has what living processes have reported, or time is up."""
    waiting = {process: snapshot.through.get(process, 0) for process in snapshot.alive}
    while seconds > 0:
        marks = _marks(waiting)
        waiting = {process: said for process, said in waiting.items() if marks.get(process, 0) < said}
        if not waiting:
            return
        wait(_POLL_SECONDS)
        seconds -= _POLL_SECONDS


def _marks(processes: Collection[UUID]) -> dict[UUID, int]:
    return dict(LedgerMark.objects.filter(pk__in=processes).values_list("process_id", "sequence"))


def _judge(snapshot: Snapshot, dead_since: Mapping[UUID, int]) -> Judgement:
    dead = dead_since.keys()
    others = {adopted.by for adopted in snapshot.adopted.values()}
    moved = dict(LedgerMark.objects.filter(pk__in=dead).values_list("process_id", "updated_at"))
    now = timezone.now()
    long_dead = [process for process, since in dead_since.items() if snapshot.now - since > GIVE_UP.total_seconds()]
    return judge(
        Standing(
            alive=snapshot.alive,
            through=snapshot.through,
            orphans=[*snapshot.orphans],
            taken={process: Taken(a.by, a.first, a.last, a.last < MOST) for process, a in snapshot.adopted.items()},
            marks=_marks({*snapshot.alive, *dead, *others}),
            ended=set(EndedSpool.objects.filter(pk__in=[*dead, *others]).values_list("pk", flat=True)),
            given_up={process for process in long_dead if now - moved.get(process, _LONG_AGO) > GIVE_UP},
        )
    )


def _tell(found: Sequence[Compared], judgement: Judgement, resolved: bool) -> None:
    for one in found:
        if one.applied:
            logger.warning(
                "limit_counter_corrected",
                limit=str(one.limit.id),
                metric=one.limit.metric,
                used=one.used,
                ledger=one.ledger,
                applied=one.applied,
            )
    if resolved and judgement.resolved:
        logger.info("limit_holdings_resolved", processes=[str(process) for process in judgement.resolved])
    if judgement.behind:
        logger.info("limit_ledger_behind", processes=[str(process) for process in judgement.behind])


def _forget(counters: LimitCounters, judgement: Judgement) -> None:
    """Say nothing more about processes that are gone for a day: all their rows count anyhow."""
    recent = set(
        LedgerMark.objects.filter(pk__in=judgement.counted, updated_at__gt=timezone.now() - _FORGET).values_list(
            "pk", flat=True
        )
    )
    gone = [process for process in judgement.counted if process not in recent and process not in judgement.behind]
    if not judgement.also:  # else what was taken over must still be told apart
        counters.forget(gone, gone)


def tell_scopes(limits: Collection[UUID]) -> dict[UUID, str]:
    """In words, whose use each limit counts."""
    told = {}
    for limit in Limit.objects.filter(pk__in=limits).select_related("tenant", "key"):
        whose = limit.tenant.slug if limit.tenant else "all tenants"
        if limit.subtree:
            whose += " and departments"
        if limit.key:
            whose += f", key {limit.key.name}"
        told[limit.pk] = f"{whose}, {limit.model}" if limit.model else whose
    return told
