"""Which ledger rows the live counters must have, going by what processes said they have reported."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID


class Taken(NamedTuple):
    """Rows of a dead process that stand in the ledger under another's name, by their sequences there."""

    by: UUID
    first: int
    last: int
    all_of_them: bool = True
    """False: whoever takes them over has not come to the end, or died before it: others are in the spool still."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known at one moment. `through`: the last sequence that a process has reported."""

    alive: Collection[UUID]
    through: Mapping[UUID, int]
    orphans: Collection[UUID]  # dead ones whose holdings are still held
    taken: Mapping[UUID, Taken]
    marks: Mapping[UUID, int]  # up to where the ledger has each process's rows without a gap
    ended: Collection[UUID]  # dead ones that have all their rows in the ledger
    given_up: Collection[UUID] = ()  # dead ones that are no longer waited for


@dataclass(slots=True)
class Judgement:
    """`through`: of these processes only rows up to there count; of all others every row.

    `also`: further rows that count. `resolved`: orphans all of whose rows count now, so that their holdings go, and
    `counted`: dead ones that held nothing; both with the sequence that they then have reported up to. `behind`: those
    that have reported rows which the ledger does not have yet: until then nothing may be found to be too much.
    """

    through: dict[UUID, int] = field(default_factory=dict)
    also: list[Taken] = field(default_factory=list)
    resolved: dict[UUID, int] = field(default_factory=dict)
    counted: dict[UUID, int] = field(default_factory=dict)
    behind: set[UUID] = field(default_factory=set)


def judge(now: Standing) -> Judgement:
    """What counts, for a comparison of counters and ledger."""
    found = Judgement()
    alive = set(now.alive)
    for process in alive:
        reported = now.through.get(process, 0)
        found.through[process] = reported
        if now.marks.get(process, 0) < reported:
            found.behind.add(process)
    for process in {*now.through, *now.orphans} - alive:
        _judge_dead(process, now, found)
    for taken in now.taken.values():
        if found.through.get(taken.by, taken.last) < taken.last <= now.marks.get(taken.by, 0):
            found.also.append(taken)
    return found


def _judge_dead(process: UUID, now: Standing, found: Judgement) -> None:
    reported, mark = now.through.get(process, 0), now.marks.get(process, 0)
    if _is_whole(process, now):
        (found.resolved if process in now.orphans else found.counted)[process] = max(reported, mark)
        return
    if mark < reported:
        found.behind.add(process)
    if process in now.orphans or mark < reported:
        found.through[process] = reported
    else:
        found.through[process] = found.counted[process] = mark


def _is_whole(process: UUID, now: Standing) -> bool:
    """Whether a dead process's rows are all in the ledger, under whatever name."""
    if process in now.ended or process in now.given_up:
        return True
    taken = now.taken.get(process)
    return (
        taken is not None and taken.all_of_them and (now.marks.get(taken.by, 0) >= taken.last or taken.by in now.ended)
    )
