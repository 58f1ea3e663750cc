"""NUMA nodes of the host: their processors and memory."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpupool.discovery.small_files import text_of


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One node of the host's memory."""

    number: int
    cpus: frozenset[int]
    memory_bytes: int | None = None


def numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """By number; empty where the kernel does not tell."""
    found = []
    for folder in (root / "sys/devices/system/node").glob("node*"):
        number = folder.name.removeprefix("node")
        if number.isdigit():
            found.append(
                NumaNode(
                    number=int(number),
                    cpus=cpu_list(text_of(folder / "cpulist")),
                    memory_bytes=_memory(text_of(folder / "meminfo")),
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
