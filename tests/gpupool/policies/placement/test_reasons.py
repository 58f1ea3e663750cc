"""Every no of a filter has its reason."""

from dataclasses import replace
from typing import Any

import pytest

from gpupool.policies.isolation import Isolation
from gpupool.policies.nearest import Shape
from gpupool.policies.placement import ClaimView, RegionView, Unfit, Unplaced, judge, judge_all, place
from tests.gpupool.policies.placement.pools import GIB, a_claim, a_device, a_need, a_node, claimed


def reason(device_changes: dict[str, Any], need_changes: dict[str, Any] | None = None) -> str:
    verdict = judge(a_device(1, **device_changes), a_need(**(need_changes or {})))
    assert isinstance(verdict, Unfit)
    return f"{verdict.code}: {verdict.reason}"


@pytest.mark.parametrize(
    ("device", "need", "told"),
    [
        ({"node": a_node(1, maintenance=True)}, {}, "cordoned: its node is in maintenance"),
        ({"isolated": "ECC errors"}, {}, "isolated: it was taken out of service: ECC errors"),
        (
            {"tags": frozenset({"A100-40GB"})},
            {"gpu_tag": "H100"},
            "tag: it does not have the tag H100; it has A100-40GB",
        ),
        ({}, {"gpu_tag": "H100"}, "tag: it does not have the tag H100; it has none"),
        ({"precisions": frozenset({"fp16"})}, {"precision": "fp8"}, "precision: it does not compute in fp8"),
        (
            {"regions": (RegionView("shared", 80 * GIB, 2.0, frozenset({"read"})),)},
            {},
            "access: none of its memory may be read, written and computed in",
        ),
        (
            {"regions": (RegionView("vram", 8 * GIB, 150.0, frozenset({"read", "write", "compute"})),)},
            {},
            "access: no region of its memory has 10.0 GiB",
        ),
        (
            {"node": a_node(1, capabilities={"bubblewrap": {"available": False, "reason": "bwrap is not installed."}})},
            {"isolation": Isolation(sandbox="bubblewrap")},
            "isolation: its node cannot isolate it so: It asks for bubblewrap, which its node lacks: "
            "bwrap is not installed",
        ),
    ],
)
def test_what_stands_in_the_way(device: dict[str, Any], need: dict[str, Any], told: str) -> None:
    assert reason(device, need) == told


@pytest.mark.shows("P18")
def test_a_divided_gpu_is_no_place_and_its_parts_are() -> None:
    whole = a_device(1, allocatable=False)
    parts = [a_device(number, memory_gib=20, partition_of="gpu-0001") for number in (2, 3)]
    verdicts = judge_all([whole, *parts], a_need())
    assert [isinstance(one, Unfit) for one in verdicts] == [True, False, False]
    assert "its parts can be claimed" in verdicts[0].reason  # type: ignore[union-attr]  # the first is Unfit


@pytest.mark.shows("P20")
def test_amds_partitions_are_devices_with_a_share_of_the_memory_each() -> None:
    """An MI300X in CPX and NPS4: 8 partitions; each is claimed by itself, and no more than it has."""
    parts = [a_device(number, memory_gib=24, vendor="amd", partition_of="mi300x") for number in range(1, 9)]
    assert all(not isinstance(one, Unfit) for one in judge_all(parts, a_need(20)))
    assert isinstance(place(parts, a_need(30)), Unplaced)


def test_a_limit_of_memory_refuses_what_asks_for_more() -> None:
    need = {"memory_bytes": 40 * GIB, "gpu_tag": "A100-40GB", "mem_limit_bytes": 32_768 << 20}
    told = reason({"tags": frozenset({"A100-40GB"})}, need)
    assert told == "limit: 40.0 GiB of it are asked for, and the limit of memory (mem_limit_mb) is 32.0 GiB"


@pytest.mark.shows("P25")
def test_clients_of_mps_are_counted() -> None:
    node = a_node(1, capabilities={"mps": {"available": True}})
    full = claimed(a_device(1, node=node), *(a_claim(n, 1, mps_clients=16) for n in (1, 2, 3)))
    asks = a_need(1, isolation=Isolation(mps=True, mps_clients=1))
    verdict = judge(full, asks)
    assert isinstance(verdict, Unfit)
    assert verdict.reason == "it has 48 clients of MPS, and 1 more are over 48"
    assert not isinstance(judge(full, a_need(1)), Unfit)


