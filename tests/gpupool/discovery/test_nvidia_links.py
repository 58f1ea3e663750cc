"""How NVIDIA's GPUs reach each other, by what tools and clouds say. Expected values were read in the samples."""

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpupool.discovery.base import Device, Link, LinkType
from gpupool.discovery.fabric_manager import FabricManagerLog, errors
from gpupool.discovery.nccl_topology import TopologyRefused, parse, place
from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading
from gpupool.discovery.nvidia_smi_links import add_links, parse_nvlink_capabilities, parse_nvlink_status
from gpupool.discovery.nvidia_view import devices
from gpupool.discovery.topology import matrix
from tests.gpupool.discovery.samples import assert_covered, read
from tests.gpupool.discovery.test_nvidia_text_samples import H100, H100_MIG, H200, L40S, RTX2080A, RTX2080B, RTX4080

NODE = "abc123de-1111-2222-3333-444444444444"

# nvlink -s: links that are up, megabytes a second of each, what is said in place of links

STATUS = {
    RTX2080A: (0, None, "NVML: Unable to retrieve Nvlink information as all links are inActive"),
    RTX2080B: (0, None, "NVML: Unable to retrieve Nvlink information as all links are inActive"),
    RTX4080: (0, None, "Device does not have or support Nvlink"),
    H100: (18, 26562, ""),
    H100_MIG: (0, None, "Nvlink queries are not supported for Devices in MIG mode"),
    H200: (18, 26562, ""),
    L40S: (0, None, "Device does not have or support Nvlink"),
}
AFFINITY = {RTX2080A: "0-23", RTX2080B: "0-23", RTX4080: "0-15", H100: "0-19", H100_MIG: "0-19", H200: "0-23",
            L40S: "0-7"}  # fmt: skip


@pytest.mark.parametrize("machine", STATUS)
def test_nvlinks_of_one_gpu(machine: str) -> None:
    (status,) = parse_nvlink_status(read("nvlink", f"{machine}__capabilities__nvlink-s.txt"))
    up, speed, note = STATUS[machine]
    assert [link.speed_mbps for link in status.links] == [speed] * up
    assert status.note == note


def test_nvlinks_of_eight_gpus() -> None:
    found = parse_nvlink_status(read("nvlink", "gpud__nvidia-smi.nvlink.status.a100"))
    assert [each.index for each in found] == list(range(8))
    assert {each.name for each in found} == {"NVIDIA A100-SXM4-80GB"}
    assert [[link.speed_mbps for link in each.links] for each in found] == [[25000] * 12] * 8
    assert found[7].uuid == "GPU-754035b4-4708-efcd-b261-623aea38bcad"


@pytest.mark.parametrize("machine", AFFINITY)
def test_the_matrix_of_one_gpu(machine: str) -> None:
    found = matrix(read("nvidia-smi-topo", f"{machine}__capabilities__topo-m.txt"))
    assert found.names == ("GPU0",)
    assert (found.cpus["GPU0"], found.numa["GPU0"]) == (AFFINITY[machine], 0)


def test_the_fabric_managers_errors() -> None:
    (first,) = errors(read("nvlink", "gpud__fabricmanager.log"))
    assert (first.kind, first.code, first.pci_address) == ("sxid", 12028, "0000:86:00.0")
    assert first.data == {"grade": "non-fatal", "port": "61"}
    assert first.at == 1740669002.0  # 27 February 2025, 15:10:02


async def test_the_fabric_managers_log_is_followed_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "var/log/fabricmanager.log"
    log.parent.mkdir(parents=True)
    line = (
        "[Feb 27 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error {code} on fid 0 on NVSwitch "
        "pci bus id 00000000:86:00.0 physical id 3 port 61\n"
    )
    log.write_text(line.format(code=1))
    source = FabricManagerLog(tmp_path)
    assert (await source.probe()).noticed == ()
    half = line.format(code=3)
    with log.open("a") as file:
        file.write(line.format(code=2) + half[:40])
    assert [event.code for event in (await source.probe()).noticed] == [2]
    with log.open("a") as file:
        file.write(half[40:])
    assert [event.code for event in (await source.probe()).noticed] == [3]
    log.unlink()
    assert (await source.probe()).noticed == ()


