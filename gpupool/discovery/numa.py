"""NUMA nodes of the host, and which CPUs are near a device."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.discovery.base import Device


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One node of the host's memory."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()  # to each node in order of their numbers; 10 is itself


def numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """By number; empty where the kernel does not tell."""
    found = []
    for folder in (root / "sys/devices/system/node").glob("node*"):
        number = folder.name.removeprefix("node")
        if number.isdigit():
            found.append(
                NumaNode(
                    number=int(number),
                    cpus=cpu_list(_read(folder / "cpulist")),
                    memory_bytes=_memory(_read(folder / "meminfo")),
                    distances=tuple(int(part) for part in _read(folder / "distance").split() if part.isdigit()),
                )
            )
    return tuple(sorted(found, key=lambda node: node.number))


def cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` as numbers; what cannot be read is left out."""
    cpus: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if first.isdigit() and (last.isdigit() if dash else True):
            cpus.update(range(int(first), min(int(last or first), int(first) + 65535) + 1))
    return frozenset(cpus)


def cpu_text(cpus: Iterable[int]) -> str:
    """Numbers as `0-3,8`, as taskset and cpusets take them."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpus_near(device: Device, nodes: Iterable[NumaNode], *, allowed: Iterable[int] | None = None) -> frozenset[int]:
    """CPUs of the device's NUMA node among those allowed; empty where none is nearer than others: then do not pin.

    A tool's own word counts over the node's: some machines have several GPUs' CPUs in one node.
    """
    nodes = tuple(nodes)
    near = cpu_list(device.facts.get("local_cpus", ""))
    if not near and device.numa_node is not None:
        near = next((node.cpus for node in nodes if node.number == device.numa_node), frozenset())
    may = frozenset(allowed) if allowed is not None else frozenset().union(*(node.cpus for node in nodes)) or near
    near &= may
    return frozenset() if near == may else near


def cpus_near_all(devices: Iterable[Device], nodes: Iterable[NumaNode], *, allowed: Iterable[int]) -> frozenset[int]:
    """CPUs near any of the devices that one engine has; empty where one of them has none: then do not pin."""
    nodes, allowed = tuple(nodes), frozenset(allowed)
    sets = [cpus_near(device, nodes, allowed=allowed) for device in devices]
    if not sets or not all(sets):
        return frozenset()
    near = frozenset().union(*sets)
    return frozenset() if near == allowed else near


def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def node_facts(nodes: Iterable[NumaNode]) -> Mapping[str, str]:
    """For people: how many nodes, and whose CPUs are whose."""
    nodes = tuple(nodes)
    if not nodes:
        return {}
    return {"numa_nodes": str(len(nodes)), **{f"numa{node.number}_cpus": cpu_text(node.cpus) for node in nodes[:8]}}


def _memory(meminfo: str) -> int | None:
    for line in meminfo.splitlines():
        fields = line.replace(":", " ").split()
        if len(fields) >= 4 and fields[2] == "MemTotal" and fields[3].isdigit():
            return int(fields[3]) * 1024
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
