"""The reading in a report of `nvidia-smi -q`, from its XML (`-x`) or its text. Pure."""

from collections.abc import Callable, Iterator
from typing import Final

from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading, ProcessReading, short_address
from gpupool.discovery.nvidia_smi_tree import Field, ReportError, from_text, from_xml
from gpupool.discovery.tolerant import number, share, size_bytes, whole

__all__ = ["ReportError", "parse_text", "parse_xml"]

_TROUBLE: Final = {"gpu is lost": "GPU_IS_LOST", "gpu requires reset": "RESET_REQUIRED"}
_RECOVERY: Final = {
    "none": "none",
    "reset": "reset",
    "gpu reset": "reset",
    "gpu reset required": "reset",
    "bus reset": "reset",
    "reboot": "reboot",
    "node reboot": "reboot",
    "node reboot required": "reboot",
    "system reboot": "reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_reset",
}
_MODES: Final = {"enabled": True, "disabled": False}
_DRAW: Final = ("power_draw", "average_power_draw", "instant_power_draw", "instantaneous_power_draw")
_LIMIT: Final = (
    "enforced_power_limit",
    "current_power_limit",
    "gpu_ceiling_power_limit/current_power_limit",  # since 610
    "power_limit",
)
_PENDING: Final = ("pending_retirement", "pending_blacklist", "pending_page_blacklist")
_THROTTLE: Final = (
    ("power_cap", "sw_power_cap"),
    ("hardware_slowdown", "hw_slowdown"),
    ("thermal", "sw_thermal_slowdown"),
    ("hardware_thermal", "hw_thermal_slowdown"),
    ("power_brake", "hw_power_brake_slowdown"),
    ("sync_boost", "sync_boost"),
)


def parse_xml(text: str) -> NvmlReading:
    """A reading from `nvidia-smi -q -x`. Raises ReportError."""
    return _reading(from_xml(text))


def parse_text(text: str) -> NvmlReading:
    """A reading from `nvidia-smi -q`. Raises ReportError."""
    return _reading(from_text(text))


def _reading(report: Field) -> NvmlReading:
    # The report goes by PCI address, nvidia-smi numbers GPUs by it: the order here is the index there.
    gpus = [found for index, gpu in enumerate(report.all("gpu")) for found in _gpu(gpu, index)]
    return NvmlReading(
        gpus=gpus,
        driver_version=report.text("kmd_version", "driver_version"),  # since 610 the second is deprecated, and says so
        cuda_version=report.text("cuda_umd_version", "cuda_version"),
    )


def _gpu(gpu: Field, index: int) -> Iterator[GpuReading]:
    address = short_address(gpu.text("pci/pci_bus_id", "pci/bus_id") or gpu.value)
    made = GpuReading(
        index=index,
        uuid=gpu.text("uuid", "gpu_uuid"),
        name=gpu.text("product_name"),
        pci_address=address,
        architecture=_lower(gpu.text("product_architecture")),
        memory_bytes=size_bytes(gpu.text("fb_memory_usage/total")),
        memory_used_bytes=size_bytes(gpu.text("fb_memory_usage/used")),
        memory_reserved_bytes=size_bytes(gpu.text("fb_memory_usage/reserved")),
        bar1_bytes=size_bytes(gpu.text("bar1_memory_usage/total")),
        utilization=share(gpu.text("utilization/gpu_util", "utilization/gpu")),
        temperature_celsius=number(gpu.text("temperature/gpu_temp", "temperature/gpu_current_temp")),
        mig_enabled={"enabled": True, "disabled": False}.get(
            gpu.raw("mig_mode/current_mig", "mig_mode/current").lower()
        ),
        recovery_action=_recovery(gpu),
        telemetry=_telemetry(gpu),
        facts=_facts(gpu),
        processes=list(_processes(gpu)),
        trouble=_trouble(gpu),
    )
    yield made
    for mig in gpu.all("mig_device") + [each for group in gpu.all("mig_devices") for each in group.all("mig_device")]:
        yield _mig(mig, made)


