"""The questions that the probe asks NVML about one GPU. Each answer stands alone: one that fails loses no other.

Three paces, because a driver answers some questions slowly: use, temperature and errors' recovery at every look;
counters of errors at every few; what a boot does not change once a minute.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from gpupool.discovery.nvidia_reading import (
    RECOVERY_ACTIONS,
    GpuReading,
    NvLinkReading,
    PeerReading,
    ProcessReading,
    short_address,
)

T = TypeVar("T")

_ARCHITECTURES: Final = {
    2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper",
    10: "blackwell", 13: "rubin",
}  # fmt: skip
_CORES_PER_SM: Final = {"6.0": 64, "6": 128, "7": 64, "8.0": 64, "8": 128, "9": 128, "10": 128, "12": 128}
_LEVELS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_REMOTE: Final = {0: "gpu", 1: "ibmnpu", 2: "switch"}
_COMPUTE_MODES: Final = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
_MEMORY_TEMPERATURE: Final = 82
_RECOVERY_ACTION: Final = 230
_NVLINK_TX_KIB, _NVLINK_RX_KIB = 138, 139
_ALL_LINKS: Final = 0xFFFFFFFF
_COMMON_SPEED: Final = 90
_LARGEST_COUNT: Final = (1 << 64) - 2  # the last values of the type are NVML's words for "not available"

THROTTLE_REASONS: Final = {
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of the clocks' event reasons that slow work down; idle and the clocks that someone set do not."""


