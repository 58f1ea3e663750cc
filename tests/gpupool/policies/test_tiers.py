"""How far weights are from serving, and what each tier takes."""

import pytest

from gpupool.policies.instance import State
from gpupool.policies.tiers import Latency, Tier, Timed, asleep_bytes, started_from, tier_of, wake_latency

GIB = 1 << 30


@pytest.mark.parametrize(
    ("state", "has_process", "tier"),
    [
        (State.READY, True, Tier.AWAKE),
        (State.DRAINING, True, Tier.AWAKE),
        (State.ASLEEP, True, Tier.ASLEEP),
        (State.ASLEEP, False, Tier.STAGED),
        (State.LOADING, True, Tier.COLD),
        (State.REQUESTED, False, Tier.COLD),
        (State.UNKNOWN, True, Tier.COLD),
    ],
)
def test_the_tier_of_an_instance(state: State, has_process: bool, tier: Tier) -> None:
    assert tier_of(state, has_process=has_process) is tier


def test_a_start_counts_as_from_memory_only_where_the_machine_says_so() -> None:
    assert [started_from(share) for share in (None, 0.0, 0.89, 0.9, 1.0)] == [Tier.COLD] * 3 + [Tier.STAGED] * 2


@pytest.mark.shows("R19")
def test_wake_latency_is_told_by_tier() -> None:
    told = wake_latency([
        Timed(30.0, "cold", None), Timed(50.0, "cold", 0.5), Timed(8.0, "staged", 1.5), Timed(9.0, "", None),
    ])  # fmt: skip
    assert told[Tier.COLD] == Latency(2, 40.0, 50.0)
    assert told[Tier.STAGED] == Latency(1, 8.0, 8.0)
    assert told[Tier.ASLEEP] == Latency(2, 1.0, 1.5)
    assert told[Tier.AWAKE].median == 0.0
    assert wake_latency([])[Tier.ASLEEP] == Latency(0, None, None)  # unknown is not zero


def test_what_a_sleeper_still_claims() -> None:
    assert asleep_bytes(claimed=16 * GIB, used=None, has_process=True) == 16 * GIB
    assert asleep_bytes(claimed=16 * GIB, used=GIB, has_process=True) == int(GIB * 1.05)
    assert asleep_bytes(claimed=16 * GIB, used=20 * GIB, has_process=True) == 16 * GIB
    assert 0 < asleep_bytes(claimed=16 * GIB, used=None, has_process=False) <= 1 << 20
