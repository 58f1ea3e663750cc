"""What an existing dcgm-exporter measures, joined to the devices that another source found.

NVML's utilisation says that some kernel ran; DCGM's profiling counters say how much of the GPU it used. A field
that the exporter does not serve, or serves as one of DCGM's words for "blank", has no key: the console shows n/a.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from core.clock import Clock
from gpupool.discovery.base import Device, DeviceSource, Inventory
from gpupool.discovery.scrape import series
from gpupool.discovery.tolerant import whole

_LARGEST_TEXT: Final = 8 * 1024 * 1024
_MIB: Final = float(1 << 20)
_REST_SECONDS: Final = 30.0

# From these on, DCGM's integers and floats mean blank, not found, not supported, not permitted.
_BLANK_INT64: Final = 9223372036854775792.0
_BLANK_FP64: Final = 140737488355328.0
_BLANK_INT32: Final = range(2147483632, 2147483648)

TELEMETRY: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 1.0),
    "DCGM_FI_PROF_SM_OCCUPANCY": ("sm_occupancy", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("engine_active", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("fp16_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("fp32_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("fp64_active", 1.0),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx_bytes_per_second", 1.0),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_bytes_per_second", 1.0),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx_bytes_per_second", 1.0),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx_bytes_per_second", 1.0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilization", 0.01),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_celsius", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": ("power_watts", 1.0),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_mhz", 1.0),
    "DCGM_FI_DEV_FAN_SPEED": ("fan_share", 0.01),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected", 1.0),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc_corrected_aggregate", 1.0),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("ecc_uncorrected_aggregate", 1.0),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("remapped_rows_correctable", 1.0),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows_uncorrectable", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remap_pending", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remap_failed", 1.0),
    "DCGM_FI_DEV_RETIRED_PENDING": ("retired_pages_pending", 1.0),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1.0),
    "DCGM_FI_DEV_XID_ERRORS": ("xid_last", 1.0),
    "DCGM_FI_DEV_POWER_VIOLATION": ("power_violation_seconds", 1e-9),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("thermal_violation_seconds", 1e-9),
}
"""Our names of DCGM's fields, and what their values are multiplied by."""


@dataclass(slots=True)
class DcgmGpu:
    """What the exporter serves of one GPU, or of one MIG instance of it."""

    telemetry: dict[str, float] = field(default_factory=dict)
    utilization: float | None = None
    temperature_celsius: float | None = None
    memory_used_bytes: int | None = None


def parse(text: str) -> dict[tuple[str, str], DcgmGpu]:
    """By (UUID of the GPU, id of the MIG instance or empty). Other metrics and broken lines are passed over."""
    found: dict[tuple[str, str], DcgmGpu] = {}
    for field_name, labels, value in series(text[:_LARGEST_TEXT]):
        uuid = labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid")
        if not field_name.startswith("DCGM_FI_") or not uuid or _is_blank(value):
            continue
        gpu = found.setdefault((uuid, labels.get("GPU_I_ID", "")), DcgmGpu())
        match field_name:
            case "DCGM_FI_DEV_GPU_UTIL":
                gpu.utilization = value / 100
            case "DCGM_FI_DEV_GPU_TEMP":
                gpu.temperature_celsius = value
            case "DCGM_FI_DEV_FB_USED":
                gpu.memory_used_bytes = whole(value * _MIB)
            case name if name in TELEMETRY:
                key, factor = TELEMETRY[name]
                gpu.telemetry[key] = value * factor
    return found


def join(device: Device, gpus: Mapping[tuple[str, str], DcgmGpu]) -> Device:
    """The device with what the exporter adds. What its own driver said stays: it is newer."""
    uuid = device.partition_of or device.stable_id
    gpu = gpus.get((uuid, device.facts.get("gpu_instance", "")))
    if gpu is None or device.health != "ok":
        return device
    gaps = {
        name: getattr(gpu, name)
        for name in ("utilization", "temperature_celsius", "memory_used_bytes")
        if getattr(device, name) is None
    }
    return replace(device, telemetry={**gpu.telemetry, **device.telemetry}, **gaps)


class DcgmSource:
    """Another source's devices, with an exporter's measurements. An exporter that is away costs nothing else."""

    def __init__(self, devices: DeviceSource, fetch: Callable[[], Awaitable[str | None]], *, clock: Clock) -> None:
        """`fetch` gets the exporter's text within a deadline of its own; None when there is no answer."""
        self._devices = devices
        self._fetch = fetch
        self._clock = clock
        self._rest_until: float | None = None

    async def probe(self) -> Inventory:
        found = await self._devices.probe()
        if not found.devices or (self._rest_until is not None and self._clock.monotonic() < self._rest_until):
            return found
        text = await self._fetch()
        if text is None:
            self._rest_until = self._clock.monotonic() + _REST_SECONDS
            return found
        gpus = parse(text)
        return replace(found, devices=tuple(join(device, gpus) for device in found.devices))

    async def close(self) -> None:
        await self._devices.close()


def _is_blank(value: float) -> bool:
    if not -_BLANK_INT64 < value < _BLANK_INT64 or int(value) in _BLANK_INT32:
        return True
    return _BLANK_FP64 <= value < _BLANK_FP64 + 16
