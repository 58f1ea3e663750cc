"""What kinds of GPU a simulated fleet has: figures of data sheets, nothing measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpupool.discovery import nvidia_catalogue
from gpupool.discovery.base import Capability, LinkType

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of GPU in one kind of server."""

    name: str  # as its driver would say it
    vendor: str
    memory_bytes: int  # what may be claimed
    power_watts: float
    idle_watts: float
    units: int
    compute_capability: str = ""
    architecture: str = ""
    peak_tflops: float | None = None  # where the catalogue has none
    precisions: frozenset[str] = frozenset()
    link: LinkType | None = None  # between every two GPUs of a node; None: over PCIe
    lanes: int | None = None
    link_bytes: int | None = None  # a second, both directions together
    sm_mhz: int = 1980
    tags: tuple[str, ...] = ()

    def capability(self) -> Capability:
        """What it can compute."""
        if self.vendor == "nvidia":
            return nvidia_catalogue.capability(
                self.name, compute_capability=self.compute_capability, compute_units=self.units
            )
        return Capability(
            architecture=self.architecture,
            precisions=self.precisions,
            tensor_cores=True,  # matrix cores
            compute_units=self.units,
            peak_tflops=self.peak_tflops,
        )

    def placement_tags(self) -> tuple[str, ...]:
        """Words that a placement may ask for."""
        return self.tags or nvidia_catalogue.tags(self.name, self.memory_bytes)


_CDNA3: Final = frozenset({"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"})

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "h100": Kind("NVIDIA H100 80GB HBM3", "nvidia", 81_079 * MIB, 700, 70, 132, "9.0",
                     link=LinkType.NVSWITCH, lanes=18, link_bytes=900_000_000_000),
        "a100-40": Kind("NVIDIA A100-SXM4-40GB", "nvidia", 40_339 * MIB, 400, 50, 108, "8.0",
                        link=LinkType.NVSWITCH, lanes=12, link_bytes=600_000_000_000, sm_mhz=1410),
        "a100-80": Kind("NVIDIA A100-SXM4-80GB", "nvidia", 81_157 * MIB, 500, 60, 108, "8.0",
                        link=LinkType.NVSWITCH, lanes=12, link_bytes=600_000_000_000, sm_mhz=1410),
        "b200": Kind("NVIDIA B200", "nvidia", 182_642 * MIB, 1000, 140, 148, "10.0",
                     link=LinkType.NVSWITCH, lanes=18, link_bytes=1_800_000_000_000, sm_mhz=1965),
        "l4": Kind("NVIDIA L4", "nvidia", 22_478 * MIB, 72, 16, 58, "8.9", sm_mhz=2040),
        "mi300x": Kind("AMD Instinct MI300X", "amd", 196_300 * MIB, 750, 140, 304, architecture="gfx942",
                       peak_tflops=1307.4, precisions=_CDNA3,
                       link=LinkType.XGMI, lanes=1, link_bytes=128_000_000_000, sm_mhz=2100,
                       tags=("MI300X-192GB", "MI300X")),
    }
)  # fmt: skip
