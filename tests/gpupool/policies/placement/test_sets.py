"""Several devices for one instance: near to each other, of one node and one vendor."""

from collections.abc import Mapping
from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies import topology
from gpupool.policies.placement import DeviceView, Placed, Unplaced, place
from tests.gpupool.policies.placement.pools import a_claim, a_device, a_need, a_node, claimed, linked


def ids(*numbers: int) -> tuple[UUID, ...]:
    return tuple(UUID(int=number) for number in numbers)


def numbered(links: Mapping[int, dict[str, str]]) -> list[DeviceView]:
    return [a_device(number, links=own) for number, own in links.items()]


@pytest.mark.shows("R28")
def test_the_nearest_pair_is_taken() -> None:
    """Two pairs with an NVLink bridge each, PCIe between them; one of the first pair is nearly full."""
    devices = numbered(linked((1, 2), (3, 4), kind="nvlink", others="pcie_host"))
    devices[0] = claimed(devices[0], a_claim(9, 75))
    made = place(devices, a_need(devices=2))
    assert isinstance(made, Placed)
    assert made.device_ids == ids(3, 4)
    assert made.nearness == topology.LEVELS["nvlink"]


@pytest.mark.shows("R26")
def test_a_cluster_of_several_kinds_is_chosen_from_by_its_links() -> None:
    """A100s with PCIe between the sockets, H100s in an NVSwitch domain (900 GB/s a GPU), MI300Xs joined by XGMI.

    The 5.2 TB/s that are told of an MI300X are of its HBM: they say nothing of how near another one is.
    """
    kinds = [
        ("nvidia", "A100-PCIE-80GB", "system"),
        ("amd", "MI300X", "xgmi"),
        ("nvidia", "H100-SXM5-80GB", "nvswitch"),
    ]
    devices = [
        a_device(
            10 * node + number,
            node=a_node(node),
            vendor=vendor,
            name=name,
            tags=frozenset({name}),
            links={f"gpu-{10 * node + 3 - number:04d}": kind},
        )
        for node, (vendor, name, kind) in enumerate(kinds, start=1)
        for number in (1, 2)
    ]
    near = place(devices, a_need(devices=2, topology="required"))
    assert isinstance(near, Placed)
    assert near.device_ids == ids(31, 32)
    amd = place(devices, a_need(devices=2, topology="required", gpu_tag="MI300X"))
    assert isinstance(amd, Placed)
    assert (amd.device_ids, amd.nearness) == (ids(21, 22), topology.LEVELS["xgmi"])
    far = place(devices, a_need(devices=2, topology="required", gpu_tag="A100-PCIE-80GB"))
    assert isinstance(far, Unplaced)
    assert "across the sockets" in far.reason


@pytest.mark.shows("R27")
@pytest.mark.parametrize(
    ("hub", "kind"), [("pcie-switch-0", "pcie_switch"), ("nvswitch", "nvswitch"), ("xgmi-hub", "xgmi")]
)
def test_devices_of_one_switch_or_hub_are_one_domain(hub: str, kind: str) -> None:
    """A100s under a PCIe switch, H100s in an NVSwitch domain, MI300s at an XGMI hub."""
    devices = [a_device(number, links={hub: kind}) for number in (1, 2, 3, 4)]
    made = place(devices, a_need(devices=4, topology="required"))
    assert isinstance(made, Placed)
    assert made.nearness == topology.LEVELS[kind] >= topology.DOMAIN


@pytest.mark.shows("R28")
def test_a_required_topology_refuses_what_a_preferred_one_takes() -> None:
    devices = numbered(linked((1,), (2,), kind="nvlink", others="system"))
    refused = place(devices, a_need(devices=2, topology="required"))
    assert isinstance(refused, Unplaced)
    assert "connected across the sockets, and its topology is required" in refused.reason
    for wanted in ("preferred", "any"):
        assert isinstance(place(devices, a_need(devices=2, topology=wanted)), Placed)


def test_links_that_nobody_tells_are_not_near() -> None:
    devices = [a_device(1), a_device(2)]
    assert isinstance(place(devices, a_need(devices=2)), Placed)
    refused = place(devices, a_need(devices=2, topology="required"))
    assert isinstance(refused, Unplaced)
    assert "in a way that nobody tells" in refused.reason


def test_vendors_are_not_mixed() -> None:
    devices = [a_device(1, vendor="nvidia"), a_device(2, vendor="amd")]
    refused = place(devices, a_need(devices=2))
    assert isinstance(refused, Unplaced)
    assert "Node node-1 has 1 of amd, 1 of nvidia, and one instance does not span devices of several" in refused.reason


def test_devices_of_several_nodes_are_not_joined() -> None:
    devices = [a_device(number, node=a_node(number)) for number in (1, 2, 3)]
    refused = place(devices, a_need(devices=2))
    assert isinstance(refused, Unplaced)
    assert refused.reason == "It needs 2 devices of one node; the most that can take it on any node are 1."


def test_a_small_need_leaves_the_large_node_whole() -> None:
    large, small = a_node(1), a_node(2)
    links = {"switch": "nvswitch"}
    devices = [a_device(number, node=large, links=links) for number in range(1, 9)]
    devices += [a_device(number, node=small, links=links) for number in (11, 12)]
    made = place(devices, a_need(devices=2))
    assert isinstance(made, Placed)
    assert made.device_ids == ids(11, 12)


KINDS = sorted(topology.LEVELS)


@given(st.lists(st.sampled_from(["", *KINDS]), min_size=15, max_size=15), st.integers(1, 6))
def test_no_other_set_is_nearer(kinds: list[str], count: int) -> None:
    links: list[dict[str, str]] = [{} for _ in range(6)]
    for (first, second), kind in zip(combinations(range(6), 2), kinds, strict=True):
        if kind:
            links[first][f"gpu-{second:04d}"] = kind
    devices = [a_device(number, links=own) for number, own in enumerate(links)]
    found = topology.nearest_set(devices, count)
    assert found is not None
    assert len(set(found)) == count
    best = max(topology.set_score(one) for one in combinations(devices, count))
    assert topology.set_score([devices[position] for position in found]) == best


def test_there_is_no_set_of_more_than_there_are() -> None:
    assert topology.nearest_set([a_device(1)], 2) is None
