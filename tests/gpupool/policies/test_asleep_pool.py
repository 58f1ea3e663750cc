"""The tenants' pool: who gets which instance, who sleeps, who ends."""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.asleep_pool import (
    ClaimAgain,
    End,
    LetSleep,
    PoolAction,
    Pooled,
    PoolRules,
    Reuse,
    StartAnother,
    Waiting,
    choose,
    evicted,
    idle,
    keep_pool,
    make_room,
    reuse_ratio,
)
from gpupool.policies.instance import State

A, B = UUID(int=0xA), UUID(int=0xB)
CARD = UUID(int=0xC)
NOW = 1000.0


def one(number: int, state: State = State.ASLEEP, tenant: UUID | None = None, **members: object) -> Pooled:
    made = Pooled(UUID(int=number), tenant, state, has_process=True, running_requests=0, device_ids=frozenset({CARD}))
    return replace(made, **members)  # type: ignore[arg-type]  # members by name


def decided(
    *pooled: Pooled, waiting: tuple[Waiting, ...] = (), idle_seconds: Mapping[UUID, float] | None = None, most: int = 16
) -> list[PoolAction]:
    rules = PoolRules(asleep_per_device=most, rest_seconds=5.0)
    return keep_pool(pooled, waiting, idle_seconds=idle_seconds or {}, now=NOW, rules=rules)


@pytest.mark.shows("R16")
@pytest.mark.parametrize(
    ("pooled", "expected"),
    [
        pytest.param([], StartAnother(), id="none there"),
        pytest.param([one(1, tenant=B), one(2, State.READY, B)], StartAnother(), id="never another tenant's"),
        pytest.param([one(1, tenant=A), one(2, State.READY, A)], Reuse(UUID(int=2), bind=False), id="own, awake first"),
        pytest.param([one(1), one(2, tenant=A)], Reuse(UUID(int=2), bind=False), id="own before free"),
        pytest.param([one(1)], Reuse(UUID(int=1), bind=True), id="free and asleep: bound"),
        pytest.param([one(1, State.READY)], StartAnother(), id="free but awake: others' words are in its cache"),
        pytest.param([one(1, State.FAILED, A)], StartAnother(), id="own, but failed"),
        pytest.param(
            [one(1, has_process=False), one(2)],
            Reuse(UUID(int=2), bind=True),
            id="asleep beside a process before staged",
        ),
    ],
)
def test_which_instance_a_tenant_gets(pooled: list[Pooled], expected: Reuse | StartAnother) -> None:
    assert choose(pooled, A) == expected


@given(
    st.lists(
        st.builds(
            one, st.integers(1, 99), st.sampled_from(list(State)), st.sampled_from([None, A, B]),
            used_at=st.floats(0, NOW), has_process=st.booleans(),
        ),
        unique_by=lambda made: made.instance_id,
    )
)  # fmt: skip
def test_nobody_is_given_what_another_is_bound_to(pooled: list[Pooled]) -> None:
    match choose(pooled, A):
        case Reuse(instance_id=chosen, bind=bind):
            (found,) = [made for made in pooled if made.instance_id == chosen]
            assert found.tenant_id == (None if bind else A)


def test_idle_is_who_says_that_it_has_no_request_and_had_none_for_long() -> None:
    quiet = one(1, State.READY, A, used_at=NOW - 10)
    assert idle([quiet], now=NOW, idle_seconds=10) == [quiet.instance_id]
    assert idle([quiet], now=NOW, idle_seconds=11) == []
    assert idle([quiet], now=NOW, idle_seconds=0) == []
    assert idle([replace(quiet, running_requests=1)], now=NOW, idle_seconds=10) == []
    assert idle([replace(quiet, running_requests=None)], now=NOW, idle_seconds=10) == []  # unknown is not zero
    assert idle([replace(quiet, state=State.ASLEEP)], now=NOW, idle_seconds=10) == []


@pytest.mark.shows("R18")
def test_beyond_what_a_device_keeps_the_least_recently_used_end() -> None:
    asleep = [one(1, used_at=30.0), one(2, used_at=10.0), one(3, used_at=20.0), one(4, used_at=5.0, priority=1)]
    assert evicted(asleep, most=4) == []
    assert evicted(asleep, most=2) == [UUID(int=2), UUID(int=3)]  # 4 is older, but more important
    assert [action.instance_id for action in decided(*asleep, most=3)] == [UUID(int=2)]
    assert isinstance(decided(*asleep, most=3)[0], End)


def test_an_idle_one_is_let_sleep() -> None:
    quiet = one(1, State.READY, A, used_at=NOW - 10)
    (action,) = decided(quiet, idle_seconds={quiet.instance_id: 10.0})
    assert action == LetSleep(quiet.instance_id, "It had no request for a while.")
    assert decided(quiet) == []


def test_who_wakes_takes_the_place_of_the_one_that_was_used_the_longest_ago() -> None:
    waits = Waiting(UUID(int=9), frozenset({CARD}), since=NOW - 1)
    old, busy = one(1, State.READY, B, used_at=NOW - 60), one(2, State.READY, B, used_at=0.0, running_requests=3)
    fresh = one(3, State.READY, B, used_at=NOW - 1)
    elsewhere = one(4, State.READY, B, used_at=0.0, device_ids=frozenset({UUID(int=0xD)}))
    assert decided(old, busy, fresh, elsewhere, waiting=(waits,)) == [ClaimAgain(waits.instance_id, old.instance_id)]
    assert decided(busy, fresh, waiting=(waits,)) == [ClaimAgain(waits.instance_id, None)]
    assert make_room([busy, fresh], now=NOW, rest_seconds=5) is None


def test_two_that_wake_do_not_take_the_same_place() -> None:
    waits = [Waiting(UUID(int=8 + n), frozenset({CARD}), since=NOW - n) for n in range(2)]
    old = one(1, State.READY, B, used_at=0.0)
    assert decided(old, waiting=tuple(waits)) == [
        ClaimAgain(UUID(int=9), old.instance_id),  # it has waited longer
        ClaimAgain(UUID(int=8), None),
    ]


@pytest.mark.shows("R95")
def test_the_ratio_is_unknown_before_the_first() -> None:
    assert reuse_ratio(acquisitions=0, reuses=0) is None
    assert reuse_ratio(acquisitions=8, reuses=6) == 0.75
