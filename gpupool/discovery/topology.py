"""Which devices of a node are near each other: matrices that tools print, and a graph of what the devices say."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

WEIGHTS: Final[Mapping[LinkType, int]] = MappingProxyType(
    {
        LinkType.NVLINK: 1,
        LinkType.NVSWITCH: 1,
        LinkType.XGMI: 1,
        LinkType.C2C: 1,
        LinkType.XELINK: 2,
        LinkType.PCIE_SWITCH: 4,
        LinkType.PCIE_HOST: 6,
        LinkType.NUMA: 8,
        LinkType.SYSTEM: 16,
    }
)
"""How far a link of a kind leads. A catalogue of orders, not of times."""

UNREACHABLE: Final = 64
"""Of devices that nothing is known to join: of one node, by way of the host's memory."""


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


def links_of(found: Matrix, ids: Mapping[str, str], *, through_switch: str = "") -> dict[str, tuple[Link, ...]]:
    """Links by stable id; `ids` names the matrix's rows. GPUs on an NVSwitch say NV too: give the switch's name."""
    links: dict[str, list[Link]] = {}
    for row, column, kind, lanes in found.links():
        if row not in ids or column not in ids:
            continue
        if kind is LinkType.NVLINK and through_switch:
            hub = Link(peer=through_switch, kind=LinkType.NVSWITCH, lanes=lanes)
            if hub not in links.setdefault(ids[row], []):
                links[ids[row]].append(hub)
            kind = LinkType.NVSWITCH
        links.setdefault(ids[row], []).append(Link(peer=ids[column], kind=kind, lanes=lanes))
    return {name: tuple(made) for name, made in links.items()}


@dataclass(frozen=True, slots=True)
class Domain:
    """Devices that a kind of link joins without leaving it."""

    kind: str  # nvswitch, nvlink, xgmi, xelink, pcie_switch, socket
    name: str
    members: frozenset[str]


class Topology:
    """The graph of one node's devices, hubs and sockets."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.stable_id: device for device in devices}
        self._edges: dict[str, dict[str, LinkType]] = {}
        for device in devices:
            for link in device.links:
                self._join(device.stable_id, link.peer, link.kind)
        self._join_parts(devices)

    def distance(self, one: str, other: str) -> int:
        """How far two devices are apart: 0 of itself, UNREACHABLE at most. By the best way of at most one hub."""
        if one == other:
            return 0
        ways = [self._weight(one, other)]
        hubs = set(self._edges.get(one, ())) & set(self._edges.get(other, ())) - set(self._devices)
        ways += [max(self._weight(one, hub), self._weight(other, hub)) for hub in hubs]
        best = min(ways)
        if best < UNREACHABLE:
            return best
        first, second = self._devices.get(one), self._devices.get(other)
        if first is None or second is None or first.numa_node is None or second.numa_node is None:
            return UNREACHABLE
        same = first.numa_node == second.numa_node
        return WEIGHTS[LinkType.NUMA if same else LinkType.SYSTEM]

    def kind(self, one: str, other: str) -> LinkType | None:
        """The nearest kind of link between two devices, straight or by a hub; None where none is known."""
        straight = self._edges.get(one, {}).get(other)
        hubs = set(self._edges.get(one, ())) & set(self._edges.get(other, ())) - set(self._devices)
        kinds = [self._edges[one][hub] for hub in hubs] + ([straight] if straight is not None else [])
        return min(kinds, key=WEIGHTS.__getitem__, default=None)

    def domains(self) -> tuple[Domain, ...]:
        """Groups of two and more, the nearest kinds first; sockets by NUMA node last."""
        found: list[Domain] = []
        for kind in (
            LinkType.NVSWITCH, LinkType.NVLINK, LinkType.XGMI, LinkType.XELINK, LinkType.C2C, LinkType.PCIE_SWITCH,
        ):  # fmt: skip
            for members in self._joined_by(kind):
                devices = frozenset(members & set(self._devices))
                hubs = sorted(members - set(self._devices))
                if len(devices) >= 2:
                    name = hubs[0] if hubs else f"{kind.value} {min(devices)}"
                    found.append(Domain(kind.value, name, devices))
        sockets: dict[int, set[str]] = {}
        for name, device in self._devices.items():
            if device.numa_node is not None:
                sockets.setdefault(device.numa_node, set()).add(name)
        found += [Domain("socket", f"socket {node}", frozenset(sockets[node])) for node in sorted(sockets)]
        return tuple(found)

    def _join(self, one: str, other: str, kind: LinkType) -> None:
        for start, end in ((one, other), (other, one)):
            known = self._edges.setdefault(start, {}).get(end)
            if known is None or WEIGHTS[kind] < WEIGHTS[known]:
                self._edges[start][end] = kind

    def _join_parts(self, devices: Sequence[Device]) -> None:
        """Parts of one GPU are on one chip, or on one card."""
        wholes: dict[str, list[str]] = {}
        for device in devices:
            if device.partition_of:
                wholes.setdefault(device.partition_of, []).append(device.stable_id)
        for parts in wholes.values():
            for at, part in enumerate(parts):
                for other in parts[at + 1 :]:
                    self._join(part, other, LinkType.C2C)

    def _weight(self, one: str, other: str) -> int:
        kind = self._edges.get(one, {}).get(other)
        return UNREACHABLE if kind is None else WEIGHTS[kind]

    def _joined_by(self, kind: LinkType) -> Iterator[set[str]]:
        left = {name for name, edges in self._edges.items() if kind in edges.values()}
        while left:
            group: set[str] = set()
            heads = [left.pop()]
            while heads:
                name = heads.pop()
                group.add(name)
                heads += [peer for peer, link in self._edges[name].items() if link is kind and peer not in group]
            left -= group
            yield group


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
