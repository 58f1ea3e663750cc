"""Shares of an instance's hour add up to it, and go to those who used it."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.policies.showback import apportion, gpu_cost_micros, share_hour

A, B, C = (UUID(int=n) for n in (1, 2, 3))
HOUR_MS = 3_600_000

times = st.integers(0, HOUR_MS)
uses = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10 * HOUR_MS))


@given(warm=times, ready=times, busy=st.integers(0, 2 * HOUR_MS), uses=uses, cost=st.integers(0, 10**15))
def test_shares_add_up_to_the_hour(warm: int, ready: int, busy: int, uses: dict[UUID, int], cost: int) -> None:
    shares = share_hour(warm_ms=warm, ready_ms=ready, busy_ms=busy, uses=uses, owner=None, cost_micros=cost)
    assert sum(share.warm_ms for share in shares.values()) == warm
    assert sum(share.busy_ms for share in shares.values()) == min(busy, ready)
    assert sum(share.busy_ms + share.idle_ms for share in shares.values()) == ready
    assert sum(share.cost_micros for share in shares.values()) == cost
    wanted: list[UUID | None] = [*uses]
    assert list(shares) == (wanted or [None])
    assert all(min(share.busy_ms, share.idle_ms, share.warm_ms, share.cost_micros) >= 0 for share in shares.values())


@given(total=st.integers(0, 10**18), weights=st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10**12)))
def test_nobody_gets_a_whole_unit_more_or_less_than_their_part(total: int, weights: dict[UUID | None, int]) -> None:
    if not any(weights.values()):
        with pytest.raises(ValueError):
            apportion(total, weights)
        return
    parts, whole = apportion(total, weights), sum(weights.values())
    assert sum(parts.values()) == total
    for payer, part in parts.items():
        assert abs(part * whole - total * weights[payer]) < whole


def test_idle_and_warm_up_follow_use() -> None:
    shares = share_hour(warm_ms=4000, ready_ms=8000, busy_ms=2000, uses={A: 3000, B: 1000}, owner=C, cost_micros=1200)
    assert (shares[A].busy_ms, shares[A].idle_ms, shares[A].warm_ms, shares[A].cost_micros) == (1500, 4500, 3000, 900)
    assert (shares[B].busy_ms, shares[B].idle_ms, shares[B].warm_ms, shares[B].cost_micros) == (500, 1500, 1000, 300)
    assert C not in shares


@pytest.mark.parametrize("owner", [C, None])
def test_what_nobody_used_is_the_owners_or_the_platforms(owner: UUID | None) -> None:
    shares = share_hour(warm_ms=10, ready_ms=20, busy_ms=0, uses={}, owner=owner, cost_micros=7)
    assert list(shares) == [owner]
    assert (shares[owner].idle_ms, shares[owner].warm_ms, shares[owner].cost_micros) == (20, 10, 7)


def test_a_gpu_second_costs_its_price() -> None:
    assert gpu_cost_micros(700, gpus=2, time_ms=HOUR_MS) == 700 * 2 * 3600
    assert gpu_cost_micros(700, gpus=0, time_ms=HOUR_MS) == 0
    assert gpu_cost_micros(1, gpus=1, time_ms=1) == 1  # rounded up
