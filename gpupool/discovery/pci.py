"""GPUs and accelerators on the PCI bus, from sysfs: what a driver is missing for, and where they sit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpupool.discovery.small_files import text_of
from gpupool.discovery.tolerant import numa_node, number

# VGA controllers, 3D controllers, display controllers (AMD's and Intel's data centre GPUs), processing accelerators.
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_MAKERS: Final = {
    "0x19e5": "Huawei", "0x1d94": "Hygon", "0x9999": "MetaX", "0x1ed5": "Moore Threads", "0x1ded": "T-Head",
    "0x1da3": "Habana Labs", "0x1e52": "Tenstorrent", "0x1e36": "Enflame", "0xcabc": "Cambricon", "0x1ae0": "Google",
    "0x1d0f": "Amazon", "0x17cb": "Qualcomm",
}  # fmt: skip
# Screens of boards and of virtual machines: they show a picture and compute nothing.
_BOARD_DISPLAYS: Final = frozenset(
    {"0x102b", "0x1a03", "0x1af4", "0x1b36", "0x1234", "0x15ad", "0x1013", "0x1414", "0x126f", "0x80ee"}
)


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One function on the bus; `driver` is empty where none is bound."""

    address: str  # 0000:17:00.0
    vendor: str  # nvidia, amd, intel
    driver: str


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function that may compute, with where it sits. None and empty where sysfs does not say."""

    address: str
    vendor: str  # nvidia, amd, intel, unknown
    maker: str  # a name for people
    vendor_id: str  # 0x10de
    device_id: str
    class_code: str  # 0302
    driver: str = ""
    numa_node: int | None = None
    iommu_group: str = ""
    link_gts: float | None = None
    link_width: int | None = None
    link_gts_max: float | None = None
    link_width_max: int | None = None
    path: tuple[str, ...] = ()  # from the root of its tree down: pci0000:00, 0000:00:01.0, 0000:17:00.0


def pci_gpus(root: Path = Path("/")) -> tuple[PciGpu, ...]:
    """GPUs of the three vendors that make them for servers, by address. Empty where there is no sysfs."""
    functions = pci_functions(root)
    return tuple(
        PciGpu(function.address, function.vendor, function.driver)
        for function in functions
        if function.vendor != "unknown"
    )


def pci_functions(root: Path = Path("/")) -> tuple[PciFunction, ...]:
    """Every function that may compute, whoever made it, by address. Empty where there is no sysfs."""
    return tuple(_functions(root))


def _functions(root: Path) -> Iterator[PciFunction]:
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        pci_class, vendor_id = text_of(folder / "class"), text_of(folder / "vendor")
        if not pci_class.startswith(_GPU_CLASSES):
            continue
        if pci_class.startswith("0x0300") and vendor_id in _BOARD_DISPLAYS:
            continue
        driver, group = folder / "driver", folder / "iommu_group"
        yield PciFunction(
            address=folder.name,
            vendor=_VENDORS.get(vendor_id, "unknown"),
            maker=_MAKERS.get(vendor_id, ""),
            vendor_id=vendor_id,
            device_id=text_of(folder / "device"),
            class_code=pci_class.removeprefix("0x")[:4],
            driver=driver.resolve().name if driver.exists() else "",
            numa_node=numa_node(text_of(folder / "numa_node")),
            iommu_group=group.resolve().name if group.exists() else "",
            link_gts=number(text_of(folder / "current_link_speed")),
            link_width=_width(folder / "current_link_width"),
            link_gts_max=number(text_of(folder / "max_link_speed")),
            link_width_max=_width(folder / "max_link_width"),
            path=pci_path(folder),
        )


def pci_path(folder: Path) -> tuple[str, ...]:
    """The way from the root complex down to a device, by its real place in sysfs."""
    parts = folder.resolve().parts
    start = next((at for at, part in enumerate(parts) if part.startswith("pci") and ":" in part), None)
    return () if start is None else parts[start:]


def _width(path: Path) -> int | None:
    lanes = number(text_of(path))
    return int(lanes) if lanes else None  # 0: no link
