"""How devices are joined: matrices of tools, and trees of buses."""

import pytest

from gpupool.discovery.base import Device, Link, LinkType
from gpupool.discovery.topology import matrix, pcie_kind, with_pcie
from tests.gpupool.discovery.samples import assert_covered, read

CPUS = {  # read in the files: the only GPU's CPUs
    "nvge__linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05__capabilities__topo-m.txt": "0-23",
    "nvge__linux-x86_64__nvidia-geforce-rtx-2080-super__610.57.04__capabilities__topo-m.txt": "0-23",
    "nvge__linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05__capabilities__topo-m.txt": "0-15",
    "nvge__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__capabilities__topo-m.txt": "0-19",
    "nvge__linux-x86_64__nvidia-h100-mig__590.48.01__capabilities__topo-m.txt": "0-19",
    "nvge__linux-x86_64__nvidia-h200__590.48.01__capabilities__topo-m.txt": "0-23",
    "nvge__linux-x86_64__nvidia-l40s__595.80__capabilities__topo-m.txt": "0-7",
}

DGX = """\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tPIX\tSYS\tPXB\t0-23,48-71\t0\t\tN/A
GPU1\tNV12\t X \tNODE\tSYS\tSYS\t0-23,48-71\t0\t\tN/A
GPU2\tPIX\tNODE\t X \tPHB\tSYS\t24-47,72-95\t1\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tSYS\t24-47,72-95\t1-2\t\tN/A
NIC0\tPXB\tSYS\tSYS\tSYS\t X \t\t\t\t

Legend:

  NV#  = Connection traversing a bonded set of # NVLinks
"""


@pytest.mark.parametrize("file", CPUS)
def test_matrices_of_one_gpu(file: str) -> None:
    assert_covered("nvidia-smi-topo", set(CPUS))
    found = matrix(read("nvidia-smi-topo", file))
    assert (found.names, found.cpus, found.numa) == (("GPU0",), {"GPU0": CPUS[file]}, {"GPU0": 0})
    assert found.cells[("GPU0", "GPU0")] == "X"
    assert list(found.links()) == []


def test_a_matrix_of_four_gpus_and_a_network_card() -> None:
    found = matrix(DGX)
    assert found.names == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert found.numa == {"GPU0": 0, "GPU1": 0, "GPU2": 1, "GPU3": 1}
    assert {(row, column): (kind, lanes) for row, column, kind, lanes in found.links() if row == "GPU0"} == {
        ("GPU0", "GPU1"): (LinkType.NVLINK, 12),
        ("GPU0", "GPU2"): (LinkType.PCIE_SWITCH, None),
        ("GPU0", "GPU3"): (LinkType.SYSTEM, None),
    }


@pytest.mark.parametrize("text", ["", "nvidia-smi: command not found", "GPU0 GPU1", "\tGPU0\nGPU0"])
def test_what_is_no_matrix_has_no_links(text: str) -> None:
    assert list(matrix(text).links()) == []


def gpu(name: str, *links: Link, address: str) -> Device:
    return Device(stable_id=name, kind="gpu", vendor="nvidia", name=name, links=links, pci_address=address)


def to(peer: str, kind: LinkType) -> Link:
    return Link(peer=peer, kind=kind)


@pytest.mark.parametrize(
    ("one", "other", "numa", "kind"),
    [
        ("r/p/u/d0/a", "r/p/u/d1/b", (0, 0), LinkType.PCIE_SWITCH),
        ("r/p0/a", "r/p1/b", (0, 0), LinkType.PCIE_HOST),
        ("r0/p/a", "r1/p/b", (0, 0), LinkType.NUMA),
        ("r0/p/a", "r1/p/b", (0, 1), LinkType.SYSTEM),
        ("r0/p/a", "r1/p/b", (None, None), LinkType.NUMA),  # a machine of one memory node does not say -1 or 0
    ],
)
def test_ways_from_the_root_of_the_bus(
    one: str, other: str, numa: tuple[int | None, int | None], kind: LinkType
) -> None:
    assert pcie_kind(one.split("/"), other.split("/"), numa) is kind


def test_the_bus_does_not_hide_a_nearer_link() -> None:
    devices = [
        gpu("a", to("b", LinkType.XGMI), to("c", LinkType.PCIE_HOST), address="0:a"),
        gpu("b", address="0:b"),
        gpu("c", address="0:c"),
    ]
    paths = {"0:a": ("r", "p", "a"), "0:b": ("r", "q", "b"), "0:c": ("s", "p", "c")}
    first, second, _ = with_pcie(devices, paths)
    assert {link.peer: link.kind for link in first.links} == {"b": LinkType.XGMI, "c": LinkType.NUMA}
    assert {link.peer: link.kind for link in second.links} == {"a": LinkType.PCIE_HOST, "c": LinkType.NUMA}
