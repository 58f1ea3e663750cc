"""The unified view of what NVIDIA's driver said, whichever way it was asked."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from gpupool.discovery import nvidia_catalogue as catalogue
from gpupool.discovery.base import Device, DeviceProcess, Link, LinkType, MemoryRegion, MemoryType, Noticed
from gpupool.discovery.host import host_memory
from gpupool.discovery.memory_classes import COPY_ONLY, gpu_regions
from gpupool.discovery.nvidia_reading import GpuReading, NvLinkReading, NvmlReading, XidReading
from gpupool.discovery.reading import stale
from gpupool.discovery.small_files import text_of
from gpupool.discovery.tolerant import numa_node
from gpupool.discovery.uma import (
    UMA_GPU_SHARE,
    Unity,
    machine_model,
    tegra_load,
    tegra_temperature,
    uma_regions,
    unified_memory,
    unity,
)

_MIG_PROFILE: Final = re.compile(r" MIG ((?:\d+c\.)?\d+g\.\d+gb\S*)")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")  # ids are parts of addresses and keys
_LONGEST_MODEL: Final = 100
_MIB: Final = 1 << 20
_PCIE_LEVELS: Final[Mapping[str, LinkType]] = {
    "PIX": LinkType.PCIE_SWITCH,
    "PXB": LinkType.PCIE_SWITCH,
    "PHB": LinkType.PCIE_HOST,
    "NODE": LinkType.NUMA,
    "SYS": LinkType.SYSTEM,
}


def devices(
    reading: NvmlReading, *, node_id: str, root: Path = Path("/"), known: Mapping[int, Device] | None = None
) -> Iterator[Device]:
    """Every GPU and MIG instance. A whole that is divided is listed and cannot be allocated.

    `known` are devices seen before by index: a lost GPU does not even say its UUID, it is the one that had its
    index a moment ago.
    """
    names = {gpu.index: _stable_id(gpu, node_id) for gpu in reading.gpus if gpu.parent_uuid is None}
    addresses = {gpu.pci_address: names[gpu.index] for gpu in reading.gpus if gpu.parent_uuid is None}
    sharing = Counter((gpu.parent_uuid, gpu.gpu_instance) for gpu in reading.gpus)
    seen: set[str] = set()
    for gpu in reading.gpus:
        if gpu.uuid is None and gpu.trouble:
            if (before := (known or {}).get(gpu.index)) is not None:
                lost = stale(before, "failed")
                yield replace(lost, facts={**lost.facts, "trouble": gpu.trouble})
            continue
        if gpu.parent_uuid is not None and gpu.gpu_instance is not None:
            gpu = _portion(gpu, sharing[gpu.parent_uuid, gpu.gpu_instance])
        made = device(gpu, reading.driver_version, node_id, root=root, cuda_version=reading.cuda_version)
        if made.stable_id in seen:  # two that say they have one UUID are told apart by where they are
            made = replace(made, stable_id=made.traceable_id)
        seen.add(made.stable_id)
        if gpu.parent_uuid is None:
            links = (*_nvlinks(gpu, addresses, node_id), *_pcie(gpu, names))
            made = replace(made, links=links)
        yield made


def device(
    gpu: GpuReading,
    driver_version: str | None,
    node_id: str,
    *,
    root: Path = Path("/"),
    cuda_version: str | None = None,
) -> Device:
    """The unified view of one reading, links apart."""
    name = gpu.name or "NVIDIA GPU"
    profile = match.group(1) if (match := _MIG_PROFILE.search(f" {name}")) else ""
    total, used, how = _memory(gpu, name, root)
    facts: dict[str, str | None] = {
        **gpu.facts,
        "traceable_id": traceable_id(gpu, node_id),
        "driver": driver_version,
        "cuda": cuda_version,
        "pci_address": gpu.pci_address,
        "compute_capability": gpu.compute_capability,
        "mig_parent": gpu.parent_uuid,
        "mig_profile": profile or None,
        "gpu_instance": None if gpu.gpu_instance is None else str(gpu.gpu_instance),
        "trouble": gpu.trouble or None,
    }
    claimable = int(total * UMA_GPU_SHARE) if how is Unity.ONE_POOL and total is not None else total
    if total is not None and claimable != total:
        facts["memory_total_bytes"] = str(total)
    if claimable is not None and used is not None and used > claimable:
        facts["memory_used_reported_bytes"] = str(used)  # clamped, and said so
        used = claimable
    utilization, temperature = gpu.utilization, gpu.temperature_celsius
    if how is Unity.ONE_POOL:  # a Jetson's NVML tells neither
        utilization = tegra_load(root) if utilization is None else utilization
        temperature = tegra_temperature(root) if temperature is None else temperature
    telemetry = dict(gpu.telemetry)
    if gpu.memory_reserved_bytes is not None:
        telemetry["memory_reserved_bytes"] = float(gpu.memory_reserved_bytes)
    return Device(
        stable_id=_stable_id(gpu, node_id),
        kind="gpu",
        vendor="nvidia",
        name=name,
        index=gpu.index,
        memory_bytes=claimable,
        memory_used_bytes=used,
        utilization=utilization,
        temperature_celsius=temperature,
        health="failed" if gpu.trouble else "ok",
        facts={key: value for key, value in facts.items() if value is not None},
        traceable_id=traceable_id(gpu, node_id),
        # An engine is shown a part by its UUID: one whose UUID nobody says can be shown to none.
        allocatable=not gpu.mig_enabled and (gpu.parent_uuid is None or gpu.uuid is not None),
        partition_of=gpu.parent_uuid or "",
        pci_address=gpu.pci_address or "",
        numa_node=gpu.numa_node if gpu.numa_node is not None else _numa_node(root, gpu.pci_address),
        recovery_action=gpu.recovery_action,
        tags=catalogue.tags(name, None if how is Unity.ONE_POOL else gpu.memory_bytes, profile),
        regions=_regions(gpu, name, how, total, root),
        capability=catalogue.capability(
            name,
            compute_capability=gpu.compute_capability,
            told=gpu.architecture,
            compute_units=gpu.compute_units,
        ),
        processes=tuple(
            DeviceProcess(pid=process.pid, name=process.name, memory_bytes=process.memory_bytes)
            for process in gpu.processes or ()
        ),
        telemetry=telemetry,
    )


def noticed(event: XidReading) -> Noticed:
    """An event of the driver as one of a device."""
    what = f"XID {event.code}" if event.kind == "xid" else "Double bit ECC error"
    data = {} if event.gpu_instance is None else {"gpu_instance": str(event.gpu_instance)}
    return Noticed(
        source="nvml",
        kind=event.kind,
        at=event.at,
        stable_id=event.uuid or "",
        pci_address=event.pci_address or "",
        code=event.code,
        text=f"{what} was reported by the NVIDIA driver.",
        data=data,
    )


def traceable_id(gpu: GpuReading, node_id: str) -> str:
    """Model, PCI address and the node's identity: `A100-PCIE-40GB_0000:17:00.0_abc123de`.

    A name for people, and the stable id of a GPU that has no UUID. Without a PCI address the driver's index
    must do.
    """
    model = _UNFIT.sub("-", (gpu.name or "GPU").removeprefix("NVIDIA ").replace(" ", "_"))[:_LONGEST_MODEL]
    return f"{model}_{gpu.pci_address or f'index{gpu.index}'}_{node_id.replace('-', '')[:8]}"


def _stable_id(gpu: GpuReading, node_id: str) -> str:
    if gpu.uuid:
        return gpu.uuid
    trace = traceable_id(gpu, node_id)
    return trace if gpu.parent_uuid is None else f"{trace}.gi{gpu.gpu_instance}"


def _portion(gpu: GpuReading, sharing: int) -> GpuReading:
    """Compute instances of one GPU instance all tell of its whole memory: each may claim its portion of it."""
    if sharing < 2 or gpu.memory_bytes is None:
        return gpu
    reserved = None if gpu.memory_reserved_bytes is None else gpu.memory_reserved_bytes // sharing
    portion = gpu.memory_bytes // sharing
    return replace(gpu, memory_bytes=portion, memory_reserved_bytes=reserved, memory_used_bytes=None)


def _unrounded(told: int | None, known: int | None) -> int | None:
    """A tool that counts MiB is off by one for all of it and one for what is kept: claims may take the very last."""
    return known if None not in (told, known) and abs((told or 0) - (known or 0)) <= 2 * _MIB else told


def as_known(told: Sequence[Device], known: Sequence[Device]) -> tuple[Device, ...]:
    """Devices as another tool tells of them, by the ids that they are known by.

    Not every tool says UUIDs, or lists the parts of a divided GPU: a device must not be another one, nor a part be
    gone, because it was asked for in another way.
    """
    wholes = {device.pci_address: device for device in known if device.pci_address and not device.partition_of}
    sizes = {device.stable_id: device.memory_bytes for device in known}
    names: dict[str, str] = {}
    found: list[Device] = []
    for device in told:
        before = wholes.get(device.pci_address)
        if before is not None and not device.partition_of and device.stable_id == device.traceable_id:
            names[device.stable_id] = before.stable_id
            device = replace(device, stable_id=before.stable_id, name=before.name, tags=before.tags)
        found.append(replace(device, memory_bytes=_unrounded(device.memory_bytes, sizes.get(device.stable_id))))
    divided = {device.stable_id for device in found if not device.allocatable}
    divided -= {device.partition_of for device in found}
    parts = [stale(part, "unknown") for part in known if part.partition_of in divided]
    return tuple(
        replace(device, links=tuple(replace(link, peer=names.get(link.peer, link.peer)) for link in device.links))
        for device in (*found, *parts)
    )


def _memory(gpu: GpuReading, name: str, root: Path) -> tuple[int | None, int | None, Unity]:
    """(what there is to claim, in use, how far it is the host's too). What the driver keeps is not to be claimed."""
    how = unity(name, machine_model(root))
    if gpu.memory_unsupported and gpu.parent_uuid is None and not gpu.mig_enabled:
        how = Unity.ONE_POOL
    if how is Unity.ONE_POOL and not gpu.memory_bytes:
        pool = unified_memory(root)
        return pool.total_bytes, pool.used_bytes, how
    if how is Unity.ONE_POOL and gpu.memory_bytes:
        # A driver that has a figure for it counts the same chips: they are shared with the CPU all the same.
        most = unified_memory(root).total_bytes or gpu.memory_bytes
        return min(gpu.memory_bytes, most), gpu.memory_used_bytes, how
    if gpu.memory_bytes is None:
        return None, gpu.memory_used_bytes, how
    return gpu.memory_bytes - (gpu.memory_reserved_bytes or 0), gpu.memory_used_bytes, how


def _regions(gpu: GpuReading, name: str, how: Unity, total: int | None, root: Path) -> tuple[MemoryRegion, ...]:
    if gpu.parent_uuid is not None:
        return gpu_regions(name, total)
    host = total if how is Unity.ONE_POOL else host_memory(root).total
    regions = uma_regions(name, how, vram_bytes=total, host_bytes=host)
    if gpu.bar1_bytes:
        # What of its memory the host can map: no memory beside it, a window into it.
        regions += (MemoryRegion(kind=MemoryType.SHARED, size_bytes=gpu.bar1_bytes, access=COPY_ONLY),)
    return regions


def _nvlinks(gpu: GpuReading, addresses: Mapping[str | None, str], node_id: str) -> Iterator[Link]:
    """Links that are up, as many as lead to one peer together."""
    by_peer: dict[tuple[str, LinkType], list[NvLinkReading]] = {}
    for link in gpu.nvlinks:
        if not link.active:
            continue
        if link.remote_type == "switch":
            peer, kind = f"nvswitch-{node_id.replace('-', '')[:8]}", LinkType.NVSWITCH
        elif link.remote_pci in addresses:
            peer, kind = addresses[link.remote_pci], LinkType.NVLINK
        elif link.remote_type == "ibmnpu":
            peer, kind = "cpu", LinkType.NVLINK
        else:
            continue  # where it leads is not known: of no use to who places work
        by_peer.setdefault((peer, kind), []).append(link)
    for (peer, kind), links in by_peer.items():
        speeds = [catalogue.nvlink_bandwidth_bytes(link.version, link.speed_mbps) for link in links]
        known = [speed for speed in speeds if speed is not None]
        total = sum(known) if len(known) == len(speeds) else None
        yield Link(peer=peer, kind=kind, lanes=len(links), bandwidth_bytes=total)


def _pcie(gpu: GpuReading, names: Mapping[int, str]) -> Iterator[Link]:
    bandwidth = catalogue.pcie_bandwidth_bytes(
        gpu.telemetry.get("pcie_generation_max"), gpu.telemetry.get("pcie_width_max")
    )
    for peer in gpu.peers:
        if peer.index in names and peer.level in _PCIE_LEVELS:
            yield Link(peer=names[peer.index], kind=_PCIE_LEVELS[peer.level], bandwidth_bytes=bandwidth)


def _numa_node(root: Path, pci_address: str | None) -> int | None:
    if pci_address is None:
        return None
    return numa_node(text_of(root / "sys/bus/pci/devices" / pci_address / "numa_node"))