class Asker:
    """Asks about one handle; remembers if the driver has said that the GPU is gone."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle
        self.trouble = ""
        self._gone = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED)

    def __call__(self, question: Callable[..., T], *arguments: Any) -> T | None:
        """The answer, or None for whatever this driver or GPU does not say."""
        try:
            return question(self.handle, *arguments)
        except self.nvml.NVMLError as error:
            if error.value in self._gone:
                self.trouble = error_name(self.nvml, error)
        except (self.nvml.NVMLLibraryMismatchError, ValueError, TypeError):
            pass  # this binding and this driver do not fit for this question
        return None


def error_name(nvml: Any, error: Any) -> str:
    """The NVML constant of an error without its prefix, such as DRIVER_NOT_LOADED."""
    for name in dir(nvml):
        if name.startswith("NVML_ERROR_") and getattr(nvml, name) == error.value:
            return name.removeprefix("NVML_ERROR_")
    return f"ERROR_{error.value}"


def ask_system(nvml: Any, question: Callable[..., T]) -> T | None:
    """As `Asker`, of the driver as a whole."""
    try:
        return question()
    except nvml.NVMLError:
        return None


# What a boot does not change


def read_static(ask: Asker, gpu: GpuReading) -> None:
    """Identity, kind and place."""
    nvml = ask.nvml
    gpu.uuid = ask(nvml.nvmlDeviceGetUUID)
    gpu.name = ask(nvml.nvmlDeviceGetName)
    gpu.pci_address = pci_address(ask(nvml.nvmlDeviceGetPciInfo))
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability)
    gpu.compute_capability = None if capability is None else f"{capability[0]}.{capability[1]}"
    gpu.architecture = _ARCHITECTURES.get(ask(nvml.nvmlDeviceGetArchitecture) or 0)
    gpu.compute_units = _compute_units(ask(nvml.nvmlDeviceGetNumGpuCores), gpu.compute_capability)
    bar1 = ask(nvml.nvmlDeviceGetBAR1MemoryInfo)
    gpu.bar1_bytes = None if bar1 is None else int(bar1.bar1Total)
    facts = {
        "serial": ask(nvml.nvmlDeviceGetSerial),
        "board_part_number": ask(nvml.nvmlDeviceGetBoardPartNumber),
        "vbios": ask(nvml.nvmlDeviceGetVbiosVersion),
    }
    gpu.facts = {key: str(value) for key, value in facts.items() if value}
    for key, question in (
        ("power_limit_watts", nvml.nvmlDeviceGetEnforcedPowerLimit),
        ("pcie_generation_max", nvml.nvmlDeviceGetMaxPcieLinkGeneration),
        ("pcie_width_max", nvml.nvmlDeviceGetMaxPcieLinkWidth),
    ):
        put(gpu, key, ask(question))
    if "power_limit_watts" in gpu.telemetry:
        gpu.telemetry["power_limit_watts"] /= 1000
    put(gpu, "sm_clock_max_mhz", ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM))


def read_nvlinks(ask: Asker, gpu: GpuReading) -> None:
    """Every NVLink that the GPU has: where it leads, and how fast."""
    nvml = ask.nvml
    common = _field(ask, _COMMON_SPEED)
    links = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = ask(nvml.nvmlDeviceGetNvLinkState, number)
        if state is None:
            continue
        link = NvLinkReading(link=number, active=state == nvml.NVML_FEATURE_ENABLED)
        if link.active:
            link.version = ask(nvml.nvmlDeviceGetNvLinkVersion, number)
            link.speed_mbps = None if common is None else int(common)
            link.remote_pci = pci_address(ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, number))
            link.remote_type = _REMOTE.get(_or(ask(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, number), 255), "")
        links.append(link)
    gpu.nvlinks = links
    if links:
        put(gpu, "nvlinks_active", sum(link.active is True for link in links))
        put(gpu, "nvlinks_down", sum(link.active is False for link in links))


def read_peers(nvml: Any, handle: Any, index: int, others: dict[int, Any]) -> list[PeerReading]:
    """How far it is over PCIe to each other GPU."""
    ask = Asker(nvml, handle)
    peers = []
    for number, other in others.items():
        if number == index:
            continue
        level = _LEVELS.get(_or(ask(nvml.nvmlDeviceGetTopologyCommonAncestor, other), -1))
        if level is not None:
            peers.append(PeerReading(index=number, level=level))
    return peers


# Counters of errors


def read_counters(ask: Asker, gpu: GpuReading) -> None:
    """Errors of the memory and what became of them; the counts since the driver was loaded, and for ever."""
    nvml = ask.nvml
    for key, kind, since in (
        ("ecc_corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        ("ecc_uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        ("ecc_corrected_aggregate", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_AGGREGATE_ECC),
        ("ecc_uncorrected_aggregate", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    ):
        put(gpu, key, ask(nvml.nvmlDeviceGetTotalEccErrors, kind, since))
    rows = ask(nvml.nvmlDeviceGetRemappedRows)
    if rows is not None:
        keys = ("remapped_rows_correctable", "remapped_rows_uncorrectable", "remap_pending", "remap_failed")
        for key, value in zip(keys, rows, strict=True):
            put(gpu, key, value)
    causes = (
        nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = [found for cause in causes if (found := ask(nvml.nvmlDeviceGetRetiredPages, cause)) is not None]
    if pages:
        put(gpu, "retired_pages", sum(len(found) for found in pages))
    put(gpu, "retired_pages_pending", ask(nvml.nvmlDeviceGetRetiredPagesPendingStatus))
    put(gpu, "pcie_replays", ask(nvml.nvmlDeviceGetPcieReplayCounter))
    put(gpu, "pcie_generation", ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration))
    put(gpu, "pcie_width", ask(nvml.nvmlDeviceGetCurrPcieLinkWidth))
    mode = ask(nvml.nvmlDeviceGetComputeMode)
    if mode in _COMPUTE_MODES:
        gpu.facts["compute_mode"] = _COMPUTE_MODES[mode]


# What changes all the time


def read_now(ask: Asker, gpu: GpuReading) -> None:
    """Memory, use, heat, power, clocks, processes, and what the driver wants done about the GPU."""
    nvml = ask.nvml
    read_memory(ask, gpu)
    gpu.temperature_celsius = ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
    rates = ask(nvml.nvmlDeviceGetUtilizationRates)
    if rates is not None:
        gpu.utilization = rates.gpu / 100
        put(gpu, "memory_utilization", rates.memory / 100)
    watts = ask(nvml.nvmlDeviceGetPowerUsage)
    put(gpu, "power_watts", None if watts is None else watts / 1000)
    put(gpu, "sm_clock_mhz", ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM))
    put(gpu, "memory_clock_mhz", ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM))
    fan = ask(nvml.nvmlDeviceGetFanSpeed)
    put(gpu, "fan_share", None if fan is None else fan / 100)
    put_throttling(gpu, ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons))
    put(gpu, "memory_temperature_celsius", _field(ask, _MEMORY_TEMPERATURE))
    action = _field(ask, _RECOVERY_ACTION)
    gpu.recovery_action = "" if action is None else RECOVERY_ACTIONS.get(int(action), "")
    for key, field in (("nvlink_tx_bytes", _NVLINK_TX_KIB), ("nvlink_rx_bytes", _NVLINK_RX_KIB)):
        kib = _field(ask, (field, _ALL_LINKS)) if gpu.nvlinks else None
        put(gpu, key, None if kib is None else kib * 1024)
    gpu.processes = read_processes(ask)


def read_memory(ask: Asker, gpu: GpuReading) -> None:
    """With what the driver keeps for itself apart, where it says so."""
    nvml = ask.nvml
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
    if memory is not None:
        gpu.memory_bytes, gpu.memory_used_bytes = int(memory.total), int(memory.used)
        gpu.memory_reserved_bytes = int(memory.reserved)
        return
    try:
        old = nvml.nvmlDeviceGetMemoryInfo(ask.handle)
    except nvml.NVMLError as error:
        gpu.memory_unsupported = error.value == nvml.NVML_ERROR_NOT_SUPPORTED
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED):
            ask.trouble = error_name(nvml, error)
        return
    gpu.memory_bytes, gpu.memory_used_bytes = int(old.total), int(old.used)


def read_processes(ask: Asker) -> list[ProcessReading] | None:
    """Processes that compute or draw on it; None where neither list can be had."""
    nvml = ask.nvml
    lists = {
        "C": ask(nvml.nvmlDeviceGetComputeRunningProcesses),
        "G": ask(nvml.nvmlDeviceGetGraphicsRunningProcesses),
    }
    if all(found is None for found in lists.values()):
        return None
    processes: dict[int, ProcessReading] = {}
    for kind, found in lists.items():
        for process in found or ():
            pid, used = int(process.pid), process.usedGpuMemory
            known = processes.setdefault(pid, ProcessReading(pid=pid, name=_process_name(pid)))
            known.kind = f"{known.kind}+{kind}" if known.kind else kind
            if used is not None and used <= _LARGEST_COUNT and known.memory_bytes is None:
                known.memory_bytes = int(used)
            instance = getattr(process, "gpuInstanceId", _ALL_LINKS)
            known.gpu_instance = None if instance in (None, _ALL_LINKS) else int(instance)
    return list(processes.values())


def mig_handles(ask: Asker) -> Iterator[Any]:
    """Handles of the MIG instances; empty slots are passed over."""
    nvml = ask.nvml
    for slot in range(ask(nvml.nvmlDeviceGetMaxMigDeviceCount) or 0):
        mig = ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, slot)
        if mig is not None:
            yield mig


def put(gpu: GpuReading, key: str, value: float | None) -> None:
    """Keep a number that the driver said; what it did not say has no key."""
    if value is not None and value <= _LARGEST_COUNT:
        gpu.telemetry[key] = float(value)


def put_throttling(gpu: GpuReading, bits: int | None) -> None:
    """Whether it runs slower than it could, and why."""
    if bits is None:
        return
    reasons = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    put(gpu, "throttled", bool(reasons))
    if reasons:
        gpu.facts["throttled_by"] = ", ".join(reasons)


def _field(ask: Asker, field: int | tuple[int, int]) -> float | None:
    """One of NVML's numbered fields."""
    nvml = ask.nvml
    values = ask(nvml.nvmlDeviceGetFieldValues, [field])
    if values is None or values[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    value = values[0].value
    names = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    }
    name = names.get(values[0].valueType)
    return None if name is None else float(getattr(value, name))


def _compute_units(cores: int | None, capability: str | None) -> int | None:
    per_sm = _CORES_PER_SM.get(capability or "") or _CORES_PER_SM.get((capability or "").partition(".")[0])
    return cores // per_sm if cores and per_sm else None


def pci_address(info: Any) -> str | None:
    """The address in what NVML says of a place on the bus."""
    if info is None:
        return None
    bus_id = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    return short_address(bus_id)


def _process_name(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()
    return ""


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
