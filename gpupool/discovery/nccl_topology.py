"""The topology file of NCCL and RCCL (NCCL_TOPO_FILE): what is near what, where a virtual machine hides it.

Clouds give the file with their images, because inside the machine every GPU seems to hang on a bridge of its own.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.etree import ElementTree

from msgspec.structs import replace

from gpupool.discovery.base import Device, Link, LinkType
from gpupool.discovery.tolerant import pci_address, whole

_LARGEST_BYTES: Final = 1 << 20
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_ENTITY: Final = re.compile(r"<!(?:ENTITY|DOCTYPE)", re.IGNORECASE)
_OVER_PCIE: Final = frozenset({LinkType.PCIE_SWITCH, LinkType.PCIE_HOST, LinkType.NUMA, LinkType.SYSTEM})


class TopologyRefused(Exception):
    """This is no topology file; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """A GPU in the file, by its PCI address."""

    address: str
    numa_node: int | None
    above: tuple[str, ...]  # PCI addresses of the bridges above it, the outermost first
    links: Mapping[tuple[str, LinkType], int] = field(default_factory=dict)  # lanes by peer's address and kind


def parse(text: str) -> dict[str, PlacedGpu]:
    """GPUs by PCI address. A file of graphs, which names no places, has none. Raises TopologyRefused."""
    if len(text) > _LARGEST_BYTES:
        raise TopologyRefused(f"The topology file is larger than {_LARGEST_BYTES} bytes.")
    if _ENTITY.search(text):
        raise TopologyRefused("The topology file defines entities or a document type.")
    try:
        root = ElementTree.fromstring(text)  # noqa: S314 (bounded, and entities were refused above)
    except ElementTree.ParseError as error:
        raise TopologyRefused(f"The topology file is broken XML: {error}.") from error
    found: dict[str, PlacedGpu] = {}
    for cpu in root.iter("cpu"):
        numa = whole(cpu.get("numaid"))
        _collect(cpu, numa, (), found)
    return found


def _collect(above: ElementTree.Element, numa: int | None, path: tuple[str, ...], found: dict[str, PlacedGpu]) -> None:
    for pci in above.findall("pci"):
        address = pci_address(pci.get("busid"))
        if address and (pci.get("class") or "").startswith(_GPU_CLASSES):
            gpu = pci.find("gpu")
            found[address] = PlacedGpu(address, numa, path, {} if gpu is None else _links(gpu, address))
        _collect(pci, numa, (*path, address), found)


def _links(gpu: ElementTree.Element, address: str) -> dict[tuple[str, LinkType], int]:
    links: dict[tuple[str, LinkType], int] = {}
    for tag, kind in (("nvlink", LinkType.NVLINK), ("xgmi", LinkType.XGMI)):
        for link in gpu.findall(tag):
            target, count = pci_address(link.get("target")), whole(link.get("count"))
            if not target or not count or target == address:  # some clouds give links of a GPU to itself
                continue
            switched = kind is LinkType.NVLINK and (link.get("tclass") or "").startswith("0x0680")
            key = (target, LinkType.NVSWITCH if switched else kind)
            links[key] = links.get(key, 0) + count
    return links


def between(one: PlacedGpu, other: PlacedGpu) -> LinkType:
    """How near two GPUs are over PCIe."""
    if set(one.above) & set(other.above):
        return LinkType.PCIE_SWITCH
    if one.numa_node is not None and one.numa_node == other.numa_node:
        return LinkType.NUMA
    return LinkType.SYSTEM


def place(devices: Sequence[Device], gpus: Mapping[str, PlacedGpu]) -> tuple[Device, ...]:
    """The devices with the file's word on what is near what; links of their own that a driver told stay."""
    ids = {device.pci_address: device.stable_id for device in devices if not device.partition_of}
    placed = []
    for device in devices:
        gpu = gpus.get(device.pci_address)
        if gpu is None or device.partition_of:
            placed.append(device)
            continue
        kept = tuple(link for link in device.links if link.kind not in _OVER_PCIE)
        if not kept:
            kept = tuple(
                Link(peer=ids[peer], kind=kind, lanes=lanes) for (peer, kind), lanes in gpu.links.items() if peer in ids
            )
        bandwidth = {link.peer: link.bandwidth_bytes for link in device.links if link.kind in _OVER_PCIE}
        others = [gpus[address] for address in ids if address in gpus and address != gpu.address]
        far = tuple(
            Link(peer=ids[each.address], kind=between(gpu, each), bandwidth_bytes=bandwidth.get(ids[each.address]))
            for each in others
        )
        numa = gpu.numa_node if gpu.numa_node is not None and gpu.numa_node >= 0 else device.numa_node
        placed.append(replace(device, links=(*kept, *far), numa_node=numa))
    return tuple(placed)