def _mig(mig: Field, parent: GpuReading) -> GpuReading:
    instance = whole(mig.text("gpu_instance_id"))
    processes = [each for each in parent.processes or () if each.gpu_instance == instance]
    made = GpuReading(
        index=parent.index,
        uuid=mig.text("uuid", "mig_uuid"),
        name=parent.name,
        pci_address=parent.pci_address,
        architecture=parent.architecture,
        compute_units=whole(mig.text("device_attributes/shared/multiprocessor_count")),
        memory_bytes=size_bytes(mig.text("fb_memory_usage/total", "shared_fb_memory_usage/total")),
        memory_used_bytes=size_bytes(mig.text("fb_memory_usage/used", "shared_fb_memory_usage/used")),
        memory_reserved_bytes=size_bytes(mig.text("fb_memory_usage/reserved", "shared_fb_memory_usage/reserved")),
        temperature_celsius=parent.temperature_celsius,
        recovery_action=parent.recovery_action,
        parent_uuid=parent.uuid,
        gpu_instance=instance,
        processes=processes,
        trouble=parent.trouble,
    )
    made.facts["mig_index"] = mig.raw("index")
    return made


def _telemetry(gpu: Field) -> dict[str, float]:
    """Every number that was said, by the names of base.Device.telemetry."""
    power = "gpu_power_readings", "power_readings"

    def draw(*names: str) -> str | None:
        return gpu.text(*(f"{group}/{name}" for group in power for name in names))

    errors = "ecc_errors"
    values: dict[str, float | None] = {
        "power_watts": number(draw(*_DRAW)),
        "power_limit_watts": number(draw(*_LIMIT)),
        "sm_clock_mhz": number(gpu.text("clocks/sm_clock", "clocks/sm")),
        "memory_clock_mhz": number(gpu.text("clocks/mem_clock", "clocks/memory")),
        "sm_clock_max_mhz": number(gpu.text("max_clocks/sm_clock", "max_clocks/sm")),
        "memory_utilization": share(gpu.text("utilization/memory_util", "utilization/memory")),
        "memory_temperature_celsius": number(gpu.text("temperature/memory_temp", "temperature/memory_current_temp")),
        "fan_share": share(gpu.text("fan_speed")),
        "pcie_replays": number(gpu.text("pci/replay_counter", "pci/replays_since_reset")),
        "pcie_generation": number(_link(gpu, "pcie_gen/current_link_gen", "pcie_generation/current")),
        "pcie_generation_max": number(_link(gpu, "pcie_gen/max_link_gen", "pcie_generation/max")),
        "pcie_width": number(_link(gpu, "link_widths/current_link_width", "link_width/current")),
        "pcie_width_max": number(_link(gpu, "link_widths/max_link_width", "link_width/max")),
        "ecc_corrected": _errors(gpu, f"{errors}/volatile", _corrected),
        "ecc_uncorrected": _errors(gpu, f"{errors}/volatile", _uncorrected),
        "ecc_corrected_aggregate": _errors(gpu, f"{errors}/aggregate", _corrected),
        "ecc_uncorrected_aggregate": _errors(gpu, f"{errors}/aggregate", _uncorrected),
        "retired_pages": _retired(gpu),
        "retired_pages_pending": _flag(
            gpu.raw(*(f"retired_pages/{name}" for name in _PENDING))
        ),
        "remapped_rows_correctable": _rows(gpu, "remapped_row_corr", "correctable_error"),
        "remapped_rows_uncorrectable": _rows(gpu, "remapped_row_unc", "uncorrectable_error"),
        "remap_pending": _flag(gpu.raw("remapped_rows/remapped_row_pending", "remapped_rows/pending")),
        "remap_failed": _flag(
            gpu.raw(
                "remapped_rows/remapped_row_failure",
                "remapped_rows/remapping_failure_occurred",
                "remapped_rows/failure_occurred",
            )
        ),
    }  # fmt: skip
    reasons = gpu.at("clocks_event_reasons") or gpu.at("clocks_throttle_reasons")
    if reasons is not None and reasons.below:
        values["throttled"] = float(bool(_throttled_by(gpu)))
    return {name: value for name, value in values.items() if value is not None}


