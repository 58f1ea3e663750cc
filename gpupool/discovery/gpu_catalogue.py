"""What is known of AMD's and Intel's GPUs by their names and architectures, from their data sheets.

Speeds are dense TFLOPS at half precision without sparsity. Two figures that are often confused are kept apart: how
fast a GPU reads its own memory, and how fast GPUs reach each other. What is not listed is None, not 0.
"""

import re
from dataclasses import dataclass
from typing import Final

from gpupool.discovery.base import Capability

_GIB: Final = 1 << 30

_GCN: Final = frozenset({"fp64", "fp32", "fp16"})
_CDNA1: Final = frozenset({"fp64", "fp32", "fp16", "bf16", "int8"})
_CDNA3: Final = _CDNA1 | {"fp8"}
_CDNA4: Final = _CDNA3 | {"fp6", "fp4"}
_RDNA2: Final = frozenset({"fp32", "fp16", "int8"})
_RDNA3: Final = _RDNA2 | {"bf16"}
_XE: Final = frozenset({"fp32", "fp16", "bf16", "int8"})

# (precisions, whether it has matrix cores), the longest beginning that fits.
_ARCHITECTURES: Final = {
    "gfx9": (_GCN, False),
    "gfx908": (_CDNA1, True),
    "gfx90a": (_CDNA1, True),
    "gfx94": (_CDNA3, True),
    "gfx95": (_CDNA4, True),
    "gfx10": (_RDNA2, False),
    "gfx11": (_RDNA3, True),
    "gfx12": (_RDNA3 | {"fp8"}, True),
    "xe-hpc": (_XE | {"fp64"}, True),
    "xe-hpg": (_XE, True),
    "xe-hp": (_XE, True),
    "xe2": (_XE, True),
    "xe-lp": (frozenset({"fp32", "fp16", "int8"}), False),
}


@dataclass(frozen=True, slots=True)
class Product:
    """One product. Sizes as they are sold, in GiB; bandwidths in bytes a second."""

    tag: str
    architecture: str
    compute_units: int | None = None
    peak_tflops: float | None = None
    memory_gib: int | None = None
    memory_bandwidth: float | None = None  # of its own memory
    link_bandwidth: float | None = None  # to all peers together, both directions
    parts: int | None = None  # compute dies that it can be divided into (CPX)


_PRODUCTS: Final[tuple[tuple[str, Product], ...]] = (
    # The longer name first. The MI300X reads its HBM at 5.3 TB/s (often told as 5.2, and as if it were its
    # interconnect); its seven XGMI links carry 128 GB/s each, both directions together.
    (r"MI355X?", Product("MI355X", "gfx950", 256, 2516.6, 288, 8.0e12, 1075.2e9, 8)),
    (r"MI350X?", Product("MI350X", "gfx950", 256, 2306.9, 288, 8.0e12, 1075.2e9, 8)),
    (r"MI325X?", Product("MI325X", "gfx942", 304, 1307.4, 256, 6.0e12, 896e9, 8)),
    (r"MI308X?", Product("MI308X", "gfx942", 80, None, 192, 5.3e12, 896e9, 4)),
    (r"MI300A", Product("MI300A", "gfx942", 228, 980.6, 128, 5.3e12, None, 6)),
    (r"MI300X?", Product("MI300X", "gfx942", 304, 1307.4, 192, 5.3e12, 896e9, 8)),
    (r"MI250X", Product("MI250X", "gfx90a", 110, 191.5, 64, 1.6384e12, None)),
    (r"MI250", Product("MI250", "gfx90a", 104, 181.0, 64, 1.6384e12, None)),
    (r"MI210", Product("MI210", "gfx90a", 104, 181.0, 64, 1.6384e12, 300e9)),
    (r"MI100", Product("MI100", "gfx908", 120, 184.6, 32, 1.2288e12, 276e9)),
    (r"MI60", Product("MI60", "gfx906", 64, 29.5, 32, 1.024e12, 200e9)),
    (r"MI50", Product("MI50", "gfx906", 60, 26.5, None, 1.024e12, 200e9)),
    (r"RX 7900 XTX", Product("RX-7900-XTX", "gfx1100", 96, 122.8, 24, 960e9)),
    (r"RX 7800 XT", Product("RX-7800-XT", "gfx1101", 60, 74.65, 16, 624e9)),
    (r"RX 6700(?: XT)?", Product("RX-6700-XT", "gfx1031", 40, 26.4, 12, 384e9)),
    (r"Max 1550", Product("Max-1550", "xe-hpc", 128, 838.9, 128, 3.2768e12, None, 2)),
    (r"Max 1100", Product("Max-1100", "xe-hpc", 56, 352.3, 48, 1.2288e12)),
    (r"Flex 170", Product("Flex-170", "xe-hpg", 32, None, 16, 576e9)),
    (r"Flex 140", Product("Flex-140", "xe-hpg", 8, None, 6, 186e9)),
    (r"Arc\S* (?:Pro )?B580", Product("Arc-B580", "xe2", 20, None, 12, 456e9)),
    (r"Arc\S* A770", Product("Arc-A770", "xe-hpg", 32, None, None, 560e9)),
)
_BY_NAME: Final = tuple((re.compile(rf"(?<![A-Za-z0-9]){name}(?![0-9A-Za-z])"), known) for name, known in _PRODUCTS)

