"""The record of a device's memories, and the table of memory classes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.discovery.base import Capability, Device, MemoryRegion, MemoryType
from gpupool.discovery.memory_classes import (
    FULL_ACCESS,
    MEMORY_CLASSES,
    MEMORY_TYPE_NUMBERS,
    Access,
    access_mask,
    access_names,
    gpu_regions,
    pack,
    region,
    unpack,
    vram_class,
)
from gpupool.discovery.resource_view import catalogue, view_of, view_of_stored
from gpupool.discovery.uma import Unity, uma_regions

GIB = 1 << 30
ACCESSES = st.frozensets(st.sampled_from(sorted(FULL_ACCESS)))


@pytest.mark.shows("R13")
def test_types_and_access_are_numbered() -> None:
    assert {kind.name: number for kind, number in MEMORY_TYPE_NUMBERS.items()} == {
        "VRAM": 0, "PINNED": 1, "UMA": 2, "SHARED": 3,
    }  # fmt: skip
    assert (Access.READ, Access.WRITE, Access.ATOMIC, Access.COMPUTE) == (1, 2, 4, 8)
    assert pack(MemoryType.PINNED, {"read", "write"}) == 0b0011_001
    assert unpack(0b1111_010) == (MemoryType.UMA, FULL_ACCESS)


@given(st.sampled_from(list(MemoryType)), ACCESSES)
def test_packing_goes_both_ways(kind: MemoryType, access: frozenset[str]) -> None:
    assert unpack(pack(kind, access)) == (kind, access)
    assert access_names(access_mask(access)) == access


@pytest.mark.parametrize("word", [-1, 4, 7, 1 << 7])
def test_a_number_that_means_nothing_is_refused(word: int) -> None:
    with pytest.raises(ValueError, match=r"memory|access"):
        unpack(word)


def test_a_word_that_is_no_access_is_refused() -> None:
    with pytest.raises(ValueError, match="'execute' is not a kind of access"):
        access_mask({"read", "execute"})


@pytest.mark.shows("R15")
def test_each_class_of_memory_has_its_latency() -> None:
    shown = {row["name"]: row for row in catalogue()}
    assert shown["hbm2"]["latency_ns"] == 150.0
    assert (shown["pinned_pcie"]["latency_ns"], shown["pinned_pcie"]["mem_type"]) == (800.0, 1)
    assert (shown["l2"]["latency_ns"], shown["l2"]["access"]) == (2.0, 1)  # a read-only view
    assert [row["latency_ns"] for row in catalogue()] == sorted(row.latency_ns for row in MEMORY_CLASSES.values())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "hbm2"), ("NVIDIA H100 80GB HBM3", "hbm3"), ("NVIDIA GH200 480GB", "hbm3"),
        ("AMD Instinct MI300X OAM", "hbm3"), ("AMD Instinct MI210", "hbm2"), ("Tesla V100-SXM2-32GB", "hbm2"),
        ("Intel(R) Data Center GPU Max 1550", "hbm2"), ("NVIDIA GeForce RTX 4090", "gddr"), ("NVIDIA L40S", "gddr"),
        ("NVIDIA A10", "gddr"), ("NVIDIA RTX A6000", "gddr"), ("AMD Radeon RX 7800 XT", "gddr"), ("", "gddr"),
    ],
)  # fmt: skip
def test_which_gpus_have_stacked_memory(name: str, kind: str) -> None:
    assert vram_class(name) == kind


def h100() -> Device:
    return Device(
        stable_id="GPU-1",
        kind="gpu",
        vendor="nvidia",
        name="NVIDIA H100",
        regions=gpu_regions("NVIDIA H100", 80 * GIB, 512 * GIB),
        capability=Capability(
            precisions=frozenset({"fp16", "bf16", "fp8"}), tensor_cores=True, compute_units=132, peak_tflops=989.0
        ),
    )


@pytest.mark.shows("R12", "R13", "R14")
def test_the_record_of_a_gpu() -> None:
    record = view_of(h100())
    assert (record["device_id"], record["vendor"], record["interface"]) == ("GPU-1", "nvidia", "cuda")
    assert (record["tensor_cores"], record["precisions"], record["compute_units"]) == (
        True, ["bf16", "fp16", "fp8"], 132,
    )  # fmt: skip
    vram, pinned = record["regions"]
    assert vram == {
        "base": 0, "size": 80 * GIB, "mem_type": 0, "mem_type_name": "vram", "access": 15,
        "access_names": ["read", "write", "atomic", "compute"], "packed": 0b1111_000, "latency_ns": 150.0,
    }  # fmt: skip
    assert (pinned["base"], pinned["mem_type"], pinned["access_names"], pinned["packed"]) == (
        80 * GIB, 1, ["read", "write"], 0b0011_001,
    )  # fmt: skip


@pytest.mark.parametrize(("vendor", "interface"), [("amd", "hip"), ("intel", "level-zero"), ("host", "cpu"), ("x", "")])
def test_three_vendors_are_one_kind_of_record(vendor: str, interface: str) -> None:
    assert view_of(Device(stable_id="d", kind="gpu", vendor=vendor, name="n"))["interface"] == interface


def test_a_stored_device_has_the_same_record() -> None:
    device = h100()
    stored = view_of_stored(
        stable_id=device.stable_id,
        vendor=device.vendor,
        regions=[msgspec.to_builtins(each) for each in device.regions],
        capability=msgspec.to_builtins(device.capability),
    )
    assert stored == view_of(device)


def test_memory_behind_a_coherent_link_is_beside_a_gpus_own() -> None:
    own, host = uma_regions("NVIDIA GH200 480GB", Unity.COHERENT, vram_bytes=96 * GIB, host_bytes=480 * GIB)
    assert (own.kind, own.size_bytes, own.latency_ns) == (MemoryType.VRAM, 96 * GIB, 150.0)
    assert (host.kind, host.base, host.size_bytes, host.latency_ns) == (MemoryType.UMA, 96 * GIB, 480 * GIB, 500.0)


def test_an_unknown_size_stays_unknown() -> None:
    assert region("gddr", None) == MemoryRegion(kind=MemoryType.VRAM, size_bytes=None, latency_ns=250.0)