def _corrected(name: str) -> bool:
    return name.endswith("_correctable")


def _uncorrected(name: str) -> bool:
    return "_uncorrectable" in name


def _errors(gpu: Field, path: str, wanted: Callable[[str], bool]) -> float | None:
    """The sum of the counters that were said; older drivers count single and double bits by place."""
    group = gpu.at(path)
    if group is None:
        return None
    if old := group.at("single_bit" if wanted is _corrected else "double_bit"):
        return number(old.text("total"))
    counts = [found for each in group.below if wanted(each.name) and (found := number(each.value)) is not None]
    return sum(counts) if counts else None


def _retired(gpu: Field) -> float | None:
    counts = [
        number(gpu.text("retired_pages/multiple_single_bit_retirement/retired_count", "retired_pages/single_bit_ecc")),
        number(gpu.text("retired_pages/double_bit_retirement/retired_count", "retired_pages/double_bit_ecc")),
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _rows(gpu: Field, xml: str, text: str) -> float | None:
    return number(gpu.text(f"remapped_rows/{xml}", f"remapped_rows/{text}"))


def _flag(text: str) -> float | None:
    return {"yes": 1.0, "no": 0.0}.get(text.strip().lower())


def _link(gpu: Field, xml: str, text: str) -> str | None:
    return gpu.text(f"pci/pci_gpu_link_info/{xml}", f"pci/gpu_link_info/{text}")


def _facts(gpu: Field) -> dict[str, str]:
    facts = {
        "serial": gpu.text("serial", "serial_number"),
        "board_part_number": gpu.text("board_part_number", "gpu_part_number"),
        "vbios": gpu.text("vbios_version"),
        "compute_mode": _lower(gpu.text("compute_mode")),
        "performance_state": gpu.text("performance_state"),
        "fabric": gpu.text("fabric/state"),
        "fabric_health": gpu.text("fabric/health/summary"),
        "throttled_by": ", ".join(_throttled_by(gpu)) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _throttled_by(gpu: Field) -> list[str]:
    group = gpu.at("clocks_event_reasons") or gpu.at("clocks_throttle_reasons")
    if group is None:
        return []
    active = {each.name for each in group.walk() if each.value.strip().lower() == "active"}
    prefixes = ("clocks_event_reason_", "clocks_throttle_reason_", "")
    return [word for word, name in _THROTTLE if any(f"{prefix}{name}" in active for prefix in prefixes)]


def _recovery(gpu: Field) -> str:
    told = gpu.raw("gpu_recovery_action").strip().lower()
    if told:
        return _RECOVERY.get(told, "")
    status = gpu.at("gpu_reset_status")  # drivers before 565
    if status is None:
        return ""
    reset, drain = status.raw("reset_required").lower(), status.raw("drain_and_reset_recommended").lower()
    if drain == "yes":
        return "drain_reset"
    if reset == "yes":
        return "reset"
    return "none" if reset == "no" else ""


def _processes(gpu: Field) -> Iterator[ProcessReading]:
    group = gpu.at("processes")
    if group is None:
        return
    instance: int | None = None
    for each in group.below:
        if each.name == "gpu_instance_id":  # of the text: the lines before a process are about it
            instance = whole(each.value)
        source = each if each.name == "process_info" else None
        if source is not None:
            pid, name = whole(source.text("pid")), source.text("process_name")
            found_in = whole(source.text("gpu_instance_id"))
            used, kind = size_bytes(source.text("used_memory")), source.text("type")
        elif each.name == "process_id":
            pid, name, found_in = whole(each.value), each.text("name"), instance
            used, kind = size_bytes(each.text("used_gpu_memory")), each.text("type")
        else:
            continue
        if pid is not None:
            yield ProcessReading(pid=pid, name=name or "", memory_bytes=used, kind=kind or "", gpu_instance=found_in)


def _trouble(gpu: Field) -> str:
    """What it says in place of a value about a GPU that is gone."""
    for each in gpu.walk():
        found = _TROUBLE.get(each.value.strip().strip("[]").lower())
        if found:
            return found
    return ""


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
