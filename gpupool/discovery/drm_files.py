"""Files under /sys/class/drm and the PCI devices behind it, read as they are. Runs in a child: a driver's file may
hang."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpupool.discovery.small_files import text_if_any

_FILES: Final = (
    "vendor", "device", "class", "numa_node", "unique_id", "serial_number", "product_name", "gpu_busy_percent",
    "mem_busy_percent", "mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_total", "mem_info_gtt_used",
    "mem_info_vram_vendor", "pp_dpm_sclk", "pp_dpm_mclk", "current_compute_partition", "current_memory_partition",
    "available_compute_partition", "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
    "pcie_replay_count", "vbios_version", "uevent", "lmem_total_bytes", "lmem_avail_bytes", "ras/umc_err_count",
    "tile0/physical_vram_size_bytes", "tile1/physical_vram_size_bytes", "prelim_lmem_total_bytes",
)  # fmt: skip
_HWMON_FILES: Final = (
    "name", "temp1_input", "temp2_input", "temp3_input", "temp1_label", "temp2_label", "temp3_label",
    "power1_average", "power1_input", "power1_cap", "energy1_input", "freq1_input", "freq2_input",
)  # fmt: skip
_CARD_FILES: Final = ("gt_cur_freq_mhz", "gt_act_freq_mhz", "lmem_total_bytes", "lmem_avail_bytes")
_LARGEST: Final = 4096

Files = Mapping[str, str]
"""Contents by path below the card's device folder. `address`, `driver` and `path` (from the root of its PCI tree down)
are of links, `card` is its name."""


def cards(root: Path, vendor: str) -> list[dict[str, str]]:
    """Every card of a PCI vendor (0x1002), by its number."""
    found = []
    for card in sorted((root / "sys/class/drm").glob("card*"), key=lambda path: (len(path.name), path.name)):
        device = card / "device"
        if not card.name.removeprefix("card").isdigit() or text_if_any(device / "vendor", _LARGEST) != vendor:
            continue
        found.append(dict(_card(card, device)))
    return found


def _card(card: Path, device: Path) -> Iterator[tuple[str, str]]:
    yield "card", card.name
    real = device.resolve()
    if real.name != "device":
        yield "address", real.name
        yield "path", "/".join(part for part in real.parts if part.startswith("pci") or part.count(":") == 2)
    driver = device / "driver"
    if driver.exists():
        yield "driver", driver.resolve().name
    for name in _FILES:
        if (text := text_if_any(device / name, _LARGEST)) is not None:
            yield name, text
    for name in _CARD_FILES:
        if (text := text_if_any(card / name, _LARGEST)) is not None:
            yield name, text
    for folder in sorted((device / "hwmon").glob("hwmon*"))[:1]:
        for name in _HWMON_FILES:
            if (text := text_if_any(folder / name, _LARGEST)) is not None:
                yield f"hwmon/{name}", text
