"""Memory nodes of the host, and the processor as a device."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.discovery.base import Device
from gpupool.discovery.cpu import capability, processor, tags
from gpupool.discovery.host import HostSource, dmi_prefix
from gpupool.discovery.numa import NumaNode, cpu_list, cpu_text, numa_nodes
from tests.gpupool.discovery.machine import write

GIB = 1 << 30
NODES = (NumaNode(0, frozenset(range(4)), 8 * GIB), NumaNode(1, frozenset(range(4, 8)), 8 * GIB))


def two_nodes(root: Path) -> None:
    for node in (0, 1):
        write(
            root,
            {
                f"sys/devices/system/node/node{node}/cpulist": f"{4 * node}-{4 * node + 3}\n",
                f"sys/devices/system/node/node{node}/meminfo": f"Node {node} MemTotal:        8388608 kB\n",
            },
        )


def gpu(numa: int | None, **facts: str) -> Device:
    return Device(stable_id="g", kind="gpu", vendor="amd", name="g", numa_node=numa, facts=facts)


def test_nodes_are_read_from_sysfs(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    (tmp_path / "sys/devices/system/node/possible").write_text("0-1\n")
    assert numa_nodes(tmp_path) == NODES
    assert numa_nodes(tmp_path / "elsewhere") == ()


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("0", {0}), ("", set()), ("N/A", set()), ("3-1", set()), ("0-1, 4", {0, 1, 4})],
)
def test_lists_of_processors(text: str, cpus: set[int]) -> None:
    assert cpu_list(text) == cpus


@given(st.frozensets(st.integers(0, 300)))
def test_a_list_goes_both_ways(cpus: frozenset[int]) -> None:
    assert cpu_list(cpu_text(cpus)) == cpus


@pytest.mark.parametrize(
    ("cpuinfo", "precisions", "matrix", "words"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile amx_int8 amx_bf16 avx512_fp16\n",
         {"fp64", "fp32", "bf16", "int8", "fp16"}, True, ("avx2", "avx512", "amx")),
        ("flags\t\t: fpu sse4_2 avx2\n", {"fp64", "fp32"}, False, ("avx2",)),
        ("Features\t: fp asimd asimdhp bf16 i8mm sve sve2\n", {"fp64", "fp32", "fp16", "bf16", "int8"}, False,
         ("neon", "sve", "sve2")),
        ("", set(), None, ()),
    ],
)  # fmt: skip
def test_what_a_processor_computes(
    cpuinfo: str, precisions: set[str], matrix: bool | None, words: tuple[str, ...]
) -> None:
    known = processor(cpuinfo)
    made = capability(known, machine="x86_64", cores=8)
    assert (set(made.precisions), made.tensor_cores, made.compute_units) == (precisions, matrix, 8)
    assert tags(known) == words


@pytest.mark.shows("R25")
async def test_the_processor_as_a_device(tmp_path: Path) -> None:
    two_nodes(tmp_path)
    write(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {8 * GIB // 1024} kB\n",
            "proc/cpuinfo": "model name\t: AMD EPYC 9474F 48-Core Processor\nphysical id : 0\nphysical id : 1\n"
            "flags : avx2 avx512f\n",
            "proc/sys/kernel/random/boot_id": "0d5c9c2a-boot\n",
            "sys/class/dmi/id/product_uuid": "ABC123DE-1111-2222-3333-444444444444\n",
        },
    )
    (device,) = (await HostSource(memory_share=0.5, root=tmp_path, cpu_percent=lambda: 20.0).probe()).devices
    assert device.stable_id == "cpu-abc123de-1111-2222-3333-444444444444"
    assert device.traceable_id == "EPYC_9474F_48-Core_Processor_cpu_abc123de"
    assert (device.facts["dmi_uuid_prefix"], device.facts["boot_id"]) == ("abc123de", "0d5c9c2a-boot")
    assert (device.facts["sockets"], device.facts["numa_nodes"], device.facts["numa1_cpus"]) == ("2", "2", "4-7")
    assert device.memory_bytes == 8 * GIB
    assert [(str(region.kind), region.base, region.size_bytes, region.latency_ns) for region in device.regions] == [
        ("shared", 0, 8 * GIB, 100.0),
        ("shared", 8 * GIB, 8 * GIB, 180.0),
        ("pinned", 0, 16 * GIB, 800.0),
    ]
    assert device.tags == ("avx2", "avx512")


async def test_nodes_that_do_not_add_up_are_one_region(tmp_path: Path) -> None:
    """A control group, or a virtual machine, whose nodes have other sizes than all memory."""
    two_nodes(tmp_path)
    write(tmp_path, {"proc/meminfo": f"MemTotal: {4 * GIB // 1024} kB\n"})
    (device,) = (await HostSource(memory_share=0.5, root=tmp_path, cpu_percent=lambda: None).probe()).devices
    assert [region.size_bytes for region in device.regions] == [4 * GIB, 4 * GIB]  # as DRAM, and as pinned memory


def test_an_identity_that_nobody_filled_in_has_no_prefix(tmp_path: Path) -> None:
    write(
        tmp_path, {"sys/class/dmi/id/product_uuid": "00000000-0000-0000-0000-000000000000", "etc/machine-id": "a" * 32}
    )
    assert dmi_prefix(tmp_path) == ""
    assert dmi_prefix(tmp_path / "x") == ""
