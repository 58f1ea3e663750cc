"""Classes of memory, what may be done in them and how far away they are: one table.

The latencies are catalogue values, given to order the classes and to score by. None of them was measured on the
device that carries it; those of HBM2E, pinned memory and the L2 view are the figures of the design that the pool
follows, which are lower than what a pointer chase finds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from types import MappingProxyType
from typing import Final

from gpupool.discovery.base import MemoryRegion, MemoryType


class Access(IntFlag):
    """What work on a device may do in a region; the bits of a mask."""

    READ = 1
    WRITE = 2
    ATOMIC = 4
    COMPUTE = 8


_TYPE_BITS: Final = 3  # a packed word: type in bits 0 to 2, access from bit 3 on

MEMORY_TYPE_NUMBERS: Final[Mapping[MemoryType, int]] = MappingProxyType(
    {MemoryType.VRAM: 0, MemoryType.PINNED: 1, MemoryType.UMA: 2, MemoryType.SHARED: 3}
)
_TYPES: Final = {number: kind for kind, number in MEMORY_TYPE_NUMBERS.items()}

FULL_ACCESS: Final = frozenset({"read", "write", "atomic", "compute"})
READ_ONLY: Final = frozenset({"read"})
COPY_ONLY: Final = frozenset({"read", "write"})  # reached over PCIe: atomics are not promised there


def access_mask(access: Iterable[str]) -> Access:
    """The mask of names such as `read`. Raises ValueError for another name."""
    mask = Access(0)
    for name in access:
        try:
            mask |= Access[name.upper()]
        except KeyError:
            raise ValueError(f"{name!r} is not a kind of access: read, write, atomic and compute are.") from None
    return mask


def access_names(mask: int) -> frozenset[str]:
    """Names of a mask's bits. Raises ValueError for bits that mean nothing."""
    if mask & ~int(access_mask(FULL_ACCESS)):
        raise ValueError(f"{mask:#x} has bits that are no kind of access.")
    return frozenset((bit.name or "").lower() for bit in Access if mask & bit)


def pack(kind: MemoryType, access: Iterable[str]) -> int:
    """Type and access in one small number: three bits of type, then the mask."""
    return MEMORY_TYPE_NUMBERS[kind] | int(access_mask(access)) << _TYPE_BITS


def unpack(word: int) -> tuple[MemoryType, frozenset[str]]:
    """The other way. Raises ValueError for a number that `pack` does not make."""
    kind = _TYPES.get(word & ((1 << _TYPE_BITS) - 1))
    if kind is None or word < 0:
        raise ValueError(f"{word} names no type of memory.")
    return kind, access_names(word >> _TYPE_BITS)


@dataclass(frozen=True, slots=True)
class MemoryClass:
    """One row of the table."""

    title: str
    kind: MemoryType
    latency_ns: float
    access: frozenset[str] = FULL_ACCESS


MEMORY_CLASSES: Final[Mapping[str, MemoryClass]] = MappingProxyType(
    {
        "l2": MemoryClass("L2 cache, a read-only view", MemoryType.SHARED, 2.0, READ_ONLY),
        "ddr": MemoryClass("Host DRAM of the same socket", MemoryType.SHARED, 100.0),
        "hbm2": MemoryClass("HBM2 and HBM2E", MemoryType.VRAM, 150.0),
        "hbm3": MemoryClass("HBM3 and HBM3E", MemoryType.VRAM, 150.0),
        "ddr_remote": MemoryClass("Host DRAM of another socket", MemoryType.SHARED, 180.0),
        "lpddr_uma": MemoryClass("Memory that CPU and GPU have in common", MemoryType.UMA, 200.0),
        "gddr": MemoryClass("GDDR5, GDDR6 and GDDR7", MemoryType.VRAM, 250.0),
        "c2c": MemoryClass("Host DRAM over a coherent link (NVLink-C2C)", MemoryType.UMA, 500.0),
        "pinned_pcie": MemoryClass("Pinned host memory over PCIe", MemoryType.PINNED, 800.0, COPY_ONLY),
    }
)

_HBM3: Final = ("H100", "H200", "H800", "H20", "GH200", "B100", "B200", "B300", "GB200", "GB300", "MI300", "MI308",
                "MI325", "MI350", "MI355")  # fmt: skip
_HBM2: Final = ("A100", "A800", "A30", "V100", "P100", "MI210", "MI250", "MI100", "MI60", "MI50", "VEGA", "MAX 1",
                "GPU MAX")  # fmt: skip


def vram_class(name: str) -> str:
    """Which row a GPU's own memory is of, by the GPU's name: HBM for those that have it, GDDR for all others.

    The PCIe card of the H100 has HBM2E: its latency class is the same.
    """
    upper = name.upper().replace("-", " ")
    words = upper.replace("/", " ").split()
    if any(word.startswith(_HBM3) for word in words):
        return "hbm3"
    if any(part in upper for part in _HBM2 if " " in part) or any(word.startswith(_HBM2) for word in words):
        return "hbm2"
    return "gddr"


def region(class_name: str, size_bytes: int | None, *, base: int = 0) -> MemoryRegion:
    """A region of a class of the table."""
    row = MEMORY_CLASSES[class_name]
    return MemoryRegion(kind=row.kind, size_bytes=size_bytes, base=base, latency_ns=row.latency_ns, access=row.access)


def gpu_regions(name: str, vram_bytes: int | None, pinned_bytes: int | None = None) -> tuple[MemoryRegion, ...]:
    """Regions of a GPU with memory of its own: that, and pinned host memory where its size is known."""
    own = region(vram_class(name), vram_bytes)
    if pinned_bytes is None:
        return (own,)
    return own, region("pinned_pcie", pinned_bytes, base=vram_bytes or 0)
