"""What is known of NVIDIA's GPUs by their names and architectures: precisions, speed, sizes, links.

Speeds are dense TFLOPS at half precision with FP32 accumulation where the data sheet tells them apart, without
sparsity. A GPU that is not listed has no speed here: unknown is not zero.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpupool.discovery.base import Capability

GIB: Final = 1 << 30

_VOLTA: Final = frozenset({"fp64", "fp32", "fp16"})
_TURING: Final = frozenset({"fp32", "fp16", "int8"})
_AMPERE: Final = frozenset({"fp32", "tf32", "fp16", "bf16", "int8"})
_ADA: Final = _AMPERE | {"fp8"}
_BLACKWELL: Final = _ADA | {"fp4"}

PRECISIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "kepler": frozenset({"fp64", "fp32"}),
        "maxwell": frozenset({"fp32"}),
        "pascal": frozenset({"fp32", "fp16"}),
        "volta": _VOLTA,
        "turing": _TURING,
        "ampere": _AMPERE,
        "ada": _ADA,
        "hopper": _ADA | {"fp64"},
        "blackwell": _BLACKWELL,
        "rubin": _BLACKWELL,
    }
)
"""What an architecture computes natively at a useful speed."""

_TENSOR_CORES: Final = frozenset({"volta", "turing", "ampere", "ada", "hopper", "blackwell", "rubin"})
_NO_TENSOR_CORES: Final = re.compile(r"\b(?:GTX 16\d\d|T4\d\d|T600|T1000|MX4\d\d)\b")  # Turing without them


@dataclass(frozen=True, slots=True)
class Product:
    """One line of products."""

    tag: str
    architecture: str
    peak_tflops: float | None = None
    sizes_gb: tuple[int, ...] = ()  # as it is sold; the driver's figure is always some less


_PRODUCTS: Final[tuple[tuple[str, Product], ...]] = (
    # The longer name first: the first that fits is it.
    (r"GB300", Product("GB300", "blackwell", 2500.0, (288,))),
    (r"GB200", Product("GB200", "blackwell", 2500.0, (186,))),
    (r"B300", Product("B300", "blackwell", 2250.0, (288,))),
    (r"B200", Product("B200", "blackwell", 2250.0, (180, 192))),
    (r"B100", Product("B100", "blackwell", 1750.0, (180,))),
    (r"GB10", Product("GB10", "blackwell")),
    (r"GH200", Product("GH200", "hopper", 989.0, (96, 144))),
    (r"H200 NVL", Product("H200-NVL", "hopper", 835.0, (141,))),
    (r"H200", Product("H200", "hopper", 989.0, (141,))),
    (r"H100 NVL", Product("H100-NVL", "hopper", 835.0, (94,))),
    (r"H100 PCIe", Product("H100", "hopper", 756.0, (80,))),
    (r"H100", Product("H100", "hopper", 989.0, (80, 64, 96))),
    (r"H800", Product("H800", "hopper", 989.0, (80,))),
    (r"H20", Product("H20", "hopper", 148.0, (96, 141))),
    (r"A100", Product("A100", "ampere", 312.0, (40, 80))),
    (r"A800", Product("A800", "ampere", 312.0, (40, 80))),
    (r"A30", Product("A30", "ampere", 165.0, (24,))),
    (r"A40", Product("A40", "ampere", 149.7, (48,))),
    (r"A10G", Product("A10G", "ampere", 70.0, (24,))),
    (r"A10", Product("A10", "ampere", 125.0, (24,))),
    (r"A16", Product("A16", "ampere", 17.9, (16,))),
    (r"A2", Product("A2", "ampere", 18.0, (16,))),
    (r"L40S", Product("L40S", "ada", 362.0, (48,))),
    (r"L40", Product("L40", "ada", 181.0, (48,))),
    (r"L20", Product("L20", "ada", 119.5, (48,))),
    (r"L4", Product("L4", "ada", 121.0, (24,))),
    (r"V100", Product("V100", "volta", 125.0, (16, 32))),
    (r"T4", Product("T4", "turing", 65.0, (16,))),
    (r"P100", Product("P100", "pascal", 21.2, (12, 16))),
    (r"P40", Product("P40", "pascal", None, (24,))),
    (r"K80", Product("K80", "kepler", None, (12,))),
    (r"RTX PRO 6000", Product("RTX-PRO-6000", "blackwell", 503.8, (96,))),
    (r"RTX 6000 Ada", Product("RTX-6000-Ada", "ada", 364.2, (48,))),
    (r"RTX A6000", Product("RTX-A6000", "ampere", 154.8, (48,))),
    (r"RTX 5090", Product("RTX-5090", "blackwell", 209.5, (32,))),
    (r"RTX 4090", Product("RTX-4090", "ada", 165.2, (24, 48))),
    (r"RTX 3090", Product("RTX-3090", "ampere", 71.0, (24,))),
)
_BY_NAME: Final = tuple((re.compile(rf"(?<![A-Za-z0-9]){name}(?![0-9A-Za-z])"), product) for name, product in _PRODUCTS)
_ANY_SIZE_GB: Final = (2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 256, 288)

_BY_CAPABILITY: Final[Mapping[str, str]] = MappingProxyType(
    {"3": "kepler", "5": "maxwell", "6": "pascal", "7.0": "volta", "7.2": "volta", "7.5": "turing", "8.0": "ampere",
     "8.6": "ampere", "8.7": "ampere", "8.9": "ada", "9": "hopper", "10": "blackwell", "11": "blackwell",
     "12": "blackwell"}
)  # fmt: skip

_NVLINK_GBPS: Final[Mapping[int, int]] = MappingProxyType({1: 40, 2: 50, 3: 50, 4: 50, 5: 50, 6: 50, 7: 100})
"""Of one link, both directions together, by NVML's number of its version."""

