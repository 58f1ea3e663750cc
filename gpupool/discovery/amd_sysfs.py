"""AMD GPUs out of the files of the amdgpu driver: what there is without any tool, and cheap enough for each second."""

import re
from collections.abc import Iterable
from typing import Final

from gpupool.discovery.amd_smi import unique_id
from gpupool.discovery.drm_files import Files
from gpupool.discovery.gpu_catalogue import architecture_of, name_of, plain_id
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import numa_node, number, pci_address, share, whole, words

_ACTIVE_CLOCK: Final = re.compile(r"^\S+:\s*(\d+)\s*mhz\s*\*", re.IGNORECASE | re.MULTILINE)
_SLOT: Final = re.compile(r"^PCI_SLOT_NAME=(\S+)$", re.MULTILINE)
_DEVICE_ID: Final = re.compile(r"^PCI_ID=[0-9A-Fa-f]{4}:([0-9A-Fa-f]{4})$", re.MULTILINE)
_RAS: Final = re.compile(r"^(ue|ce): (\d+)$", re.MULTILINE)


def readings(cards: Iterable[Files]) -> list[Reading]:
    """One for each card of the driver amdgpu."""
    return [_reading(index, files) for index, files in enumerate(cards)]


def _reading(index: int, files: Files) -> Reading:
    reading = Reading(vendor="amd", index=index)
    reading.pci_address = slot(files)
    reading.unique_id = unique_id(files.get("unique_id"))
    reading.device_id = device_id(files)
    product_name = words(files.get("product_name"))
    reading.name = name_of(reading.device_id) or product_name
    reading.architecture = architecture_of(reading.name, reading.device_id)
    reading.memory_bytes = whole(files.get("mem_info_vram_total"))
    reading.memory_used_bytes = whole(files.get("mem_info_vram_used"))
    reading.host_visible_bytes = whole(files.get("mem_info_gtt_total"))
    reading.utilization = share(files.get("gpu_busy_percent"))
    reading.numa_node = numa_node(files.get("numa_node"))
    reading.path = tuple(part for part in files.get("path", "").split("/") if part)
    reading.compute_partition = words(files.get("current_compute_partition")).upper()
    reading.memory_partition = words(files.get("current_memory_partition")).upper()
    _hwmon(reading, files)
    measured = {
        "gtt_used_bytes": number(files.get("mem_info_gtt_used")),
        "memory_utilization": share(files.get("mem_busy_percent")),
        "sm_clock_mhz": _clock(files.get("pp_dpm_sclk")),
        "memory_clock_mhz": _clock(files.get("pp_dpm_mclk")),
        "pcie_replays": number(files.get("pcie_replay_count")),
        **_ras(files.get("ras/umc_err_count", "")),
    }
    reading.telemetry.update({key: value for key, value in measured.items() if value is not None})
    facts = {
        "driver": files.get("driver"),
        "vbios_version": files.get("vbios_version"),
        "gpu_memory_vendor": files.get("mem_info_vram_vendor"),
    }
    reading.facts = {key: text for key, value in facts.items() if (text := words(value))}
    return reading


def slot(files: Files) -> str:
    """PCI address of a card."""
    match = _SLOT.search(files.get("uevent", ""))
    return pci_address(match[1] if match is not None else files.get("address"))


def device_id(files: Files) -> str:
    """PCI device id of a card."""
    match = _DEVICE_ID.search(files.get("uevent", ""))
    return plain_id(files.get("device") or (match[1] if match is not None else ""))


def _hwmon(reading: Reading, files: Files) -> None:
    """Of edge, junction and memory, junction is the one that limits."""
    by_label: dict[str, float] = {}
    for at in (1, 2, 3):
        thousandths = number(files.get(f"hwmon/temp{at}_input"))
        if thousandths is not None:
            by_label[files.get(f"hwmon/temp{at}_label", "edge" if at == 1 else str(at))] = thousandths / 1000
    reading.temperature_celsius = by_label.get("junction", by_label.get("edge"))
    for label, name in (("edge", "edge_celsius"), ("mem", "memory_celsius")):
        if label in by_label:
            reading.telemetry[name] = by_label[label]
    for names, name in ((("power1_average", "power1_input"), "power_watts"), (("power1_cap",), "power_limit_watts")):
        for file in names:
            if (microwatts := number(files.get(f"hwmon/{file}"))) is not None:
                reading.telemetry[name] = microwatts / 1e6
                break


def _clock(text: str | None) -> float | None:
    match = _ACTIVE_CLOCK.search(text or "")
    return None if match is None else float(match[1])


def _ras(text: str) -> dict[str, float | None]:
    counts = {kind: float(count) for kind, count in _RAS.findall(text)}
    return {"ecc_corrected": counts.get("ce"), "ecc_uncorrected": counts.get("ue")}
