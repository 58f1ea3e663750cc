"""What `xpu-smi ... -j` prints: discovery, details, statistics and topology of Intel's GPUs, tile by tile."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gpupool.discovery.gpu_catalogue import architecture_of, plain_id
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import at, json_in, mappings, number, pci_address, share, size_bytes, whole, words

_MIB: Final = 1 << 20
_MOST_TILES: Final = 64


class TileReading(msgspec.Struct, kw_only=True):
    """One tile of a GPU."""

    number: int
    memory_used_bytes: int | None = None
    utilization: float | None = None
    temperature_celsius: float | None = None
    telemetry: dict[str, float] = {}


def device_ids(discovery: str) -> list[int]:
    """Numbers of the devices in `xpu-smi discovery -j`."""
    listed = mappings(at(json_in(discovery), "device_list"))
    return [number for device in listed if (number := whole(device.get("device_id"))) is not None]


def readings(outputs: Mapping[str, str]) -> list[Reading]:
    """Every GPU of `discovery`, with what `detail N`, `stats N` and `topology N` tell of it."""
    found = []
    for device in mappings(at(json_in(outputs.get("discovery", "")), "device_list")):
        index = whole(device.get("device_id"))
        if index is None:
            continue
        reading = Reading(vendor="intel", index=index)
        _describe(reading, device)
        detail = json_in(outputs.get(f"detail {index}", ""))
        if isinstance(detail, Mapping):
            _describe(reading, detail)
        _statistics(reading, json_in(outputs.get(f"stats {index}", "")))
        local = json_in(outputs.get(f"topology {index}", ""))
        for name in ("affinity_localcpulist", "local_cpu_list"):
            if text := words(at(local, name)):
                reading.facts["local_cpus"] = text
        found.append(reading)
    return found


def tiles(outputs: Mapping[str, str], index: int) -> list[TileReading]:
    """Tiles that `xpu-smi stats` tells of; empty where it tells of none."""
    found = []
    for tile in mappings(at(json_in(outputs.get(f"stats {index}", "")), "tile_level")):
        tile_number = whole(tile.get("tile_id"))
        if tile_number is None:
            continue
        metrics = _metrics(mappings(tile.get("data_list")))
        used = metrics.get("MEMORY_USED")
        found.append(
            TileReading(
                number=tile_number,
                memory_used_bytes=None if used is None else whole(used * _MIB),
                utilization=share(metrics.get("GPU_UTILIZATION")),
                temperature_celsius=metrics.get("GPU_CORE_TEMPERATURE"),
                telemetry=_telemetry(metrics),
            )
        )
    return found


def _describe(reading: Reading, device: Mapping[str, object]) -> None:
    reading.pci_address = pci_address(device.get("pci_bdf_address")) or reading.pci_address
    reading.device_id = plain_id(words(device.get("pci_device_id"))) or reading.device_id
    reading.name = words(device.get("device_name")) or reading.name
    reading.architecture = architecture_of(reading.name, reading.device_id)
    memory = device.get("memory_physical_size_byte", device.get("memory_physical_size"))
    reading.memory_bytes = size_bytes(memory) or reading.memory_bytes  # 0: it has none of its own
    count = whole(device.get("number_of_tiles"))
    reading.tiles = count if count is not None and 0 < count <= _MOST_TILES else reading.tiles
    facts = {
        # Of the model or of the slot, not of the card: two nodes may have the same. No identity.
        "uuid": device.get("uuid"),
        "serial": device.get("serial_number"),
        "driver": device.get("driver_version"),
        "function": device.get("device_function_type"),
        "execution_units": device.get("number_of_eus"),
        "ecc": device.get("memory_ecc_state"),
        "slot": device.get("pci_slot"),
    }
    reading.facts.update({name: text for name, value in facts.items() if (text := words(value))})
    ports = whole(device.get("number_of_fabric_ports"))
    if ports:
        reading.facts["xe_link_ports"] = str(ports)


def _statistics(reading: Reading, printed: object) -> None:
    by_device = _metrics(mappings(at(printed, "device_level")))
    by_tile = [_metrics(mappings(tile.get("data_list"))) for tile in mappings(at(printed, "tile_level"))]
    metrics = {**_together(by_tile), **by_device}
    used = metrics.get("MEMORY_USED")
    reading.memory_used_bytes = None if used is None else whole(used * _MIB)
    reading.utilization = share(metrics.get("GPU_UTILIZATION"))
    reading.temperature_celsius = metrics.get("GPU_CORE_TEMPERATURE")
    reading.telemetry = _telemetry(metrics)


def _together(tiles_metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Memory and power add up over tiles; of the rest, the highest counts."""
    summed = ("MEMORY_USED", "POWER")
    whole_device: dict[str, float] = {}
    for metrics in tiles_metrics:
        for name, value in metrics.items():
            before = whole_device.get(name)
            if before is None:
                whole_device[name] = value
            else:
                whole_device[name] = before + value if name in summed else max(before, value)
    return whole_device


def _metrics(entries: Iterable[Mapping[str, object]]) -> dict[str, float]:
    found = {}
    for entry in entries:
        name, value = words(entry.get("metrics_type")), number(entry.get("value"))
        if value is None:
            value = number(entry.get("avg"))
        if name and value is not None:
            found[name.removeprefix("XPUM_STATS_")] = value
    return found


def _telemetry(metrics: Mapping[str, float]) -> dict[str, float]:
    names = {
        "POWER": "power_watts",
        "GPU_FREQUENCY": "sm_clock_mhz",
        "MEMORY_TEMPERATURE": "memory_celsius",
        "RAS_ERROR_CAT_CACHE_ERRORS_CORRECTABLE": "ecc_corrected",
        "RAS_ERROR_CAT_CACHE_ERRORS_UNCORRECTABLE": "ecc_uncorrected",
        "RAS_ERROR_CAT_RESETS": "resets",
        "EU_ACTIVE": "eu_active_percent",
    }
    telemetry = {told: metrics[name] for name, told in names.items() if name in metrics}
    bandwidth = share(metrics.get("MEMORY_BANDWIDTH"))
    if bandwidth is not None:
        telemetry["memory_utilization"] = bandwidth
    return telemetry
