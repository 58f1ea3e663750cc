"""Display controllers on the PCI bus, from sysfs: what a driver is missing for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x1200")  # VGA controller, 3D controller, processing accelerator
_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One function on the bus; `driver` is empty where none is bound."""

    address: str  # 0000:17:00.0
    vendor: str  # nvidia, amd, intel
    driver: str


def pci_gpus(root: Path = Path("/")) -> tuple[PciGpu, ...]:
    """GPUs of the three vendors that make them for servers, by address. Empty where there is no sysfs."""
    found: list[PciGpu] = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        try:
            pci_class = (folder / "class").read_text().strip()
            vendor = _VENDORS.get((folder / "vendor").read_text().strip())
        except OSError:
            continue
        if vendor is None or not pci_class.startswith(_GPU_CLASSES):
            continue
        driver = folder / "driver"
        found.append(PciGpu(folder.name, vendor, driver.resolve().name if driver.exists() else ""))
    return tuple(found)
