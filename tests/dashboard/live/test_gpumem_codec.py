"""Memory trees on the wire: what a page adds up is what there is, within half a percent of each segment."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.gpumem_codec import GpumemEncoder
from gpupool.policies.memory_tree import MemoryTree, TreeNode
from gpupool.policies.memory_view import gpus_of
from gpupool.policies.memory_wire import MemoryEncoder
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


def test_a_keyframe_that_is_due_keeps_the_nodes_of_its_epoch() -> None:
    """Pages take one of the same epoch for the same nodes, and keep what they drew of them."""
    encoder, page = GpumemEncoder(), Decoder()
    first, other = tree([1, 2]), tree([7, 2], label="gpu-1")
    page.feed(encoder.keyframe(first, epoch=1, seq=1, at=NOW))
    page.feed(encoder.keyframe(other, epoch=1, seq=2, at=NOW + timedelta(seconds=30)))
    assert (page.frame["nodes"][1][3], page.values) == ("gpu-0", [7, 2])
    assert encoder.delta(other, epoch=1, seq=3, at=NOW + timedelta(seconds=31)) is None
    page.feed(encoder.keyframe(other, epoch=2, seq=1, at=NOW + timedelta(seconds=31)))
    assert (page.frame["nodes"][1][3], page.values) == ("gpu-1", [7, 2])


def test_figures_come_with_the_nodes_of_a_keyframe() -> None:
    page, plain = Decoder(), tree([5])
    moving = MemoryTree("cluster", "some", plain.nodes, plain.values, {1: {"used": 5}})
    encoder = GpumemEncoder()
    page.feed(encoder.keyframe(moving, epoch=1, seq=0, at=NOW))
    assert page.frame["nodes"][1][4] == {"size": 300_000, "used": 5}
    assert page.frame["simulated"] == "some"
    assert encoder.delta(plain, epoch=1, seq=1, at=NOW) is not None  # figures are no topology


def with_state(tree: MemoryTree, number: int, state: str) -> MemoryTree:
    """One instance of it in another state."""
    nodes = list(tree.nodes)
    at = [at for at, node in enumerate(nodes) if node[1] == "instance"][number]
    nodes[at] = (*nodes[at][:4], {**nodes[at][4], "state": state})
    return replace(tree, nodes=tuple(nodes))


def without_gpu(tree: MemoryTree, number: int) -> MemoryTree:
    """One GPU has nothing on it any longer."""
    gpu = list(gpus_of(tree))[number]
    first, count = gpu.nodes[0], len(gpu.nodes) - 1
    segments = sum(tree.nodes[at][1] == "segment" for at in gpu.nodes)
    moved = [(node[0] - count if node[0] > first else node[0], *node[1:]) for node in tree.nodes[gpu.nodes[-1] + 1 :]]
    nodes = (*tree.nodes[:first], (gpu.at, "segment", "", "", {"seg": "free"}), *moved)
    values = (*tree.values[: gpu.first], 81_079, *tree.values[gpu.first + segments :])
    return MemoryTree(tree.scope, tree.simulated, nodes, values, {})


def test_states_that_change_all_the_time_cost_a_large_pool_no_keyframe_a_second() -> None:
    fleet, encoder, page, epoch = MovingFleet(64), MemoryEncoder(bytes_per_second=4_000), Decoder(), 1
    payload = encoder.keyframe(fleet.tree(), epoch=epoch, seq=1, at=NOW)
    page.feed(payload)
    seq, keyframes, behind = 1, 0, 0
    for second in range(1, 21):
        fleet.step()
        state = with_state(fleet.tree(), second, "draining")
        seq, at = seq + 1, NOW + timedelta(seconds=second)
        delta = encoder.delta(state, epoch=epoch, seq=seq, at=at)
        if delta is None:
            keyframes, epoch, seq, behind = keyframes + 1, epoch + 1, 1, 0
            page.feed(encoder.keyframe(state, epoch=epoch, seq=seq, at=at))
        else:
            behind += 1
            page.feed(delta)
        assert near(page.values, state.values)  # figures are those of now, whatever the state's word is
        assert behind < 5
    assert (page.missed, len(payload) // 4_000) == (0, 4)
    assert keyframes == 20 // 4


def test_a_pool_of_64_gpus_is_told_of_another_state_at_once() -> None:
    fleet, encoder = MovingFleet(64), GpumemEncoder()
    encoder.keyframe(fleet.tree(), epoch=1, seq=1, at=NOW)
    changed = with_state(fleet.tree(), 3, "draining")
    assert encoder.delta(changed, epoch=1, seq=2, at=NOW + timedelta(seconds=1)) is None


def test_a_gpu_with_other_instances_stays_as_it_was_until_the_keyframe() -> None:
    fleet, encoder, page = MovingFleet(64), MemoryEncoder(bytes_per_second=4_000), Decoder()
    before = fleet.tree()
    page.feed(encoder.keyframe(before, epoch=1, seq=1, at=NOW))
    fleet.step()
    whole, fewer = fleet.tree(), without_gpu(fleet.tree(), 3)
    assert sum(fewer.values) == sum(whole.values)
    delta = encoder.delta(fewer, epoch=1, seq=2, at=NOW + timedelta(seconds=1))
    assert delta is not None
    page.feed(delta)
    for number, gpu in enumerate(gpus_of(whole)):
        segments = slice(gpu.first, gpu.first + sum(whole.nodes[at][1] == "segment" for at in gpu.nodes))
        shown, real = page.values[segments], (before if number == 3 else whole).values[segments]
        assert near(shown, real)
    assert encoder.delta(fewer, epoch=1, seq=3, at=NOW + timedelta(seconds=6)) is None
    page.feed(encoder.keyframe(fewer, epoch=2, seq=1, at=NOW + timedelta(seconds=6)))
    assert page.values == list(fewer.values)


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
