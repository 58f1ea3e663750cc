"""What `nvidia-smi` prints for people and for spreadsheets: -L, the table, CSV, dmon and pmon. Pure and tolerant.

The report of `-q -x` says more; these are read where it is not to be had, and for what it does not say.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading, ProcessReading, short_address
from gpupool.discovery.tolerant import number, plain, share, size_bytes, whole, words

_LISTED: Final = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[0-9a-fA-F-]+)\)")
_LISTED_MIG: Final = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)\s]+)\)")
_VERSIONS: Final = re.compile(r"(?:Driver|KMD) Version:\s*([\d.]+)(?:.*?CUDA(?: UMD)? Version:\s*([\d.]+))?")
_ROW: Final = re.compile(r"^\|\s+(\d+)\s+(.+?)\s+(?:On|Off|N/A)\s+\|\s+([0-9A-Fa-f]{4,8}:\S+)\s+\S+\s+\|\s+(\S+)\s+\|")
_USE: Final = re.compile(
    r"^\|\s*(\S+)\s+(\S+)\s+P?\S*\s+(\S+)\s*/\s*(\S+)\s+\|\s*(\S+)\s*/\s*(\S+)\s+\|\s*(\S+)\s+\S.*\|"
)
_MIG: Final = re.compile(r"^\|\s+\|\s+\|\s+(Enabled|Disabled)\*?\s+\|")
_PROCESS: Final = re.compile(r"^\|\s+(\d+)\s+(\S+)\s+(\S+)\s+(\d+)\s+(C|G|C\+G|M\+C)\s+(.+?)\s+(\S+)\s+\|$")
_UNIT: Final = re.compile(r"^(.*?)\s*\[([^\]]+)\]$")


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of `nvidia-smi -L`: a GPU, or a MIG instance of the GPU above it."""

    index: int
    name: str
    uuid: str
    mig_index: int | None = None  # of the instance, in the order of the report
    parent_uuid: str = ""


def parse_list(text: str) -> tuple[Listed, ...]:
    """`nvidia-smi -L`; lines that name no device are passed over."""
    found: list[Listed] = []
    gpu: Listed | None = None
    for line in plain(text).splitlines():
        if (match := _LISTED.match(line)) is not None:
            gpu = Listed(int(match[1]), match[2], match[3])
            found.append(gpu)
        elif gpu is not None and (match := _LISTED_MIG.match(line)) is not None:
            found.append(Listed(gpu.index, f"{gpu.name} MIG {match[1]}", match[3], int(match[2]), gpu.uuid))
    return tuple(found)


def parse_table(text: str) -> NvmlReading:
    """The table that `nvidia-smi` prints without arguments. Names are cut where they are long."""
    lines = plain(text).splitlines()
    reading = NvmlReading()
    for number_of_line, line in enumerate(lines):
        if (match := _VERSIONS.search(line)) is not None and reading.driver_version is None:
            reading.driver_version, reading.cuda_version = match[1], match[2]
        elif (match := _ROW.match(line)) is not None and number_of_line + 1 < len(lines):
            gpu = _table_gpu(match, lines[number_of_line + 1])
            if (mode := _MIG.match("".join(lines[number_of_line + 2 : number_of_line + 3]))) is not None:
                gpu.mig_enabled = mode[1] == "Enabled"
            reading.gpus.append(gpu)
        elif (match := _PROCESS.match(line)) is not None:
            _table_process(match, reading)
    return reading


def _table_gpu(row: re.Match[str], below: str) -> GpuReading:
    gpu = GpuReading(index=int(row[1]), name=row[2].strip(), pci_address=short_address(row[3]), processes=[])
    uncorrected = number(row[4])
    if uncorrected is not None:
        gpu.telemetry["ecc_uncorrected"] = uncorrected
    use = _USE.match(below)
    if use is None:
        return gpu
    gpu.temperature_celsius = number(use[2])
    for key, value in (
        ("fan_share", share(use[1])),
        ("power_watts", number(use[3])),
        ("power_limit_watts", number(use[4])),
    ):
        if value is not None:
            gpu.telemetry[key] = value
    gpu.memory_used_bytes, gpu.memory_bytes = size_bytes(use[5]), size_bytes(use[6])
    gpu.utilization = share(use[7])
    return gpu


def _table_process(row: re.Match[str], reading: NvmlReading) -> None:
    gpu = next((each for each in reading.gpus if each.index == int(row[1])), None)
    if gpu is not None and gpu.processes is not None:
        gpu.processes.append(
            ProcessReading(
                pid=int(row[4]), name=row[6], memory_bytes=size_bytes(row[7]), kind=row[5], gpu_instance=whole(row[2])
            )
        )


# --query-gpu, --query-compute-apps


def parse_csv(text: str) -> tuple[dict[str, str], ...]:
    """Rows of `--query-...=... --format=csv`, by the names of the fields; units in the head go to the values."""
    lines = [line for line in plain(text).splitlines() if line.strip()]
    start = next((at for at, line in enumerate(lines) if "," in line and not line.lower().startswith("warning")), None)
    if start is None:
        return ()
    rows = list(csv.reader(lines[start:], skipinitialspace=True))
    names, units = [], []
    for head in rows[0]:
        match = _UNIT.match(head.strip())
        names.append(match[1] if match is not None else head.strip())
        units.append(match[2] if match is not None else "")
    found = []
    for row in rows[1:]:
        if len(row) == len(names):
            values = (_with_unit(value.strip(), unit) for value, unit in zip(row, units, strict=True))
            found.append(dict(zip(names, values, strict=True)))
    return tuple(found)


