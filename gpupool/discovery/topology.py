"""How the devices of a node are joined: matrices that tools print, and their ways over PCIe.

How near that is: policies.topology.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from gpupool.discovery.base import Device, Link, LinkType
from gpupool.discovery.tolerant import plain

_CELLS: Final[Mapping[str, LinkType]] = MappingProxyType(
    {
        "PIX": LinkType.PCIE_SWITCH,
        "PXB": LinkType.PCIE_SWITCH,
        "PHB": LinkType.PCIE_HOST,
        "NODE": LinkType.NUMA,
        "SYS": LinkType.SYSTEM,
        "SOC": LinkType.SYSTEM,  # of old drivers
        "MDF": LinkType.C2C,  # Intel: dies of one card
        "XGMI": LinkType.XGMI,
    }
)
_LANES: Final = re.compile(r"^(NV|XL)(\d+|\*)$")
_DEVICE: Final = re.compile(r"^GPU ?\d+(?:/\d+)?$")
_NUMA: Final = re.compile(r"^\d+(?:[-,]\d+)*$")


@dataclass(frozen=True, slots=True)
class Matrix:
    """What `nvidia-smi topo -m` or `xpu-smi topology -m` prints: cells by row and column, with the CPUs near each."""

    names: tuple[str, ...] = ()
    cells: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cpus: Mapping[str, str] = field(default_factory=dict)  # 0-23,48-71
    numa: Mapping[str, int] = field(default_factory=dict)

    def links(self) -> Iterator[tuple[str, str, LinkType, int | None]]:
        """(row, column, kind, lanes) of two different GPUs."""
        for (row, column), cell in self.cells.items():
            if row == column or row not in self.names or column not in self.names:
                continue
            if (match := _LANES.match(cell)) is not None:
                kind = LinkType.NVLINK if match[1] == "NV" else LinkType.XELINK
                yield row, column, kind, int(match[2]) if match[2].isdigit() else None
            elif (known := _CELLS.get(cell)) is not None:
                yield row, column, known, None


def matrix(text: str) -> Matrix:
    """The matrix in what a tool printed; one without rows where there is none. Cells that say nothing are left out."""
    lines = plain(text).splitlines()
    start = next((at for at, line in enumerate(lines) if _is_head(line)), None)
    if start is None:
        return Matrix()
    columns = _split(lines[start])[1:]
    names: list[str] = []
    cells: dict[tuple[str, str], str] = {}
    cpus: dict[str, str] = {}
    numa: dict[str, int] = {}
    for line in lines[start + 1 :]:
        row = _split(line)
        if not row or not row[0]:
            break
        if not _DEVICE.match(row[0]):
            continue  # a network card
        names.append(row[0])
        for column, cell in zip(columns, row[1:], strict=False):
            if column == "CPU Affinity":
                cpus[row[0]] = cell
            elif column == "NUMA Affinity" and _NUMA.match(cell):
                numa[row[0]] = int(re.split(r"[-,]", cell)[0])
            elif cell:
                cells[row[0], column] = cell
    return Matrix(tuple(names), cells, cpus, numa)


def _is_head(line: str) -> bool:
    fields = _split(line)
    return len(fields) >= 2 and not fields[0] and _DEVICE.match(fields[1]) is not None


def _split(line: str) -> list[str]:
    """Fields between tabs or bars. The first is empty in a head."""
    separator = "|" if "|" in line else "\t"
    fields = [cell.strip() for cell in line.split(separator)]
    if separator == "|" and fields and re.match(r"^\s+GPU", line):
        fields.insert(0, "")
    while fields and not fields[-1]:
        fields.pop()
    return fields


def pcie_kind(one: Iterable[str], other: Iterable[str], numa: tuple[int | None, int | None]) -> LinkType:
    """How two devices are joined by their ways from the root complex down, `pci0000:00`, `0000:00:01.0` and so on."""
    first, second = list(one), list(other)
    common = 0
    for mine, theirs in zip(first[:-1], second[:-1], strict=False):
        if mine != theirs:
            break
        common += 1
    if common >= 2:
        return LinkType.PCIE_SWITCH
    if common == 1:
        return LinkType.PCIE_HOST
    return LinkType.NUMA if numa[0] == numa[1] else LinkType.SYSTEM


def with_pcie(devices: Iterable[Device], paths: Mapping[str, tuple[str, ...]]) -> tuple[Device, ...]:
    """The devices with links over PCIe to each other by their ways in the tree (by PCI address).

    A link of another kind is nearer and stays; one over PCIe that a tool told less exactly is replaced.
    """
    made = tuple(devices)
    wholes = [device for device in made if device.pci_address in paths and not device.partition_of]
    ways = (LinkType.PCIE_SWITCH, LinkType.PCIE_HOST, LinkType.NUMA, LinkType.SYSTEM)
    added: dict[str, tuple[Link, ...]] = {}
    for device in wholes:
        links = {link.peer: link for link in device.links}
        for peer in wholes:
            known = links.get(peer.stable_id)
            if peer is device or (known is not None and known.kind not in ways):
                continue
            numa = (device.numa_node, peer.numa_node)
            kind = pcie_kind(paths[device.pci_address], paths[peer.pci_address], numa)
            links[peer.stable_id] = Link(peer=peer.stable_id, kind=kind)
        added[device.stable_id] = tuple(links.values())
    return tuple(replace(device, links=added.get(device.stable_id, device.links)) for device in made)
