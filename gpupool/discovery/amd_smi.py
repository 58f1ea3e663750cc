"""What `amd-smi ... --json` prints: static, metric, process, topology, partition. Names moved between its versions."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from gpupool.discovery.base import DeviceProcess, Link, LinkType
from gpupool.discovery.gpu_catalogue import architecture_of, name_of, plain_id
from gpupool.discovery.reading import Reading
from gpupool.discovery.tolerant import (
    at,
    json_in,
    mappings,
    numa_node,
    number,
    pci_address,
    share,
    size_bytes,
    whole,
    words,
)

T = TypeVar("T")

_UUID: Final = re.compile(r"^([0-9a-f]{2})ff[0-9a-f]{4}-0000-1000-80([0-9a-f]{2})-([0-9a-f]{12})$", re.IGNORECASE)
_NOT_A_SERIAL: Final = frozenset({"0", "f" * 16})
LINK_TYPES: Final[Mapping[str, LinkType]] = {"XGMI": LinkType.XGMI, "PCIE": LinkType.PCIE_HOST}

Outputs = Mapping[str, str]
"""What was printed, by the command's name."""


def readings(outputs: Outputs) -> list[Reading]:
    """Every GPU and every part of a divided one that the outputs tell of."""
    found: dict[int, Reading] = {}
    for name, fill in (("list", _list), ("static", _static), ("metric", _metric), ("process", _process)):
        for gpu in _gpus(outputs.get(name, "")):
            index = whole(gpu.get("gpu"))
            if index is not None:
                fill(found.setdefault(index, Reading(vendor="amd", index=index)), gpu)
    _partitions(found, outputs.get("partition", ""))
    _topology(found, outputs.get("topology", ""))
    for reading in found.values():
        reading.name = reading.name or name_of(reading.device_id)
        reading.architecture = reading.architecture or architecture_of(reading.name, reading.device_id)
    return [found[index] for index in sorted(found)]


def unique_id(serial: object, uuid: object = None) -> str:
    """`GPU-8d1457e2c20f59d2`, as the runtime names a GPU: of the chip's serial, else of the tool's UUID."""
    text = words(serial).lower().removeprefix("0x")
    if text and len(text) <= 16 and all(digit in "0123456789abcdef" for digit in text):
        padded = text.rjust(16, "0")
        if text not in _NOT_A_SERIAL and padded.strip("0"):
            return f"GPU-{padded}"
    text = words(uuid)
    if (match := _UUID.match(text)) is not None:
        digits = f"{match[1]}{match[2]}{match[3]}".lower()
        return f"GPU-{digits}" if digits.strip("0") else ""
    return f"GPU-{text.lower()}" if text.strip("0-") else ""


def _gpus(text: str) -> Iterator[Mapping[str, object]]:
    printed = json_in(text)
    inner = at(printed, "gpu_data")
    yield from mappings(printed if inner is None else inner)


def _list(reading: Reading, gpu: Mapping[str, object]) -> None:
    reading.pci_address = reading.pci_address or pci_address(gpu.get("bdf"))
    reading.unique_id = reading.unique_id or unique_id(None, gpu.get("uuid"))
    reading.partition_id = whole(gpu.get("partition_id"))


def _static(reading: Reading, gpu: Mapping[str, object]) -> None:
    reading.pci_address = pci_address(at(gpu, "bus", "bdf")) or reading.pci_address
    reading.unique_id = unique_id(at(gpu, "asic", "asic_serial")) or reading.unique_id
    reading.name = words(at(gpu, "asic", "market_name"))
    reading.device_id = plain_id(words(at(gpu, "asic", "device_id")))
    reading.architecture = words(at(gpu, "asic", "target_graphics_version"))
    reading.compute_units = whole(at(gpu, "asic", "num_compute_units"))
    reading.memory_bytes = size_bytes(at(gpu, "vram", "size"), "mb")
    reading.numa_node = numa_node(at(gpu, "numa", "node"))
    partition = at(gpu, "partition")
    if isinstance(partition, Mapping):
        _partition(reading, partition)
    _note(reading, "driver", at(gpu, "driver", "version"))
    _note(reading, "memory_type", at(gpu, "vram", "type"))
    _note(reading, "memory_vendor", at(gpu, "vram", "vendor"))
    _note(reading, "vbios", at(gpu, "vbios", "version") or at(gpu, "vbios", "name"))
    _note(reading, "serial", at(gpu, "board", "product_serial"))
    _note(reading, "pcie", at(gpu, "bus", "pcie_interface_version"))
    if isinstance(ecc := at(gpu, "ras", "ecc_block_state"), Mapping):
        _note(reading, "ecc", ecc.get("UMC"))
    limit = number(at(gpu, "limit", "socket_power"))
    _measure(reading, "power_limit_watts", limit if limit is not None else number(at(gpu, "limit", "max_power")))
    _measure(reading, "pcie_width_max", number(at(gpu, "bus", "max_pcie_width")))
    _measure(reading, "bad_page_threshold", number(at(gpu, "ras", "bad_page_threshold")))


