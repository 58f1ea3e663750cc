"""Memory trees on the wire: what a page adds up is what there is, within half a percent of each segment."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.policies.memory_tree import MemoryTree, TreeNode
from tests.dashboard.live.gpumem_decoder import Decoder
from tests.dashboard.live.memory_examples import MovingFleet, payloads

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MIB_OF_A_GPU = st.integers(min_value=0, max_value=300_000)


def tree(values: Sequence[int], *, label: str = "gpu-0") -> MemoryTree:
    nodes: list[TreeNode] = [(-1, "cluster", "cluster", "", {}), (0, "gpu", "one", label, {"size": 300_000})]
    nodes += [(1, "segment", "", "", {"seg": "unknown"}) for _ in values]
    return MemoryTree("cluster", "", tuple(nodes), tuple(values))


def near(shown: Sequence[int], real: Sequence[int]) -> bool:
    return all(abs(a - b) * 200 <= b for a, b in zip(shown, real, strict=True))


@given(
    states=st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(MIB_OF_A_GPU, min_size=n, max_size=n), min_size=1))
)
def test_any_course_of_states_is_shown_within_half_a_percent(states: list[list[int]]) -> None:
    encoder, page = GpumemEncoder(), Decoder()
    for seq, values in enumerate(states):
        pack = encoder.delta if seq else encoder.keyframe
        payload = pack(tree(values), epoch=1, seq=seq, at=NOW + timedelta(seconds=seq))
        assert payload is not None
        page.feed(payload)
        assert near(page.values, values)
        assert page.at == (NOW + timedelta(seconds=seq)).timestamp() * 1000
    assert page.missed == 0


@given(step=st.integers(1, 12), begins=st.integers(1_000, 80_000))
def test_a_course_of_changes_too_small_to_send_never_adds_up(step: int, begins: int) -> None:
    encoder, page, value = GpumemEncoder(), Decoder(), begins
    page.feed(encoder.keyframe(tree([value]), epoch=1, seq=0, at=NOW))
    for seq in range(1, 300):
        value += step
        payload = encoder.delta(tree([value]), epoch=1, seq=seq, at=NOW)
        assert payload is not None
        page.feed(payload)
        assert near(page.values, [value])


def test_a_change_under_half_a_percent_takes_no_bytes() -> None:
    encoder = GpumemEncoder()
    encoder.keyframe(tree([20_000, 0]), epoch=1, seq=0, at=NOW)
    assert len(encoder.delta(tree([20_099, 0]), epoch=1, seq=1, at=NOW) or b"") == 17
    assert len(encoder.delta(tree([20_101, 1]), epoch=1, seq=2, at=NOW) or b"") == 17 + 3 + 2


def test_another_topology_takes_a_keyframe() -> None:
    encoder, page = GpumemEncoder(), Decoder()
    page.feed(encoder.keyframe(tree([1, 2]), epoch=1, seq=0, at=NOW))
    assert encoder.delta(tree([1, 2, 3]), epoch=1, seq=1, at=NOW) is None
    assert encoder.delta(tree([1, 2], label="gpu-1"), epoch=1, seq=1, at=NOW) is None
    page.feed(encoder.keyframe(tree([1, 2, 3]), epoch=2, seq=1, at=NOW))
    assert page.values == [1, 2, 3]
    assert page.frame["nodes"][1] == [0, "gpu", "one", "gpu-0", {"size": 300_000}]


def test_figures_come_with_the_nodes_of_a_keyframe() -> None:
    page, plain = Decoder(), tree([5])
    moving = MemoryTree("cluster", "some", plain.nodes, plain.values, {1: {"used": 5}})
    encoder = GpumemEncoder()
    page.feed(encoder.keyframe(moving, epoch=1, seq=0, at=NOW))
    assert page.frame["nodes"][1][4] == {"size": 300_000, "used": 5}
    assert page.frame["simulated"] == "some"
    assert encoder.delta(plain, epoch=1, seq=1, at=NOW) is not None  # figures are no topology


@pytest.mark.parametrize(
    ("gpus", "seconds", "nodes", "most"), [(64, 91, 2_600, 3_000), pytest.param(1024, 31, 41_600, 48_000)]
)
def test_bytes_a_second_of_the_simulated_fleets_kind_of_change(gpus: int, seconds: int, nodes: int, most: int) -> None:
    """With a keyframe each 30 seconds."""
    fleet, page, sizes = MovingFleet(gpus), Decoder(), []
    for payload in payloads(fleet, seconds):
        sizes.append(len(payload))
        page.feed(payload)
    assert abs(len(page.frame["nodes"]) - nodes) < nodes / 20
    assert near(page.values, fleet.tree().values)
    assert sum(sizes[1:]) / (seconds - 1) < most
