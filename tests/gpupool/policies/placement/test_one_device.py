"""Placement: reasons for every no, the emptiest device for a yes."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.lease import Granted, Refused, decide_claim
from gpupool.policies.placement import DeviceView, Need, Placed, Unfit, Unplaced, judge, place

GIB = 1 << 30


def a_device(number: int, *, memory_bytes: int | None = 16 * GIB, claimed_bytes: int = 0) -> DeviceView:
    return DeviceView(
        device_id=UUID(int=number),
        label=f"node/gpu-{number}",
        kind="gpu",
        memory_bytes=memory_bytes,
        claimed_bytes=claimed_bytes,
        present=True,
        health="ok",
        node_reachable=True,
        node_cordoned=False,
    )


def test_the_device_with_the_most_claimable_bytes_is_taken() -> None:
    devices = [a_device(1, claimed_bytes=GIB), a_device(2, memory_bytes=24 * GIB), a_device(3)]
    placement = place(devices, Need("gpu", GIB))
    assert isinstance(placement, Placed)
    assert placement.device_id == UUID(int=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "cpu"}, "it is a cpu, not a gpu"),
        ({"present": False}, "no longer there"),
        ({"node_reachable": False}, "not reachable"),
        ({"node_cordoned": True}, "cordoned"),
        ({"health": "failed"}, "failed"),
        ({"health": "unknown"}, "nobody can say how it is now"),
        ({"memory_bytes": None}, "does not say"),
        ({"claimed_bytes": 15 * GIB}, "1.0 GiB can be claimed"),
    ],
)
def test_every_no_has_its_reason(change: dict[str, object], reason: str) -> None:
    verdict = judge(replace(a_device(1), **change), Need("gpu", 2 * GIB))  # type: ignore[arg-type]
    assert isinstance(verdict, Unfit)
    assert reason in verdict.reason


def test_a_pool_without_devices_says_so() -> None:
    placement = place([], Need("gpu", GIB))
    assert isinstance(placement, Unplaced)
    assert "no node agent has connected" in placement.reason


def test_an_instance_that_claims_nothing_is_placed_nowhere() -> None:
    placement = place([a_device(1)], Need("gpu", 0))
    assert isinstance(placement, Unplaced)
    assert "does not say how many bytes" in placement.reason


def test_a_pool_without_such_a_device_says_so() -> None:
    placement = place([replace(a_device(1), kind="cpu")], Need("gpu", GIB))
    assert isinstance(placement, Unplaced)
    assert placement.reason == "There is no gpu among the 1 known devices."


@given(
    st.lists(st.tuples(st.none() | st.integers(0, 100), st.integers(0, 120), st.booleans(), st.booleans()), max_size=8),
    st.integers(1, 60),
)
def test_what_is_chosen_fits_and_a_no_is_never_wrong(
    rows: list[tuple[int | None, int, bool, bool]], wanted: int
) -> None:
    devices = [
        replace(a_device(n, memory_bytes=size, claimed_bytes=claimed), node_reachable=up, node_cordoned=cordoned)
        for n, (size, claimed, up, cordoned) in enumerate(rows)
    ]
    can = {
        d.device_id
        for d in devices
        if d.node_reachable
        and not d.node_cordoned
        and d.memory_bytes is not None
        and d.claimed_bytes + wanted <= d.memory_bytes
    }
    placement = place(devices, Need("gpu", wanted))
    assert {verdict.device_id for verdict in placement.unfit} == {d.device_id for d in devices} - can
    if isinstance(placement, Placed):
        assert placement.device_id in can
    else:
        assert not can


@given(st.none() | st.integers(0, 1 << 40), st.lists(st.integers(1, 1 << 38), max_size=6), st.integers(1, 1 << 38))
def test_a_granted_claim_leaves_the_sum_within_the_device(size: int | None, claims: list[int], wanted: int) -> None:
    decision = decide_claim(device_bytes=size, claimed_bytes=claims, wanted_bytes=wanted)
    if isinstance(decision, Granted):
        assert size is not None
        assert sum(claims) + wanted + decision.left_bytes == size
        assert decision.left_bytes >= 0
    else:
        assert isinstance(decision, Refused)
        assert size is None or sum(claims) + wanted > size


def test_a_claim_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="positive"):
        decide_claim(device_bytes=1, claimed_bytes=(), wanted_bytes=0)
