"""Which rows count, by what processes have said."""

from uuid import UUID, uuid4

from gateway.policies.reported import Standing, Taken, judge

A, B, C = uuid4(), uuid4(), uuid4()


def standing(
    alive: tuple[UUID, ...] = (),
    *,
    through: dict[UUID, int] | None = None,
    orphans: tuple[UUID, ...] = (),
    taken: dict[UUID, Taken] | None = None,
    marks: dict[UUID, int] | None = None,
    ended: tuple[UUID, ...] = (),
    given_up: tuple[UUID, ...] = (),
) -> Standing:
    return Standing(alive, through or {}, orphans, taken or {}, marks or {}, ended, given_up)


def test_living_ones_count_up_to_what_they_reported() -> None:
    found = judge(standing((A, B), through={A: 3}, marks={A: 5, B: 2}))
    assert found.through == {A: 3, B: 0}
    assert not found.behind


def test_a_living_one_may_be_ahead_of_the_ledger() -> None:
    assert judge(standing((A,), through={A: 3}, marks={A: 2})).behind == {A}


def test_dead_ones_that_held_nothing_count_as_far_as_the_ledger_has_them() -> None:
    found = judge(standing(through={A: 3, B: 3}, marks={A: 5, B: 1}))
    assert found.through == {A: 5, B: 3}
    assert found.counted == {A: 5}
    assert found.behind == {B}


def test_an_orphan_waits_for_its_spool() -> None:
    waiting = judge(standing(through={A: 3}, orphans=(A,), marks={A: 5}))
    assert (waiting.through, waiting.resolved) == ({A: 3}, {})
    ended = judge(standing(through={A: 3}, orphans=(A,), marks={A: 5}, ended=(A,)))
    assert (ended.through, ended.resolved) == ({}, {A: 5})
    given_up = judge(standing(orphans=(A,), given_up=(A,)))
    assert given_up.resolved == {A: 0}


def test_rows_that_were_taken_over_are_waited_for_under_their_new_name() -> None:
    taken = {A: Taken(B, 4, 6)}
    early = judge(standing((B,), through={A: 2, B: 3}, orphans=(A,), taken=taken, marks={A: 1, B: 5}))
    assert (early.resolved, early.also, early.behind) == ({}, [], {A})
    late = judge(standing((B,), through={A: 2, B: 3}, orphans=(A,), taken=taken, marks={A: 1, B: 6}))
    assert late.resolved == {A: 2}
    assert late.also == [Taken(B, 4, 6)]
    assert not late.behind


def test_rows_that_were_taken_over_are_not_counted_apart_once_reported() -> None:
    taken = {A: Taken(B, 4, 6)}
    found = judge(standing((B,), through={A: 2, B: 7}, taken=taken, marks={A: 1, B: 7}))
    assert (found.through, found.also, found.counted) == ({B: 7}, [], {A: 2})


def test_one_that_took_rows_over_may_have_died_too() -> None:
    taken = {A: Taken(B, 4, 6)}
    found = judge(standing((C,), through={A: 2, B: 3}, orphans=(A, B), taken=taken, marks={B: 9}, ended=(B,)))
    assert found.resolved == {A: 2, B: 9}
    assert found.through == {C: 0}


def test_rows_whose_taker_died_in_the_middle_are_waited_for_in_their_own_spool() -> None:
    unfinished = {A: Taken(B, 4, 2**53 - 1, all_of_them=False)}
    found = judge(standing(through={A: 2, B: 3}, orphans=(A,), taken=unfinished, marks={A: 1, B: 5}, ended=(B,)))
    assert found.resolved == {}
    assert found.through[A] == 2