_PCIE_LANE_MBPS: Final[Mapping[int, float]] = MappingProxyType(
    {1: 250.0, 2: 500.0, 3: 984.6, 4: 1969.2, 5: 3938.5, 6: 7563.0}
)
"""Megabytes a second of one lane, one direction, by generation."""


def product(name: str) -> Product | None:
    """The line of products that a GPU's name belongs to."""
    return next((found for pattern, found in _BY_NAME if pattern.search(name)), None)


def architecture(name: str, compute_capability: str | None, told: str | None) -> str:
    """What the driver told, else by compute capability, else by name; empty where nothing says."""
    if told:
        word = re.split(r"[ _]", told.strip().lower())[0]  # Ada Lovelace
        if word in PRECISIONS:
            return word
    if compute_capability:
        major = compute_capability.partition(".")[0]
        known = _BY_CAPABILITY.get(compute_capability) or _BY_CAPABILITY.get(major)
        if known:
            return known
    found = product(name)
    return found.architecture if found is not None else ""


def capability(
    name: str, *, compute_capability: str | None, told: str | None = None, compute_units: int | None = None
) -> Capability:
    """What a GPU of this name can compute."""
    arch = architecture(name, compute_capability, told)
    found = product(name)
    tensor = None if not arch else arch in _TENSOR_CORES and not _NO_TENSOR_CORES.search(name)
    peak = found.peak_tflops if found is not None and " MIG " not in name else None
    return Capability(
        architecture=arch,
        compute_capability=compute_capability or "",
        precisions=PRECISIONS.get(arch, frozenset()),
        tensor_cores=tensor,
        compute_units=compute_units,
        peak_tflops=peak,
    )


def size_gb(name: str, memory_bytes: int | None) -> int | None:
    """The size a GPU is sold with, from what its driver counts: 81559 MiB is an 80 GB card."""
    if memory_bytes is None:
        return None
    gib = memory_bytes / GIB
    found = product(name)
    if found is not None and found.sizes_gb:
        nearest = min(found.sizes_gb, key=lambda size: abs(size - gib))
        if abs(nearest - gib) <= 0.12 * nearest:
            return nearest
    return next((size for size in _ANY_SIZE_GB if gib <= size * 1.01), None)


def tags(name: str, memory_bytes: int | None, mig_profile: str = "") -> tuple[str, ...]:
    """Words that a placement may ask for: `H100-80GB` and `H100`; a MIG instance has its profile instead."""
    found = product(name)
    model = found.tag if found is not None else _plain(name)
    if not model:
        return ()
    if mig_profile:
        return (f"{model}-MIG-{mig_profile}", f"MIG-{mig_profile}")
    size = size_gb(name, memory_bytes)
    return (model,) if size is None else (f"{model}-{size}GB", model)


def nvlink_bandwidth_bytes(version: int | None, speed_mbps: int | None) -> int | None:
    """Of one link, a second, both directions together: of its version, else twice what the driver measures."""
    if version is not None and version in _NVLINK_GBPS:
        return _NVLINK_GBPS[version] * 1_000_000_000
    return None if not speed_mbps else 2 * speed_mbps * 1_000_000


def pcie_bandwidth_bytes(generation: float | None, width: float | None) -> int | None:
    """Of a slot, a second, both directions together."""
    lane = _PCIE_LANE_MBPS.get(int(generation or 0))
    return None if lane is None or not width else int(2 * lane * width * 1_000_000)


def _plain(name: str) -> str:
    words = [word for word in name.split(" MIG ")[0].split() if word not in ("NVIDIA", "GeForce", "Quadro", "Tesla")]
    return "-".join(words)
