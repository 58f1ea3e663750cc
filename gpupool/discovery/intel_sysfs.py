"""Intel GPUs out of the files of the drivers i915 and xe."""

from collections.abc import Iterable
from typing import Final

from gpupool.discovery.amd_sysfs import device_id, slot
from gpupool.discovery.drm_files import Files
from gpupool.discovery.gpu_catalogue import architecture_of, name_of
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import numa_node, number, whole, words

_DRIVERS: Final = ("i915", "xe")


def readings(cards: Iterable[Files]) -> list[Reading]:
    """One for each card of Intel's drivers. A GPU without memory of its own works in the host's."""
    return [_reading(index, files) for index, files in enumerate(cards) if _driver(files) in ("", *_DRIVERS)]


def _reading(index: int, files: Files) -> Reading:
    reading = Reading(vendor="intel", index=index)
    reading.pci_address = slot(files)
    reading.device_id = device_id(files)
    reading.name = name_of(reading.device_id)
    reading.architecture = architecture_of(reading.name, reading.device_id)
    reading.memory_bytes = _memory(files)
    available = whole(files.get("lmem_avail_bytes"))
    if reading.memory_bytes is not None and available is not None:
        reading.memory_used_bytes = max(0, reading.memory_bytes - available)
    reading.numa_node = numa_node(files.get("numa_node"))
    reading.path = tuple(part for part in files.get("path", "").split("/") if part)
    tiles = [name for name in files if name.startswith("tile") and name.endswith("/physical_vram_size_bytes")]
    reading.tiles = len(tiles) or None
    measured = {
        "power_watts": _scaled(files.get("hwmon/power1_input") or files.get("hwmon/power1_average"), 1e6),
        "power_limit_watts": _scaled(files.get("hwmon/power1_cap"), 1e6),
        "energy_joules": _scaled(files.get("hwmon/energy1_input"), 1e6),
        "sm_clock_mhz": number(files.get("gt_act_freq_mhz") or files.get("gt_cur_freq_mhz")),
    }
    reading.temperature_celsius = _scaled(files.get("hwmon/temp1_input") or files.get("hwmon/temp2_input"), 1000)
    reading.telemetry = {name: value for name, value in measured.items() if value is not None}
    if driver := words(_driver(files)):
        reading.facts["driver"] = driver
    return reading


def _driver(files: Files) -> str:
    if driver := files.get("driver"):
        return driver
    line = next((line for line in files.get("uevent", "").splitlines() if line.startswith("DRIVER=")), "")
    return line.removeprefix("DRIVER=")


def _memory(files: Files) -> int | None:
    """Of the i915, one figure; of the xe, one for each tile."""
    for name in ("lmem_total_bytes", "prelim_lmem_total_bytes"):
        if total := whole(files.get(name)):
            return total
    sizes = [whole(text) for name, text in files.items() if name.endswith("/physical_vram_size_bytes")]
    known = [size for size in sizes if size]
    return sum(known) if known and len(known) == len(sizes) else None


def _scaled(text: str | None, by: float) -> float | None:
    value = number(text)
    return None if value is None else value / by
