"""Keeps the limit counters true to the ledger: rebuilds them when they are lost, compares them when they are not.

Beside the turn of every half minute, limits that were changed are compared at once: a tenant's zone or place in the
tree may be another, and new counters begin at nothing. Until then, and for what is under way meanwhile, they can be
overspent by as much.

Runs inside the drain's process, on a thread of its own; any number may run, one at a time does something. What stands
in Valkey, and what processes do at the same time, says gateway.relay.limiting.layout.

While counters are rebuilt, limited work is told 503 with Retry-After. How long that is:

- one second, so that processes can join, and what the reads take, where this keeper saw the counters until they were
  lost and every process it saw is there again or is known to be dead: nobody can hold an old slice then;
- otherwise until old slices have lapsed by themselves, SLICES_SECONDS. A process that is cut off from Valkey spends
  none after that; what it has open then is read from its spool, if it is on this machine.

What is not known is a process of another machine that died together with Valkey's data: what was under way there counts
once its spool is drained. That is the bound of what can be spent too much, and only then.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import redis
import structlog
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from core.epochs import Section, current_epoch, read_changes
from gateway.models import EndedSpool
from gateway.relay.limiting.layout import LAPSE_SECONDS
from gateway.services.limit_base import list_spools, one_moment, read_base, read_marks, read_spool
from gateway.services.limit_compare import Compared, compare
from gateway.services.limit_counters import KeeperStopped, LimitCounters, Look
from tenants.models import LimitGeneration

logger = structlog.get_logger(__name__)

COMPARE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.5
SLICES_SECONDS: Final = float(LAPSE_SECONDS)
_JOIN_SECONDS: Final = 1.0
_LEDGER_SECONDS: Final = 10.0
_COMPARE_SHARE: Final = 0.05
_POLL_SECONDS: Final = 0.1
_CHANGED_WAIT_SECONDS: Final = 1.0
_MOST_CHANGES: Final = 1_000  # at once; the others are next


@dataclass(frozen=True, slots=True)
class KeeperTimes:
    """In seconds. `slices`: see SLICES_SECONDS; `ledger`: how long rows of living processes are waited for."""

    compare: float = COMPARE_SECONDS
    look: float = LOOK_SECONDS
    slices: float = SLICES_SECONDS
    join: float = _JOIN_SECONDS
    ledger: float = _LEDGER_SECONDS
    again: float = 1.0  # at least, between comparisons of limits that were changed


DEFAULT_TIMES: Final = KeeperTimes()


class LimitKeeper:
    """Blocking: `run` until `stop` is set.

    `spools`: the folder of this machine's spools. `recover` brings those of dead processes into the ledger.
    """

    def __init__(
        self,
        counters: LimitCounters,
        *,
        spools: Path,
        recover: Callable[[], int],
        stop: threading.Event,
        times: KeeperTimes = DEFAULT_TIMES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters
        self._spools = spools
        self._recover = recover
        self._stop = stop
        self._times = times
        self._monotonic = monotonic
        self._seen: frozenset[UUID] | None = None  # the processes of the last look at whole counters
        self._compare_seconds = times.compare
        self._limits_epoch: int | None = None  # up to which changed limits were compared
        self._changed_at = 0.0  # monotonic, when changed limits may be compared again

    def run(self) -> None:
        """Look after the counters until stopped; a database or Valkey that is away is waited for."""
        complained = False
        while not self._stop.wait(self._times.look):
            try:
                self.turn()
                complained = False
            except KeeperStopped as stopped:
                logger.info("limit_keeper_began_again", reason=str(stopped))
            except (redis.RedisError, DatabaseError, InterfaceError) as error:
                connection.close()
                if not complained:
                    logger.warning("limit_keeper_waits", error=str(error))
                complained = True
        connection.close()

    def turn(self) -> None:
        """Look once, and do what is due. Raises KeeperStopped, and what the servers raise."""
        look = self._counters.look()
        if not look.ready:
            self._with_lock(self._rebuild)
            return
        self._seen = look.processes
        if look.now - self._counters.compared_at() >= self._compare_seconds:
            self._with_lock(self._compare)
        elif self._monotonic() >= self._changed_at:
            self._compare_changed()

    def compare_now(self, *, correct: bool = True, wait_seconds: float = 30.0) -> list[Compared]:
        """Compare whatever the time, as soon as nobody else keeps. Raises KeeperStopped where that takes too long."""
        deadline = self._monotonic() + wait_seconds
        while not self._counters.lock():
            if self._monotonic() > deadline:
                raise KeeperStopped("another keeper is at work")
            self._pause()
        with self._counters.kept_lock():
            return compare(self._counters, correct=correct)

    def _with_lock(self, work: Callable[[Look], None]) -> None:
        if not self._counters.lock():
            return
        with self._counters.kept_lock():
            work(self._counters.look())  # another one may have done it meanwhile

    def _compare(self, look: Look) -> None:
        if not look.ready or look.now - self._counters.compared_at() < self._compare_seconds:
            return
        begun = self._monotonic()
        compare(self._counters, wait=self._wait)
        self._counters.note_compared(look.now)
        took = self._monotonic() - begun
        self._compare_seconds = max(self._times.compare, took / _COMPARE_SHARE)

    def _compare_changed(self) -> None:
        """Limits that were changed may count other periods or other tenants: theirs begin with what the ledger has."""
        after = self._limits_epoch
        if after is None:
            self._limits_epoch = current_epoch(Section.LIMITS)
            return
        changes = read_changes(Section.LIMITS, after=after, limit=_MOST_CHANGES)
        if changes is None:  # it was not looked for an hour, and counters were compared since
            self._limits_epoch = None
            return
        if not changes:
            return

        def work(look: Look) -> None:
            if not look.ready:
                return
            begun = self._monotonic()
            only = sorted({change.object_id for change in changes})
            compare(self._counters, wait=self._wait, ledger_wait_seconds=_CHANGED_WAIT_SECONDS, only=only)
            self._limits_epoch = changes[-1].epoch
            now = self._monotonic()
            self._changed_at = now + max(self._times.again, (now - begun) / _COMPARE_SHARE)

        self._with_lock(work)

    def _rebuild(self, look: Look) -> None:
        if look.ready:
            return
        begun = self._monotonic()
        generation = uuid4()
        last = LimitGeneration.objects.filter(pk=1).exists()
        logger.warning("limit_counters_lost" if last else "limit_counters_begin")
        self._counters.begin(generation, look.run)
        self._recover()
        look = self._gather(generation, first=not last)
        local = list_spools(self._spools)
        absent = local - look.processes
        with one_moment():
            base = read_base(look.now, present=look.processes, absent=absent, spools=self._spools)
        self._counters.write(generation, base.counters)
        for process, units in base.absent.items():
            if units:
                self._counters.hold_for_absent(generation, process, units)
        self._counters.finish(generation, base.marks)
        LimitGeneration.objects.update_or_create(pk=1, defaults={"generation": generation, "built_at": timezone.now()})
        logger.warning(
            "limit_counters_built",
            generation=str(generation),
            seconds=round(self._monotonic() - begun, 2),
            counters=len(base.counters),
            joined=len(look.processes),
            absent=[str(process) for process in absent],
        )

    def _gather(self, generation: UUID, *, first: bool) -> Look:
        """Wait until no old slice can be spent, and until the ledger has what living spools owed it."""
        begun = self._monotonic()
        owed = {process: last for process in list_spools(self._spools) if (last := self._last_row(process))}
        recover_at = begun
        while True:
            self._wait(_POLL_SECONDS)
            look = self._counters.look()
            if look.generation is None or look.generation.id != generation:
                raise KeeperStopped("the counters are of another generation")
            waited = self._monotonic() - begun
            if self._monotonic() - recover_at >= 1.0:  # one may have died after the counters
                recover_at = self._monotonic()
                self._recover()
            if waited >= self._times.ledger:
                owed = {}
            marks = read_marks() if owed else {}
            owed = {process: last for process, last in owed.items() if marks.get(process, 0) < last}
            lapsed = first or waited >= self._times.slices or self._all_are_there(look)
            if waited >= self._times.join and lapsed and not owed:
                return look

    def _all_are_there(self, look: Look) -> bool:
        """Whether every process that could hold a slice has given it up."""
        if self._seen is None:
            return False
        missing = (self._seen | list_spools(self._spools)) - look.processes
        return not missing or missing <= set(EndedSpool.objects.filter(pk__in=missing).values_list("pk", flat=True))

    def _last_row(self, process: UUID) -> int:
        rows = [row.sequence for row in read_spool(self._spools / str(process)) if row.outcome != "lost"]
        return max(rows, default=0)

    def _wait(self, seconds: float) -> None:
        """Raises KeeperStopped when it is to stop, or is no longer the keeper."""
        self._pause(seconds)
        self._counters.extend()

    def _pause(self, seconds: float = _POLL_SECONDS) -> None:
        if self._stop.wait(seconds):
            raise KeeperStopped("it is told to stop")
