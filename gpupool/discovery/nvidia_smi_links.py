"""How GPUs reach each other, from `nvidia-smi topo -m` and `nvidia-smi nvlink -s`. Pure and tolerant."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpupool.discovery.nvidia_reading import GpuReading, NvLinkReading, PeerReading
from gpupool.discovery.tolerant import plain, whole

_GPU: Final = re.compile(r"^GPU(\d+)$")
_WORD: Final = re.compile(r"^(?:X|SYS|NODE|PHB|PXB|PIX|NV\d+)$")
_NVLINKS: Final = re.compile(r"^NV(\d+)$")
_HEAD: Final = re.compile(r"^GPU (\d+): (.+?) \(UUID: (\S+)\)")
_LINK: Final = re.compile(r"^\s+Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<?(inactive)>?)", re.IGNORECASE)
_CAPABILITY: Final = re.compile(r"^\s+Link (\d+), (.+?): (true|false)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The matrix of `topo -m`: the words between GPUs, both ways, and where each GPU is."""

    words: Mapping[tuple[int, int], str]  # NV12, PIX, PXB, PHB, NODE, SYS
    cpu_affinity: Mapping[int, str]
    numa_node: Mapping[int, int]

    @property
    def gpus(self) -> frozenset[int]:
        """Numbers of the GPUs that have a row."""
        return frozenset(self.cpu_affinity)


@dataclass(slots=True)
class LinkStatus:
    """NVLinks of one GPU by `nvlink -s`; `note` is what it says in place of them."""

    index: int
    name: str
    uuid: str
    links: list[NvLinkReading] = field(default_factory=list)
    note: str = ""


def parse_matrix(text: str) -> Matrix:
    """`nvidia-smi topo -m`. Rows and columns of network cards are passed over."""
    found: dict[tuple[int, int], str] = {}
    affinity: dict[int, str] = {}
    numa: dict[int, int] = {}
    columns: list[str] = []
    for line in plain(text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if not columns:
            if any(_GPU.match(cell) for cell in cells[1:2]):
                columns = cells[1:]
            continue
        row = _GPU.match(cells[0])
        if row is None:
            continue
        gpu = int(row[1])
        values = dict(zip(columns, cells[1:], strict=False))
        affinity[gpu] = values.get("CPU Affinity", "")
        node = whole(values.get("NUMA Affinity"))
        if node is not None:
            numa[gpu] = node
        for column, word in values.items():
            other = _GPU.match(column)
            if other is not None and _WORD.match(word) and int(other[1]) != gpu:
                found[gpu, int(other[1])] = word
    return Matrix(found, affinity, numa)


def parse_nvlink_status(text: str) -> tuple[LinkStatus, ...]:
    """`nvidia-smi nvlink -s`: the speed of each link that is up. A blank line or a frame ends the output."""
    found: list[LinkStatus] = []
    for line in plain(text).splitlines():
        if (head := _HEAD.match(line)) is not None:
            found.append(LinkStatus(int(head[1]), head[2], head[3]))
        elif not found or line.startswith("#"):
            if found:
                break
        elif (match := _LINK.match(line)) is not None:
            speed = None if match[2] is None else int(float(match[2]) * 1000)
            link = NvLinkReading(link=int(match[1]), active=speed is not None, speed_mbps=speed)
            found[-1].links.append(link)
        elif line.strip() and not found[-1].links and not found[-1].note:
            found[-1].note = line.strip()
    return tuple(found)


def parse_nvlink_capabilities(text: str) -> dict[str, dict[int, dict[str, bool]]]:
    """`nvidia-smi nvlink -c`: what each link of each GPU can, by the GPU's UUID."""
    found: dict[str, dict[int, dict[str, bool]]] = {}
    uuid = ""
    for line in plain(text).splitlines():
        if (head := _HEAD.match(line)) is not None:
            uuid = head[3]
            found[uuid] = {}
        elif uuid and (match := _CAPABILITY.match(line)) is not None:
            found[uuid].setdefault(int(match[1]), {})[match[2].removesuffix(" is supported")] = match[3] == "true"
    return found


def add_links(gpus: list[GpuReading], matrix: Matrix, status: tuple[LinkStatus, ...]) -> None:
    """Write into readings how the GPUs reach each other.

    The matrix says how many NVLinks join two GPUs. Where as many lead from a GPU to each of several others as it
    has in all, they lead to a switch.
    """
    wholes = {gpu.index: gpu for gpu in gpus if gpu.parent_uuid is None}
    speeds = {each.uuid: each.links for each in status}
    for index, gpu in wholes.items():
        if gpu.numa_node is None:
            gpu.numa_node = matrix.numa_node.get(index)
        links = speeds.get(gpu.uuid or "", [])
        joined = {
            other: int(match[1])
            for (one, other), word in matrix.words.items()
            if one == index and other in wholes and (match := _NVLINKS.match(word)) is not None
        }
        up = [link for link in links if link.active]
        switched = bool(up) and sum(joined.values()) > len(up)
        gpu.nvlinks = _placed(up, joined, wholes, switched=switched)
        gpu.peers = [
            PeerReading(index=other, level=word)
            for (one, other), word in sorted(matrix.words.items())
            if one == index and other in wholes and not _NVLINKS.match(word)
        ]


def _placed(
    up: list[NvLinkReading], joined: Mapping[int, int], wholes: Mapping[int, GpuReading], *, switched: bool
) -> list[NvLinkReading]:
    if switched:
        return [NvLinkReading(link=n.link, active=True, speed_mbps=n.speed_mbps, remote_type="switch") for n in up]
    speed = next((link.speed_mbps for link in up), None)
    placed: list[NvLinkReading] = []
    for other, count in sorted(joined.items()):
        first = len(placed)
        placed += [
            NvLinkReading(
                link=first + n,
                active=True,
                speed_mbps=speed,
                remote_pci=wholes[other].pci_address,
                remote_type="gpu",
            )
            for n in range(count)
        ]
    return placed
