"""GPUs without memory of their own, or with a coherent way into the host's.

On a Jetson, a GB10 (DGX Spark), an APU or Apple silicon the GPU works in the host's memory, and its driver answers
"not supported" or 0 when asked for the GPU's: what it has is MemTotal, what is free is MemAvailable. A Grace Hopper
or Grace Blackwell has memory of its own and reaches the host's over a coherent link: its driver's figure is right.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from gpupool.discovery.base import MemoryRegion
from gpupool.discovery.memory import host_memory
from gpupool.discovery.memory_classes import gpu_regions, region
from gpupool.discovery.small_files import text_of
from gpupool.discovery.tolerant import number


class Unity(StrEnum):
    """How far a GPU's memory and its host's are one."""

    SEPARATE = "separate"
    COHERENT = "coherent"  # memory of its own, and the host's within reach
    ONE_POOL = "one_pool"  # the host's is all there is


# Whole words of a GPU's name, or of the machine's model in the device tree or DMI.
_ONE_POOL_NAMES: Final = re.compile(
    r"\b(?:Jetson|Tegra|Orin|Xavier|Thor|GB10|DGX Spark|N1X|Apple M\d+|MI300A|Radeon \d{3,4}[MS]|Strix|Phoenix|"
    r"nvgpu|(?:UHD|Iris|Iris Xe) Graphics)\b",
    re.IGNORECASE,
)
_COHERENT_NAMES: Final = re.compile(r"\b(?:GH200|GB200|GB300|Grace Hopper|Grace Blackwell)\b", re.IGNORECASE)

UMA_GPU_SHARE: Final = 0.75
"""Of the memory that may be claimed on a machine with one pool, the GPU's part; the rest stays the CPU's. A claim on
either is taken from the same chips, so the two devices together never offer more than there is."""


@dataclass(frozen=True, slots=True)
class UnifiedMemory:
    """The pool, in bytes; None where the machine does not say."""

    total_bytes: int | None  # MemTotal, or a control group's limit below it
    available_bytes: int | None  # MemAvailable

    @property
    def used_bytes(self) -> int | None:
        """What cannot be had now without swapping, whoever uses it."""
        if self.total_bytes is None or self.available_bytes is None:
            return None
        return max(0, self.total_bytes - self.available_bytes)


def unity(gpu_name: str, machine: str = "") -> Unity:
    """By the names of the GPU and of the machine. Only what is known to be one is called so."""
    gpu_name, machine = gpu_name.replace("_", " "), machine.replace("_", " ")  # NVIDIA_DGX_Spark
    if _COHERENT_NAMES.search(gpu_name):
        return Unity.COHERENT
    if _ONE_POOL_NAMES.search(gpu_name):
        return Unity.ONE_POOL
    integrated = not gpu_name or gpu_name.strip().lower() in ("nvidia gpu", "gpu")
    if integrated and _ONE_POOL_NAMES.search(machine):
        return Unity.ONE_POOL  # a driver that tells no name, on a board that has no other GPU
    return Unity.SEPARATE


def machine_model(root: Path = Path("/")) -> str:
    """What the machine is: of the device tree on ARM boards, else of DMI; empty where neither says."""
    for file in ("proc/device-tree/model", "sys/firmware/devicetree/base/model", "sys/class/dmi/id/product_name"):
        try:
            text = (root / file).read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text.strip("\0 \n"):
            return text.strip("\0 \n")
    return ""


def unified_memory(root: Path = Path("/")) -> UnifiedMemory:
    """The pool of this machine as this process may use it: control groups count."""
    memory = host_memory(root)
    return UnifiedMemory(memory.total, memory.available)


def uma_regions(name: str, how: Unity, *, vram_bytes: int | None, host_bytes: int | None) -> tuple[MemoryRegion, ...]:
    """Regions of a GPU: one of UMA, or its own and the host's behind the coherent link, or its own and pinned."""
    if how is Unity.ONE_POOL:
        return (region("lpddr_uma", host_bytes),)
    if how is Unity.COHERENT:
        own = gpu_regions(name, vram_bytes)
        return (*own, region("c2c", host_bytes, base=vram_bytes or 0))
    return gpu_regions(name, vram_bytes, host_bytes)


def tegra_load(root: Path = Path("/")) -> float | None:
    """How busy a Jetson's GPU is, 0 to 1, which its NVML does not tell; None on other machines."""
    for folder in ("sys/devices/platform/gpu.0", "sys/devices/gpu.0", "sys/devices/platform/bus@0/17000000.gpu"):
        thousandths = number(text_of(root / folder / "load"))
        if thousandths is not None and 0 <= thousandths <= 1000:
            return thousandths / 1000
    return None


def tegra_temperature(root: Path = Path("/")) -> float | None:
    """Of a Jetson's GPU, in degrees Celsius, from the zone that the kernel calls gpu-thermal."""
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        if text_of(zone / "type").lower() in ("gpu-thermal", "gpu-therm"):
            thousandths = number(text_of(zone / "temp"))
            return None if thousandths is None else thousandths / 1000
    return None
