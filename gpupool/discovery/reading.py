"""What tools of any vendor say of one GPU, before it is a device; and the device that comes of it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from gpupool.discovery.base import Capability, Device, DeviceProcess, Link
from gpupool.discovery.gpu_catalogue import capability, name_of, tags
from gpupool.discovery.memory_classes import gpu_regions

_LONGEST_FACT: Final = 200
_VENDORS: Final = frozenset({"AMD", "Intel", "NVIDIA"})
_SIGNS: Final = re.compile(r"\((?:R|TM)\)|[\[\]]")
_IN_BRACKETS: Final = re.compile(r"\[([^\]x]+)\]")  # Arcturus GL-XL [Instinct MI100]
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")  # ids are parts of addresses and keys


class Reading(msgspec.Struct, kw_only=True):
    """One GPU as one source saw it. None and empty mean: it did not say."""

    vendor: str
    index: int | None = None  # the tool's own numbering
    pci_address: str = ""
    unique_id: str = ""  # GPU-8d1457e2c20f59d2: of the chip, the same whoever asks
    runtime_id: str = ""  # what the compute runtime calls it: of each part of a divided GPU another, if it can
    name: str = ""
    device_id: str = ""  # the PCI device id, 0x74a1
    architecture: str = ""  # gfx942, xe-hpc
    compute_units: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    host_visible_bytes: int | None = None  # GTT: host memory that the GPU may map
    utilization: float | None = None
    temperature_celsius: float | None = None
    numa_node: int | None = None
    compute_partition: str = ""  # SPX, DPX, TPX, QPX, CPX
    memory_partition: str = ""  # NPS1, NPS2, NPS4, NPS8
    partition_id: int | None = None
    tiles: int | None = None
    trouble: str = ""
    path: tuple[str, ...] = ()  # from the root of its PCI tree down
    facts: dict[str, str] = {}
    telemetry: dict[str, float] = {}
    processes: tuple[DeviceProcess, ...] = ()
    links: tuple[Link, ...] = ()  # peers by PCI address, until the devices are named


def filled(reading: Reading, other: Reading) -> Reading:
    """`reading`, with what only `other` said. Neither is changed."""
    merged = replace(reading)
    for field in Reading.__struct_fields__:
        mine, theirs = getattr(merged, field), getattr(other, field)
        if isinstance(mine, dict):
            setattr(merged, field, {**theirs, **mine})
        elif mine is None or mine in ("", ()):
            setattr(merged, field, theirs)
    return merged


def joined(*sources: Sequence[Reading]) -> list[Reading]:
    """One reading for each GPU, the earlier source believed first; matched by PCI address, else by index."""
    merged: list[Reading] = [replace(reading) for reading in sources[0]] if sources else []
    for source in sources[1:]:
        for other in source:
            at = _match(merged, other)
            if at is None:
                merged.append(replace(other))
            else:
                merged[at] = filled(merged[at], other)
    return merged


def _match(known: Sequence[Reading], other: Reading) -> int | None:
    for at, reading in enumerate(known):
        if reading.partition_id != other.partition_id and None not in (reading.partition_id, other.partition_id):
            continue
        if reading.pci_address and other.pci_address:
            if reading.pci_address == other.pci_address:
                return at
        elif reading.index is not None and reading.index == other.index:
            return at
    return None


def traceable_id(name: str, pci_address: str, index: int | None, node_id: str) -> str:
    """Model, PCI address and the node's identity: `Instinct_MI300X_0000:26:00.0_abc123de`. See host.host_id."""
    marketed = _IN_BRACKETS.search(name)
    words = _SIGNS.sub("", marketed[1] if marketed is not None else name).split()
    model = _UNFIT.sub("-", "_".join(word for word in words if word not in _VENDORS)).strip("-_") or "GPU"
    place = pci_address or (f"index{index}" if index is not None else "unplaced")
    return f"{model}_{place}_{node_id.replace('-', '')[:8]}"


def device_of(reading: Reading, node_id: str) -> Device:
    """The unified view of one whole GPU. Links still name their peers by PCI address: see `named_links`."""
    name = reading.name or _nameless(reading)
    model = name_of(reading.device_id) or name  # versions of a tool have several names for one model
    trace = traceable_id(model, reading.pci_address, reading.index, node_id)
    used, total = reading.memory_used_bytes, reading.memory_bytes
    facts = {**reading.facts, "traceable_id": trace, "pci_address": reading.pci_address, "trouble": reading.trouble}
    if used is not None and total is not None and used > total:
        facts["memory_used_reported_bytes"] = str(used)  # clamped, and said so
        used = total
    return Device(
        stable_id=reading.unique_id or trace,
        kind="gpu",
        vendor=reading.vendor,
        name=name,
        index=reading.index,
        memory_bytes=total,
        memory_used_bytes=used,
        utilization=reading.utilization,
        temperature_celsius=reading.temperature_celsius,
        health="failed" if reading.trouble else "ok",
        facts={key: value[:_LONGEST_FACT] for key, value in facts.items() if value},
        traceable_id=trace,
        pci_address=reading.pci_address,
        numa_node=reading.numa_node,
        tags=tags(name, total),
        regions=gpu_regions(name, total, reading.host_visible_bytes),
        capability=capability(name, reading.architecture, reading.compute_units),
        links=reading.links,
        processes=reading.processes,
        telemetry=reading.telemetry,
    )


def part_of(whole: Capability, count: int) -> Capability:
    """What one of `count` equal parts computes. How fast it reaches others, no data sheet tells."""
    return replace(
        whole,
        compute_units=None if whole.compute_units is None else whole.compute_units // count,
        peak_tflops=None if whole.peak_tflops is None else whole.peak_tflops / count,
        memory_bandwidth=None if whole.memory_bandwidth is None else whole.memory_bandwidth / count,
        link_bandwidth=None,
    )


def _nameless(reading: Reading) -> str:
    vendor = {"amd": "AMD", "intel": "Intel"}.get(reading.vendor, "")
    return " ".join(part for part in (vendor, "GPU", reading.device_id) if part)


def named_links(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices with links to each other's stable ids; links to what is not among them are left out.

    Two devices that say they have one id are told apart by where they are.
    """
    apart = _apart(devices)
    names = {device.pci_address: device.stable_id for device in apart if device.pci_address and not device.partition_of}
    known = {device.stable_id for device in apart}
    return tuple(replace(device, links=_named(device, names, known)) for device in apart)


def _named(device: Device, names: Mapping[str, str], known: set[str]) -> tuple[Link, ...]:
    links = (replace(link, peer=names.get(link.peer, link.peer)) for link in device.links)
    return tuple(link for link in links if link.peer in known and link.peer != device.stable_id)


def _apart(devices: Iterable[Device]) -> list[Device]:
    seen: set[str] = set()
    apart: list[Device] = []
    for device in devices:
        if device.stable_id in seen:
            device = replace(device, stable_id=device.traceable_id)
            if device.stable_id in seen:
                continue
        seen.add(device.stable_id)
        apart.append(device)
    return apart


def stale(device: Device, health: str) -> Device:
    """What stays true of a device whose source does not answer: stale is unknown."""
    return replace(
        device,
        memory_used_bytes=None,
        utilization=None,
        temperature_celsius=None,
        health=health,
        processes=(),
        telemetry={},
    )