_BY_DEVICE_ID: Final = {
    "0x74a0": "AMD Instinct MI300A",
    "0x74a1": "AMD Instinct MI300X",
    "0x74a2": "AMD Instinct MI308X",
    "0x74a5": "AMD Instinct MI325X",
    "0x75a0": "AMD Instinct MI350X",
    "0x75a3": "AMD Instinct MI355X",
    "0x740c": "AMD Instinct MI250X",
    "0x7408": "AMD Instinct MI250X",
    "0x740f": "AMD Instinct MI210",
    "0x738c": "AMD Instinct MI100",
    "0x66a1": "AMD Radeon Instinct MI50",
    "0x66af": "AMD Radeon VII",
    "0x6861": "AMD Radeon Pro WX 9100",
    "0x687f": "AMD Radeon RX Vega",
    "0x73df": "AMD Radeon RX 6700 XT",
    "0x747e": "AMD Radeon RX 7800 XT",
    "0x744c": "AMD Radeon RX 7900 XTX",
    "0x1586": "AMD Radeon 8060S",
    "0x0bd5": "Intel(R) Data Center GPU Max 1550",
    "0x0bda": "Intel(R) Data Center GPU Max 1100",
    "0x56c0": "Intel(R) Data Center GPU Flex 170",
    "0x56c1": "Intel(R) Data Center GPU Flex 140",
    "0x020a": "Intel(R) Graphics [0x020a]",
    "0xe20b": "Intel(R) Arc(TM) B580 Graphics",
    "0x56a0": "Intel(R) Arc(TM) A770 Graphics",
    "0x5917": "Intel(R) UHD Graphics 620",
}
_ARCHITECTURE_OF_DEVICE: Final = {
    "0x66af": "gfx906", "0x6861": "gfx900", "0x687f": "gfx900", "0x1586": "gfx1151", "0x020a": "xe-hp",
    "0x5917": "xe-lp",
}  # fmt: skip


def product(name: str) -> Product | None:
    """The product that a GPU's name tells of."""
    return next((known for pattern, known in _BY_NAME if pattern.search(name)), None)


def name_of(device_id: str) -> str:
    """A name by PCI device id, for tools that tell no other; empty where it is not known."""
    return _BY_DEVICE_ID.get(plain_id(device_id), "")


def architecture_of(name: str, device_id: str = "") -> str:
    """By name, else by PCI device id; empty where neither tells."""
    known = product(name)
    return known.architecture if known is not None else _ARCHITECTURE_OF_DEVICE.get(plain_id(device_id), "")


def plain_id(device_id: str) -> str:
    """`0x20a` and `020A` as `0x020a`."""
    digits = device_id.strip().lower().removeprefix("0x")
    return f"0x{digits.rjust(4, '0')}" if digits else ""


def capability(name: str, architecture: str, compute_units: int | None) -> Capability:
    """What a GPU of this name and architecture computes."""
    known = product(name)
    architecture = (architecture or (known.architecture if known is not None else "")).lower()
    fits = [prefix for prefix in _ARCHITECTURES if architecture.startswith(prefix)]
    precisions, matrix_cores = _ARCHITECTURES[max(fits, key=len)] if fits else (frozenset[str](), None)
    return Capability(
        architecture=architecture,
        precisions=precisions,
        tensor_cores=matrix_cores,
        compute_units=compute_units if compute_units is not None else known.compute_units if known else None,
        peak_tflops=None if known is None else known.peak_tflops,
        memory_bandwidth=None if known is None else known.memory_bandwidth,
        link_bandwidth=None if known is None else known.link_bandwidth,
    )


def tags(name: str, memory_bytes: int | None) -> tuple[str, ...]:
    """Words that a placement may ask for: `MI300X-192GB` and `MI300X`."""
    known = product(name)
    if known is None:
        return ()
    size = known.memory_gib
    if memory_bytes is not None and (size is None or abs(memory_bytes / _GIB - size) > 0.12 * size):
        size = round(memory_bytes / _GIB)
    return (known.tag,) if size is None else (f"{known.tag}-{size}GB", known.tag)