def _metric(reading: Reading, gpu: Mapping[str, object]) -> None:
    memory = at(gpu, "mem_usage") or at(gpu, "vram") or at(gpu, "fb_memory_usage")
    reading.memory_bytes = _first(
        size_bytes(at(memory, "total_vram"), "mb"), size_bytes(at(memory, "vram_total"), "mb"), reading.memory_bytes
    )
    reading.memory_used_bytes = _first(
        size_bytes(at(memory, "used_vram"), "mb"), size_bytes(at(memory, "vram_used"), "mb")
    )
    reading.host_visible_bytes = size_bytes(at(memory, "total_gtt"), "mb")
    gtt = size_bytes(at(memory, "used_gtt"), "mb")
    _measure(reading, "gtt_used_bytes", None if gtt is None else float(gtt))
    reading.utilization = share(at(gpu, "usage", "gfx_activity"))
    _measure(reading, "memory_utilization", share(at(gpu, "usage", "umc_activity")))
    temperature = at(gpu, "temperature")
    hotspot, edge = number(at(temperature, "hotspot")), number(at(temperature, "edge"))
    reading.temperature_celsius = _first(hotspot, edge)
    _measure(reading, "edge_celsius", edge)
    _measure(reading, "memory_celsius", number(at(temperature, "mem")))
    power = at(gpu, "power")
    _measure(
        reading,
        "power_watts",
        _first(*(number(at(power, key)) for key in ("socket_power", "current_socket_power", "average_socket_power"))),
    )
    _measure(reading, "power_limit_watts", number(at(power, "power_limit")))
    _throttled(reading, at(power, "throttle_status"))
    _measure(reading, "sm_clock_mhz", number(at(gpu, "clock", "gfx_0", "clk")) or number(at(gpu, "clock", "gfx")))
    _measure(reading, "memory_clock_mhz", number(at(gpu, "clock", "mem_0", "clk")) or number(at(gpu, "clock", "mem")))
    _measure(reading, "ecc_corrected", number(at(gpu, "ecc", "total_correctable_count")))
    _measure(reading, "ecc_uncorrected", number(at(gpu, "ecc", "total_uncorrectable_count")))
    _measure(reading, "pcie_replays", number(at(gpu, "pcie", "replay_count")))
    _measure(reading, "pcie_width", number(at(gpu, "pcie", "width")))
    _measure(reading, "fan_share", share(at(gpu, "fan", "usage")))


def _throttled(reading: Reading, status: object) -> None:
    text = words(status).lower()
    if text in ("throttled", "unthrottled"):
        reading.telemetry["throttled"] = 1.0 if text == "throttled" else 0.0


def _process(reading: Reading, gpu: Mapping[str, object]) -> None:
    processes = []
    for listed in mappings(gpu.get("process_list")):
        info = listed.get("process_info", listed)
        pid = whole(at(info, "pid"))
        if pid is None:  # "No running processes detected"
            continue
        used = _first(size_bytes(at(info, "memory_usage", "vram_mem")), size_bytes(at(info, "mem_usage")))
        processes.append(DeviceProcess(pid=pid, name=words(at(info, "name")), memory_bytes=used))
    reading.processes = tuple(processes)


def _partitions(found: Mapping[int, Reading], text: str) -> None:
    """Of `amd-smi partition`: the modes stand at the first part of a GPU, the others have their number only."""
    printed = json_in(text)
    current = at(printed, "current_partition")
    for entry in mappings(printed if current is None else current):
        index = _first(whole(entry.get("gpu_id")), whole(entry.get("gpu")))
        if index is not None and index in found:
            _partition(found[index], entry)


def _partition(reading: Reading, entry: Mapping[str, object]) -> None:
    for name in ("accelerator_type", "accelerator_partition", "compute_partition"):
        reading.compute_partition = words(entry.get(name)).upper() or reading.compute_partition
    for name in ("memory", "memory_partition"):
        reading.memory_partition = words(entry.get(name)).upper() or reading.memory_partition
    number_of_part = whole(str(entry.get("partition_id", "")).partition(",")[0])
    reading.partition_id = _first(number_of_part, reading.partition_id)


def _topology(found: Mapping[int, Reading], text: str) -> None:
    for gpu in _gpus(text):
        index = whole(gpu.get("gpu"))
        if index is None or index not in found:
            continue
        reading = found[index]
        reading.pci_address = reading.pci_address or pci_address(gpu.get("bdf"))
        links = []
        for entry in mappings(gpu.get("links")):
            kind = LINK_TYPES.get(words(entry.get("link_type")).upper())
            number_of_peer = whole(entry.get("gpu"))
            peer = None if number_of_peer is None else found.get(number_of_peer)
            address = pci_address(entry.get("bdf")) or (peer.pci_address if peer is not None else "")
            if kind is None or not address or words(entry.get("link_status")).upper() == "DISABLED":
                continue
            kind = farther(kind, number(entry.get("num_hops")))
            links.append(Link(peer=address, kind=kind, bandwidth_bytes=_bandwidth(entry.get("bandwidth"))))
        reading.links = tuple(links)


def farther(kind: LinkType, hops: float | None) -> LinkType:
    """By way of one processor there are two hops; of two processors, three."""
    return LinkType.SYSTEM if kind is LinkType.PCIE_HOST and hops is not None and hops > 2 else kind


def _bandwidth(text: object) -> int | None:
    """`50000-100000`: least and most, megabytes a second one way; twice the most, both directions together."""
    most = number(words(text).rpartition("-")[2])
    return None if not most else int(2 * most * 1_000_000)


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _note(reading: Reading, name: str, value: object) -> None:
    text = words(value)
    if text and text not in ("0", "0x0"):
        reading.facts[name] = text


def _measure(reading: Reading, name: str, value: float | None) -> None:
    if value is not None:
        reading.telemetry[name] = value
