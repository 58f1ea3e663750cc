"""Which devices are near each other: matrices of tools, trees of buses, and the graph of both."""

import pytest

from gpupool.discovery.base import Device, Link, LinkType
from gpupool.discovery.topology import UNREACHABLE, Topology, links_of, matrix, pcie_kind, with_pcie
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
    ids = {name: f"id-{name}" for name in found.names}
    links = links_of(found, ids)
    assert links["id-GPU0"] == (
        Link(peer="id-GPU1", kind=LinkType.NVLINK, lanes=12),
        Link(peer="id-GPU2", kind=LinkType.PCIE_SWITCH),
        Link(peer="id-GPU3", kind=LinkType.SYSTEM),
    )
    switched = links_of(found, ids, through_switch="nvswitch-1")
    assert switched["id-GPU0"][0] == Link(peer="nvswitch-1", kind=LinkType.NVSWITCH, lanes=12)


@pytest.mark.parametrize("text", ["", "nvidia-smi: command not found", "GPU0 GPU1", "\tGPU0\nGPU0"])
def test_what_is_no_matrix_has_no_links(text: str) -> None:
    assert list(matrix(text).links()) == []


def gpu(name: str, *links: Link, numa: int | None = None, part_of: str = "", address: str = "") -> Device:
    return Device(
        stable_id=name, kind="gpu", vendor="nvidia", name=name, links=links, numa_node=numa, partition_of=part_of,
        pci_address=address,
    )  # fmt: skip


def to(peer: str, kind: LinkType) -> Link:
    return Link(peer=peer, kind=kind)


@pytest.mark.shows("R26", "R27")
def test_three_kinds_of_machines_as_graphs() -> None:
    """H100s on an NVSwitch, MI300X in a mesh of XGMI, A100 cards under PCIe switches."""
    h100 = Topology([gpu(f"h{number}", to("nvswitch-n1", LinkType.NVSWITCH), numa=number // 2) for number in range(4)])
    assert h100.distance("h0", "h3") == h100.distance("h0", "h1") == 1  # the switch makes all the same
    assert h100.kind("h0", "h3") is LinkType.NVSWITCH
    assert [(domain.kind, domain.name, sorted(domain.members)) for domain in h100.domains()] == [
        ("nvswitch", "nvswitch-n1", ["h0", "h1", "h2", "h3"]),
        ("socket", "socket 0", ["h0", "h1"]),
        ("socket", "socket 1", ["h2", "h3"]),
    ]

    names = [f"m{number}" for number in range(3)]
    mesh = Topology([gpu(name, *(to(peer, LinkType.XGMI) for peer in names if peer != name)) for name in names])
    assert mesh.distance("m0", "m2") == 1
    (hub,) = mesh.domains()
    assert (hub.kind, hub.members) == ("xgmi", frozenset(names))

    pcie = Topology(
        [
            gpu("a0", to("a1", LinkType.PCIE_SWITCH), to("a2", LinkType.SYSTEM), numa=0),
            gpu("a1", to("a0", LinkType.PCIE_SWITCH), to("a2", LinkType.SYSTEM), numa=0),
            gpu("a2", to("a0", LinkType.SYSTEM), to("a1", LinkType.SYSTEM), numa=1),
        ]
    )
    assert pcie.distance("a0", "a1") < pcie.distance("a0", "a2")
    first = pcie.domains()[0]
    assert (first.kind, first.members) == ("pcie_switch", frozenset({"a0", "a1"}))


def test_a_link_that_one_side_tells_of_joins_both() -> None:
    graph = Topology([gpu("a", to("b", LinkType.NVLINK)), gpu("b")])
    assert graph.distance("b", "a") == 1
    assert graph.distance("a", "a") == 0


def test_without_links_the_memory_node_tells_and_without_that_nothing() -> None:
    graph = Topology([gpu("a", numa=0), gpu("b", numa=0), gpu("c", numa=1), gpu("d")])
    assert graph.distance("a", "b") < graph.distance("a", "c") < graph.distance("a", "d") == UNREACHABLE
    assert graph.kind("a", "b") is None
    assert graph.distance("a", "elsewhere") == UNREACHABLE


def test_parts_of_one_chip_are_near() -> None:
    graph = Topology([gpu("w"), gpu("w.p0", part_of="w"), gpu("w.p1", part_of="w"), gpu("x.p0", part_of="x")])
    assert graph.distance("w.p0", "w.p1") == 1
    assert graph.distance("w.p0", "x.p0") == UNREACHABLE


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