def _with_unit(value: str, unit: str) -> str:
    return f"{value} {unit}" if unit and re.fullmatch(r"-?[\d.]+", value) else value


QUERY: Final = (
    "index,uuid,name,pci.bus_id,driver_version,memory.total,memory.reserved,memory.used,utilization.gpu,"
    "utilization.memory,temperature.gpu,power.draw,enforced.power.limit,clocks.current.sm,clocks.current.memory,"
    "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,compute_cap,fan.speed,mig.mode.current"
)
"""What is asked for by `--query-gpu` where the XML report cannot be read."""

_CSV_TELEMETRY: Final[Mapping[str, str]] = {
    "power.draw": "power_watts",
    "enforced.power.limit": "power_limit_watts",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "temperature.memory": "memory_temperature_celsius",
    "ecc.errors.corrected.volatile.total": "ecc_corrected",
    "ecc.errors.uncorrected.volatile.total": "ecc_uncorrected",
    "ecc.errors.corrected.aggregate.total": "ecc_corrected_aggregate",
    "ecc.errors.uncorrected.aggregate.total": "ecc_uncorrected_aggregate",
    "remapped_rows.correctable": "remapped_rows_correctable",
    "remapped_rows.uncorrectable": "remapped_rows_uncorrectable",
    "pcie.link.gen.current": "pcie_generation",
    "pcie.link.gen.max": "pcie_generation_max",
    "pcie.link.width.current": "pcie_width",
    "pcie.link.width.max": "pcie_width_max",
}


def parse_query_gpu(text: str) -> NvmlReading:
    """A reading from `--query-gpu`, of whichever fields were asked for."""
    gpus, driver = [], None
    for at, row in enumerate(parse_csv(text)):
        driver = driver or words(row.get("driver_version")) or None
        index = whole(row.get("index"))
        telemetry = {name: number(row.get(field)) for field, name in _CSV_TELEMETRY.items()}
        telemetry["memory_utilization"] = share(row.get("utilization.memory"))
        telemetry["fan_share"] = share(row.get("fan.speed"))
        gpus.append(
            GpuReading(
                index=at if index is None else index,
                uuid=words(row.get("uuid")) or None,
                name=words(row.get("name")) or None,
                pci_address=short_address(row.get("pci.bus_id", "")),
                memory_bytes=size_bytes(row.get("memory.total")),
                memory_used_bytes=size_bytes(row.get("memory.used")),
                memory_reserved_bytes=size_bytes(row.get("memory.reserved")),
                utilization=share(row.get("utilization.gpu")),
                temperature_celsius=number(row.get("temperature.gpu")),
                compute_capability=words(row.get("compute_cap")) or None,
                mig_enabled={"Enabled": True, "Disabled": False}.get(row.get("mig.mode.current", "")),
                telemetry={name: value for name, value in telemetry.items() if value is not None},
            )
        )
    return NvmlReading(gpus=gpus, driver_version=driver)


def parse_compute_apps(text: str) -> dict[str, list[ProcessReading]]:
    """Processes by the UUID of their GPU, from `--query-compute-apps`."""
    found: dict[str, list[ProcessReading]] = {}
    for row in parse_csv(text):
        pid = whole(row.get("pid"))
        if pid is not None:
            process = ProcessReading(
                pid=pid,
                name=row.get("process_name", ""),
                memory_bytes=size_bytes(row.get("used_gpu_memory")),
                kind="C",
            )
            found.setdefault(row.get("gpu_uuid", ""), []).append(process)
    return found


# dmon, pmon


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of dmon or pmon: what was measured of one GPU, or of one process on it."""

    gpu: int
    values: Mapping[str, float]  # by the column's name: pwr, gtemp, sm, mem, mclk, pclk
    pid: int | None = None
    kind: str = ""
    command: str = ""


def parse_monitor(text: str) -> tuple[Sample, ...]:
    """Lines of `nvidia-smi dmon` or `pmon`; a dash is unknown. What follows the columns' lines is passed over."""
    columns: list[str] = []
    found: list[Sample] = []
    for line in plain(text).splitlines():
        if re.match(r"^#\s*gpu\s", line):
            columns = line.lstrip("# ").split()
        elif columns and (sample := _sample(columns, line.split(maxsplit=len(columns) - 1))) is not None:
            found.append(sample)
    return tuple(found)


def _sample(columns: list[str], cells: list[str]) -> Sample | None:
    if len(cells) != len(columns) or not cells[0].isdecimal():
        return None
    row = dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    measured = {
        name: value
        for name, cell in row.items()
        if name not in ("gpu", "pid", "type", "command") and (value := number(cell)) is not None
    }
    return Sample(int(row["gpu"]), measured, whole(row.get("pid")), words(row.get("type")), words(row.get("command")))
