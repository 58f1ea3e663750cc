"""What AMD's device metrics exporter serves to Prometheus: gauges by GPU_UUID. Its MB are 10**6 bytes."""

from collections.abc import Mapping
from typing import Final

from gpupool.discovery.amd_smi import unique_id
from gpupool.discovery.reading import Reading
from gpupool.discovery.scrape import series
from gpupool.discovery.tolerant import pci_address, share, whole, words

_MB: Final = 1_000_000
_TELEMETRY: Final[Mapping[str, str]] = {
    "gpu_package_power": "power_watts",
    "gpu_average_package_power": "power_watts",
    "gpu_power_usage": "power_watts",
    "gpu_memory_temperature": "memory_celsius",
    "gpu_edge_temperature": "edge_celsius",
    "gpu_ecc_correct_total": "ecc_corrected",
    "gpu_ecc_uncorrect_total": "ecc_uncorrected",
    "pcie_replay_count": "pcie_replays",
}


def readings(text: str) -> list[Reading]:
    """One for each GPU_UUID, in the order of their first gauge."""
    found: dict[str, Reading] = {}
    for name, labels, value in series(text):
        uuid = labels.get("GPU_UUID", labels.get("gpu_uuid", ""))
        if not uuid:
            continue
        reading = found.setdefault(uuid, Reading(vendor="amd", unique_id=unique_id(None, uuid)))
        reading.pci_address = reading.pci_address or pci_address(labels.get("PCIE_BUS_ID"))
        reading.name = reading.name or words(labels.get("CARD_MODEL"))
        if serial := words(labels.get("SERIAL_NUMBER")):
            reading.facts["serial_number"] = serial
        if name == "gpu_total_memory" or name == "gpu_total_vram":
            reading.memory_bytes = whole(value * _MB)
        elif name == "gpu_used_vram":
            reading.memory_used_bytes = whole(value * _MB)
        elif name in ("gpu_usage", "gpu_gfx_activity"):
            reading.utilization = share(value)
        elif name == "gpu_umc_activity":
            if (busy := share(value)) is not None:
                reading.telemetry["memory_utilization"] = busy
        elif name == "gpu_junction_temperature":
            reading.temperature_celsius = value
        elif name in _TELEMETRY:
            reading.telemetry.setdefault(_TELEMETRY[name], value)
    return list(found.values())