def test_no_file_about_links_is_left_out() -> None:
    assert_covered("nvidia-smi-topo", {f"{machine}__capabilities__topo-m.txt" for machine in AFFINITY})
    names = {f"{machine}__capabilities__nvlink-s.txt" for machine in STATUS}
    assert_covered("nvlink", names | {"gpud__nvidia-smi.nvlink.status.a100", "gpud__fabricmanager.log"})


# NCCL's and RCCL's files: GPUs by NUMA node, address of the first, lanes of links between GPUs in all

TOPOLOGIES: dict[str, tuple[dict[int, int], str, int]] = {
    "azhpc__ncv4-topo.xml": ({0: 1, 1: 1, 2: 1, 3: 1}, "0001:00:00.0", 0),  # 12 lanes of each GPU to itself
    "azhpc__ndv2-topo.xml": ({0: 4, 1: 4}, "0001:00:00.0", 0),
    "azhpc__ndv4-topo.xml": ({0: 2, 1: 2, 2: 2, 3: 2}, "0003:00:00.0", 0),
    "azhpc__ndv5-topo.xml": ({0: 4, 1: 4}, "0001:00:00.0", 0),
    "rccl__topo_16p1h.xml": ({0: 4, 1: 4, 2: 4, 3: 4}, "0000:4e:00.0", 112),
    "rccl__topo_4p3l.xml": ({0: 4}, "0000:1d:00.0", 12),
    "rccl__topo_4p_940.xml": ({0: 1, 1: 1, 2: 1, 3: 1}, "0000:82:00.0", 12),
    "rccl__topo_8p1h_5.xml": ({0: 4, 1: 4}, "0000:32:00.0", 52),
    "rccl__topo_8p6l.xml": ({0: 4, 1: 4}, "0000:63:00.0", 48),
    "rccl__topo_8p_90a.xml": ({0: 8}, "0000:c1:00.0", 24),
    "rccl__topo_8p_940.xml": ({0: 4, 1: 4}, "0000:0c:00.0", 56),
    "rccl__topo_8p_940vm.xml": ({0: 4, 1: 4}, "0021:00:00.0", 56),
    "rccl__topo_8p_pcie.xml": ({0: 8}, "0000:1d:00.0", 0),
    "rccl__topo_8p_rome_4n_1.xml": ({1: 2, 3: 2, 5: 2, 7: 2}, "0000:4a:00.0", 24),
    "azhpc__ncv4-graph.xml": ({}, "", 0),  # graphs of rings, no places
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topology_files(name: str) -> None:
    nodes, first, lanes = TOPOLOGIES[name]
    gpus = parse(read("nccl-topo-xml", name))
    assert Counter(gpu.numa_node for gpu in gpus.values()) == nodes
    assert next(iter(gpus), "") == first
    assert sum(sum(gpu.links.values()) for gpu in gpus.values()) == lanes


def test_no_topology_file_is_left_out() -> None:
    assert_covered("nccl-topo-xml", set(TOPOLOGIES))


@pytest.mark.shows("R27")
def test_a_topology_file_tells_what_hangs_on_one_switch() -> None:
    text = """<system version="1">
      <cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">
        <pci busid="0003:00:00.0" class="0x030200"/><pci busid="0103:00:00.0" class="0x020700"/>
        <pci busid="0004:00:00.0" class="0x030200"/></pci>
        <pci busid="ffff:ff:05.0" class="0x060400"><pci busid="0005:00:00.0" class="0x030200"/></pci></cpu>
      <cpu numaid="1"><pci busid="ffff:ff:02.0" class="0x060400">
        <pci busid="0001:00:00.0" class="0x030200"/></pci></cpu>
    </system>"""
    far = Link(peer="b", kind=LinkType.SYSTEM, bandwidth_bytes=5)
    hub = Link(peer="nvswitch-x", kind=LinkType.NVSWITCH, lanes=12)
    plain = [
        Device(stable_id=name, kind="gpu", vendor="nvidia", name="A100", pci_address=f"000{at}:00:00.0")
        for name, at in (("a", 3), ("b", 4), ("c", 5), ("d", 1))
    ]
    given = [replace(plain[0], links=(far, hub)), *plain[1:]]
    placed = place(given, parse(text))
    assert placed[0].links == (
        hub,
        Link(peer="b", kind=LinkType.PCIE_SWITCH, bandwidth_bytes=5),
        Link(peer="c", kind=LinkType.NUMA),
        Link(peer="d", kind=LinkType.SYSTEM),
    )
    assert [device.numa_node for device in placed] == [0, 0, 0, 1]
    with pytest.raises(TopologyRefused, match="broken XML"):
        parse("<system>")
    with pytest.raises(TopologyRefused, match="entities"):
        parse('<!DOCTYPE a [<!ENTITY b "c">]><system/>')


# Put together, on text of our own

SWITCHED = """\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tNV18\tPIX\t0-55\t0
GPU1\tNV18\t X \tNV18\tSYS\t0-55\t0
GPU2\tNV18\tNV18\t X \tSYS\t56-111\t1
NIC0\tPIX\tSYS\tSYS\t X \t\t

Legend:
"""
PAIRS = """\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV4\tSYS\t0-15\t0
GPU1\tNV4\t X \tPHB\t0-15\t0
GPU2\tSYS\tPHB\t X \t16-31\t1
"""


def status_text(links: int) -> str:
    rows = "".join(f"\t Link {number}: 25 GB/s\n" for number in range(links))
    return "".join(f"GPU {index}: NVIDIA X (UUID: GPU-{index})\n{rows}" for index in range(3))


def seen(text: str, links: int) -> list[Device]:
    gpus = [GpuReading(index=n, uuid=f"GPU-{n}", name="NVIDIA X", pci_address=f"0000:0{n}:00.0") for n in range(3)]
    add_links(gpus, matrix(text), parse_nvlink_status(status_text(links)))
    return list(devices(NvmlReading(gpus=gpus), node_id=NODE))


def test_as_many_nvlinks_to_each_of_several_gpus_lead_to_a_switch() -> None:
    found = seen(SWITCHED, 18)
    assert found[0].links == (
        Link(peer="nvswitch-abc123de", kind=LinkType.NVSWITCH, lanes=18, bandwidth_bytes=900_000_000_000),
    )
    assert [device.numa_node for device in found] == [0, 0, 1]


def test_bridged_pairs_are_told_from_those_over_pcie() -> None:
    found = seen(PAIRS, 4)
    assert found[0].links == (
        Link(peer="GPU-1", kind=LinkType.NVLINK, lanes=4, bandwidth_bytes=200_000_000_000),
        Link(peer="GPU-2", kind=LinkType.SYSTEM),
    )
    assert found[2].links == (
        Link(peer="GPU-0", kind=LinkType.SYSTEM),
        Link(peer="GPU-1", kind=LinkType.PCIE_HOST),
    )


def test_links_that_are_down_and_what_links_can() -> None:
    (status,) = parse_nvlink_status("GPU 0: X (UUID: GPU-1)\n\t Link 0: <inactive>\n\t Link 1: 25.781 GB/s\n")
    assert [(link.active, link.speed_mbps) for link in status.links] == [(False, None), (True, 25781)]
    text = "GPU 0: X (UUID: GPU-1)\n\t Link 0, P2P is supported: true\n\t Link 0, SLI is supported: false\n"
    assert parse_nvlink_capabilities(text) == {"GPU-1": {0: {"P2P": True, "SLI": False}}}


def test_a_line_of_a_day_that_there_is_not_is_passed_over() -> None:
    line = "[Feb {} 2025 15:10:02] [ERROR] [tid 1] failed\n"
    assert [each.text for each in errors(line.format("31") + line.format("27"))] == ["failed"]
