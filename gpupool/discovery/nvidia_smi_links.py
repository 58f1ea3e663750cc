"""How GPUs reach each other, from `nvidia-smi topo -m` and `nvidia-smi nvlink -s`. Pure and tolerant."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpupool.discovery.nvidia_reading import GpuReading, NvLinkReading, PeerReading
from gpupool.discovery.tolerant import plain
from gpupool.discovery.topology import Matrix

_NVLINKS: Final = re.compile(r"^NV(\d+)$")
_HEAD: Final = re.compile(r"^GPU (\d+): (.+?) \(UUID: (\S+)\)")
_LINK: Final = re.compile(r"^\s+Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<?(inactive)>?)", re.IGNORECASE)
_CAPABILITY: Final = re.compile(r"^\s+Link (\d+), (.+?): (true|false)", re.IGNORECASE)


@dataclass(slots=True)
class LinkStatus:
    """NVLinks of one GPU by `nvlink -s`; `note` is what it says in place of them."""

    index: int
    name: str
    uuid: str
    links: list[NvLinkReading] = field(default_factory=list)
    note: str = ""


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


def add_links(gpus: list[GpuReading], topology: Matrix, status: tuple[LinkStatus, ...]) -> None:
    """Write into readings how the GPUs reach each other.

    The matrix says how many NVLinks join two GPUs. Where as many lead from a GPU to each of several others as it
    has in all, they lead to a switch.
    """
    wholes = {gpu.index: gpu for gpu in gpus if gpu.parent_uuid is None}
    speeds = {each.uuid: each.links for each in status}
    for index, gpu in wholes.items():
        if gpu.numa_node is None:
            gpu.numa_node = topology.numa.get(f"GPU{index}")
        words = {other: topology.cells.get((f"GPU{index}", f"GPU{other}"), "") for other in wholes if other != index}
        joined = {other: int(match[1]) for other, word in words.items() if (match := _NVLINKS.match(word)) is not None}
        up = [link for link in speeds.get(gpu.uuid or "", []) if link.active]
        switched = bool(up) and sum(joined.values()) > len(up)
        gpu.nvlinks = _placed(up, joined, wholes, switched=switched)
        gpu.peers = [
            PeerReading(index=other, level=word)
            for other, word in sorted(words.items())
            if word in ("PIX", "PXB", "PHB", "NODE", "SYS")
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