def test_shares_and_whole_claims_are_held_against_others() -> None:
    half = claimed(a_device(1), ClaimView(None, GIB, share=0.6))
    verdict = judge(half, a_need(share=0.5))
    assert isinstance(verdict, Unfit)
    assert "50% of the device's compute, 40% can be claimed" in verdict.reason
    assert not isinstance(judge(half, a_need(share=0.4)), Unfit)
    whole = judge(half, a_need(whole=True))
    assert isinstance(whole, Unfit)
    assert "others have claims on it" in whole.reason


def test_the_hosts_memory_beside_it_is_counted() -> None:
    node = a_node(1)
    gpu, host = a_device(1, node=node), a_device(2, node=node, kind="cpu", memory_gib=64)
    need = a_need(host_memory_bytes=32 * GIB)
    assert place([gpu, host], need).device_ids == (gpu.device_id,)  # type: ignore[union-attr]  # Placed
    full = claimed(host, a_claim(9, 40))
    refused = place([gpu, full], need)
    assert isinstance(refused, Unplaced)
    assert "its host has 24.0 GiB of memory to claim, 32.0 GiB are needed beside it" in refused.reason
    unknown = place([gpu], need)
    assert isinstance(unknown, Unplaced)
    assert "does not say how much memory its host has" in unknown.reason


@pytest.mark.shows("R96")
def test_a_type_that_is_too_small_for_the_shape_is_refused() -> None:
    small, large = a_device(1, name="NVIDIA A10", memory_gib=24), a_device(2, name="NVIDIA A100-SXM4-80GB")
    need = a_need(shape=Shape(128, 4096))
    made = place([small, large], need)
    assert made.device_ids == (large.device_id,)  # type: ignore[union-attr]  # Placed
    assert "an A10 is for 64 x 2048 tokens" in made.unfit[0].reason


@pytest.mark.shows("R14")
def test_tensor_cores_and_precision_count() -> None:
    plain = a_device(1, tensor_cores=False, precisions=frozenset({"fp16", "fp32"}))
    cores = a_device(2, tensor_cores=True, precisions=frozenset({"fp16", "bf16", "fp8"}))
    assert place([plain, cores], a_need()).device_ids == (cores.device_id,)  # type: ignore[union-attr]  # Placed
    eight = place([plain, cores], a_need(precision="fp8"))
    assert [one.code for one in eight.unfit] == ["precision"]


@pytest.mark.shows("R13", "R15")
def test_nearer_memory_is_better_and_what_may_not_be_written_does_not_count() -> None:
    """By the classes' latency: HBM before GDDR before memory that the host shares."""
    usable = frozenset({"read", "write", "atomic", "compute"})
    l2 = RegionView("shared", 50 << 20, 2.0, frozenset({"read"}))
    far, middle, near = (
        a_device(number, regions=(RegionView(kind, 80 * GIB, latency, usable), l2))
        for number, kind, latency in ((1, "pinned", 800.0), (2, "vram", 250.0), (3, "vram", 150.0))
    )
    made = place([far, middle, near], a_need())
    assert made.device_ids == (near.device_id,)  # type: ignore[union-attr]  # Placed
    scores = {fit.device_id: dict(fit.scores)["memory"] for fit in made.fits}  # type: ignore[union-attr]  # Placed
    assert [scores[one.device_id] for one in (far, middle, near)] == [150 / 800, 0.6, 1.0]


def test_a_whole_device_is_left_whole_when_packing() -> None:
    used, untouched = claimed(a_device(1), a_claim(9, 40)), a_device(2)
    packed = place([used, untouched], a_need(20, strategy="pack"))
    spread = place([used, untouched], a_need(20))
    assert packed.device_ids == (used.device_id,)  # type: ignore[union-attr]  # Placed
    assert spread.device_ids == (untouched.device_id,)  # type: ignore[union-attr]  # Placed


def test_a_device_that_says_nothing_of_its_memory_is_not_full_but_unknown() -> None:
    assert "does not say" in reason({"memory_bytes": None})


def test_what_is_known_of_nothing_is_no_reason() -> None:
    device = replace(a_device(1), precisions=frozenset(), regions=(), tensor_cores=None)
    assert not isinstance(judge(device, a_need(precision="fp8")), Unfit)
