"""What `lspci` prints: with and without numbers (`-nn`), one line a device or the long form (`-vv`)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gpupool.discovery.tolerant import pci_address, plain

_HEAD: Final = re.compile(
    r"^((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) ([^\[:]+?)(?: \[([0-9a-f]{4})\])?: (.*)$", re.IGNORECASE
)
_IDS: Final = re.compile(r"^(.*) \[([0-9a-f]{4}):([0-9a-f]{4})\]", re.IGNORECASE)
_REVISION: Final = re.compile(r" \(rev ([0-9a-f]+)\).*$")
_LINK: Final = re.compile(r"Lnk(Sta|Cap):\s+(?:Port #\d+, )?Speed ([\d.]+)GT/s[^,]*, Width x(\d+)")
_CODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "VGA compatible controller": "0300",
        "3D controller": "0302",
        "Display controller": "0380",
        "Processing accelerators": "1200",
    }
)
GPU_CLASSES: Final = ("0300", "0302", "0380", "1200")
"""VGA controllers, 3D controllers, display controllers (AMD's and Intel's data centre GPUs), accelerators."""

_MAKERS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "10de": ("nvidia", "NVIDIA Corporation"),
        "1002": ("amd", "Advanced Micro Devices, Inc. [AMD/ATI]"),
        "8086": ("intel", "Intel Corporation"),
    }
)
_BOARD_DISPLAYS: Final = (
    "Matrox", "ASPEED", "Red Hat, Inc.", "Virtio", "QXL", "VMware", "Cirrus", "Microsoft", "Silicon Motion", "Hi171",
    "InnoTek", "Technical Corp.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PciListed:
    """One function, as lspci tells of it; empty and None where it does not."""

    address: str
    class_name: str
    class_code: str  # 0302
    description: str  # NVIDIA Corporation GA102GL [A10]
    vendor_id: str = ""
    device_id: str = ""
    revision: str = ""
    numa_node: int | None = None
    driver: str = ""
    iommu_group: int | None = None
    slot: str = ""
    link_gts: float | None = None
    link_width: int | None = None
    link_gts_max: float | None = None
    link_width_max: int | None = None

    @property
    def vendor(self) -> str:
        """Of the three that have tools of their own, else unknown."""
        if self.vendor_id:
            return _MAKERS.get(self.vendor_id, ("unknown", ""))[0]
        return next((short for short, name in _MAKERS.values() if self.description.startswith(name)), "unknown")

    @property
    def name(self) -> str:
        """What it is, without its maker where that is one of the three."""
        for _, maker in _MAKERS.values():
            if self.description.startswith(maker):
                return self.description.removeprefix(maker).strip() or self.description
        return self.description

    @property
    def is_gpu(self) -> bool:
        """Whether it may compute: not the screen of a board or of a virtual machine."""
        return self.class_code in GPU_CLASSES and not self.is_board_display

    @property
    def is_board_display(self) -> bool:
        """Whether it only shows a picture."""
        return self.class_code == "0300" and any(maker in self.description for maker in _BOARD_DISPLAYS)


def listed(text: str) -> tuple[PciListed, ...]:
    """Every function in what was printed, in its order."""
    blocks: list[list[str]] = []
    for line in plain(text).splitlines():
        if _HEAD.match(line):
            blocks.append([line])
        elif blocks and line.startswith(("\t", " ")):
            blocks[-1].append(line.strip())
    return tuple(_function(block[0], block[1:]) for block in blocks)


def gpus(text: str) -> tuple[PciListed, ...]:
    """Those that may compute."""
    return tuple(function for function in listed(text) if function.is_gpu)


def _function(head: str, lines: Iterable[str]) -> PciListed:
    match = _HEAD.match(head)
    assert match is not None  # the caller cut the text by it
    address, class_name, code, rest = match.groups()
    revision = _REVISION.search(rest)
    described = _REVISION.sub("", rest).removesuffix(" (prog-if 00 [VGA controller])")
    ids = _IDS.match(described)
    values: dict[str, str] = {}
    links: dict[str, tuple[float, int]] = {}
    for line in lines:
        if (link := _LINK.search(line)) is not None:
            links.setdefault(link[1], (float(link[2]), int(link[3])))
        elif ":" in line:
            name, _, value = line.partition(":")
            values.setdefault(name.strip(), value.strip())
    now, most = links.get("Sta"), links.get("Cap")
    return PciListed(
        address=pci_address(address),
        class_name=class_name,
        class_code=(code or _CODES.get(class_name, "")).lower(),
        description=ids[1] if ids is not None else described,
        vendor_id=ids[2].lower() if ids is not None else "",
        device_id=f"0x{ids[3].lower()}" if ids is not None else "",
        revision=revision[1] if revision is not None else "",
        numa_node=_digits(values.get("NUMA node")),
        driver=values.get("Kernel driver in use", ""),
        iommu_group=_digits(values.get("IOMMU group")),
        slot=values.get("Physical Slot", ""),
        link_gts=None if now is None else now[0],
        link_width=None if now is None else now[1],
        link_gts_max=None if most is None else most[0],
        link_width_max=None if most is None else most[1],
    )


def _digits(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
