"""What nvidia-smi prints for people and spreadsheets. The expected values were read in the files."""

import re
from collections.abc import Iterator

import pytest

from gpupool.discovery.nvidia_smi_report import parse_text
from gpupool.discovery.nvidia_smi_text import (
    parse_compute_apps,
    parse_csv,
    parse_list,
    parse_monitor,
    parse_query_gpu,
    parse_table,
)
from tests.gpupool.discovery.samples import assert_covered, read

MIB = 1 << 20
ZERO = "GPU-00000000-0000-0000-0000-000000000000"
RTX2080A = "nvge__linux-x86_64__nvidia-geforce-rtx-2080-super__595.71.05"
RTX2080B = "nvge__linux-x86_64__nvidia-geforce-rtx-2080-super__610.57.04"
RTX4080 = "nvge__linux-x86_64__nvidia-geforce-rtx-4080-super__595.71.05"
H100 = "nvge__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01"
H100_MIG = "nvge__linux-x86_64__nvidia-h100-mig__590.48.01"
H200 = "nvge__linux-x86_64__nvidia-h200__590.48.01"
L40S = "nvge__linux-x86_64__nvidia-l40s__595.80"
MACHINES = {RTX2080A: "NVIDIA GeForce RTX 2080 SUPER", RTX2080B: "NVIDIA GeForce RTX 2080 SUPER",
            RTX4080: "NVIDIA GeForce RTX 4080 SUPER", H100: "NVIDIA H100 80GB HBM3",
            H100_MIG: "NVIDIA H100 80GB HBM3", H200: "NVIDIA H200", L40S: "NVIDIA L40S"}  # fmt: skip

# nvidia-smi -L


@pytest.mark.parametrize("machine", MACHINES)
def test_the_list(machine: str) -> None:
    first, *others = parse_list(read("nvidia-smi-L", f"{machine}__capabilities__L.txt"))
    assert (first.index, first.name, first.uuid) == (0, MACHINES[machine], ZERO)
    if machine != H100_MIG:
        assert others == []
        return
    profiles = ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    assert [part.name for part in others] == [f"NVIDIA H100 80GB HBM3 MIG {profile}" for profile in profiles]
    assert [part.mig_index for part in others] == [0, 1, 2, 3]
    assert others[3].uuid == "MIG-00000003-0000-0000-0000-000000000003"
    assert others[3].parent_uuid == ZERO


def test_no_list_is_left_out() -> None:
    assert_covered("nvidia-smi-L", {f"{machine}__capabilities__L.txt" for machine in MACHINES})


# nvidia-smi -q: GPUs, driver, CUDA, name, MiB in all, used, kept by the driver, percent, degrees, watts, limit, SM MHz,
# UUID of the first, processes of the first

REPORTS = {
    f"{RTX2080A}__load__q.txt": (
        1, "595.71.05", "13.2", 8192, 819, 408, 8, 45, 98.55, 250, 2055, ZERO, [1696, 4584, 5267, 5268]),
    f"{RTX2080B}__load__q.txt": (
        1, "610.57.04", "13.3", 8192, 815, 400, 8, 38, 97.75, 250, 2070, ZERO, [1720, 4556, 28511, 28512]),
    f"{RTX4080}__load__q.txt": (
        1, "595.71.05", "13.2", 16376, 1474, 434, 7, 45, 84.03, 320, 2805, ZERO,
        [2165, 2496, 2620, 2954, 3527, 5021, 5022]),
    f"{H100}__load__q.txt": (
        1, "590.48.01", "13.1", 81559, 19818, 479, 100, 59, 629.45, 700, 1980, ZERO, [11327, 11328, 11345]),
    f"{H100_MIG}__load__q.txt": (
        1, "590.48.01", "13.1", 81559, 11125, 479, None, 53, 432.21, 700, 1980, ZERO, [21180, 21181, 21198]),
    f"{H200}__load__q.txt": (
        1, "590.48.01", "13.1", 143771, 32362, 614, 100, 52, 627.32, 700, 1980, ZERO, [10291, 10293, 10309]),
    f"{L40S}__load__q.txt": (
        1, "595.80", "13.2", 46068, 1235, 609, 9, 54, 110.24, 350, 2520, ZERO, [20037, 20038]),
    "thamada__A100SXMx4_smi_q.txt": (
        4, "555.42.02", "12.5", 81920, 1, 763, 0, 25, 59.77, 500, 210, "GPU-31515c3d-1414-7c2c-004a-f86a898946ac", []),
    "thamada__A40x10_smi_q.txt": (
        10, "550.127.05", "12.4", 46068, 1, 665, 0, 29, 29.7, 300, 0, "GPU-4e65de01-972e-93cf-b077-181a5378972a", []),
    "thamada__H100NVLx2_smi_q.txt": (
        2, "550.54.14", "12.4", 95830, 0, 594, 0, 32, 61.62, 310, 345, "GPU-806f8ea2-6428-1096-a076-bb687fb45fb0", []),
    "thamada__H100SXMx8_smi_q.txt": (
        8, "565.57.01", "12.7", 81559, 1, 454, 0, 30, 100.89, 700, 345, "GPU-b42dd28e-ffdd-8720-1df0-98bd8cdc05b1", []),
    "thamada__L40S_smi_q.txt": (
        1, "550.127.05", "12.4", 46068, 1, 479, 0, 30, 33.44, 350, 210, "GPU-1db6b1cf-de5e-b497-caca-1a027578d587", []),
    "thamada__L4_smi_q.txt": (
        1, "550.90.07", "12.4", 23034, 1, 556, 0, 33, 16.47, 72, 210, "GPU-453f8851-d1a3-e72d-4d85-3ef04418205b", []),
    "thamada__RTX2000Ada_smi_q.txt": (
        1, "550.54.15", "12.4", 16380, 1, 304, 0, 25, 6.0, 70, 210, "GPU-c6b48bc3-71e0-b290-72c0-ae54e2120397", []),
    "thamada__RTX3090_smi_q.txt": (
        2, "560.35.03", "12.6", 24576, 2, 422, 0, 30, 30.1, 350, 210, "GPU-4aba3cfa-7b42-cca6-97f4-5cdd281b0746", []),
    "thamada__RTX4000Ada_smi_q.txt": (
        1, "550.90.07", "12.4", 20475, 2, 329, 0, 31, 12.62, 130, 210, "GPU-4e0cc503-5ef0-52d7-a851-94827828934c", []),
    "thamada__RTX4060Ti_smi_q.txt": (
        2, "550.54.14", "12.4", 16380, 0, 303, 0, 32, 30.5, 165, 2610, "GPU-5fd2f5bb-12a1-ad58-a590-2f48aa312d92", []),
    "thamada__RTX4090_smi_q.txt": (
        8, "550.127.05", "12.4", 24564, 2, 354, 0, 28, 20.0, 450, 210, "GPU-8ee5f1e0-e705-aac5-6d6e-b97ad59601ef", []),
    "thamada__RTX6000Ada_x8_smi_q.txt": (
        8, "550.127.05", "12.4", 49140, 2, 500, 0, 30, 23.83, 300, 210, "GPU-6130ccb8-7d66-5560-15ea-9a2a08dc87e7", []),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_the_report_for_people(name: str) -> None:
    gpus, driver, cuda, total, used, reserved, util, temp, watts, limit, sm, uuid, pids = REPORTS[name]
    reading = parse_text(read("nvidia-smi-text", name))
    first = reading.gpus[0]
    assert len([gpu for gpu in reading.gpus if gpu.parent_uuid is None]) == gpus
    assert (reading.driver_version, reading.cuda_version) == (driver, cuda)
    sizes = (first.memory_bytes, first.memory_used_bytes, first.memory_reserved_bytes)
    assert sizes == (total * MIB, used * MIB, reserved * MIB)
    assert first.utilization == (None if util is None else util / 100)
    assert (first.temperature_celsius, first.uuid) == (temp, uuid)
    numbers = (first.telemetry.get(key) for key in ("power_watts", "power_limit_watts", "sm_clock_mhz"))
    assert tuple(numbers) == (watts, limit, sm)
    assert [process.pid for process in first.processes or ()] == pids


def test_details_of_reports_for_people() -> None:
    second = parse_text(read("nvidia-smi-text", "thamada__A100SXMx4_smi_q.txt")).gpus[1]
    assert second.telemetry["ecc_corrected"] == 353
    a40 = parse_text(read("nvidia-smi-text", "thamada__A40x10_smi_q.txt")).gpus[0]
    assert (a40.telemetry["remapped_rows_correctable"], a40.telemetry["ecc_corrected_aggregate"]) == (2, 10)
    assert a40.recovery_action == "none"  # by "Reset Required: No" of drivers before 565
    parent, *parts = parse_text(read("nvidia-smi-text", f"{H100_MIG}__load__q.txt")).gpus
    assert parent.mig_enabled is True
    assert [part.memory_bytes for part in parts] == [size * MIB for size in (40448, 20096, 9984, 9984)]
    assert [part.compute_units for part in parts] == [60, 32, 16, 16]
    assert [part.gpu_instance for part in parts] == [2, 3, 9, 10]
    assert [len(part.processes or ()) for part in parts] == [3, 0, 0, 0]
    ffmpeg = parse_text(read("nvidia-smi-text", f"{L40S}__load__q.txt")).gpus[0]
    assert [process.memory_bytes for process in ffmpeg.processes or ()] == [538 * MIB, 681 * MIB]


# The table: GPUs, driver, CUDA, degrees, watts, limit, used MiB, MiB, percent, uncorrected errors, processes, address

TABLES = {
    f"{RTX2080A}__idle__table.txt": (
        1, "595.71.05", "13.2", 40, 37, 250, 214, 8192, 0, None, 2, "0000:0c:00.0"),
    f"{RTX2080A}__load__table.txt": (
        1, "595.71.05", "13.2", 45, 98, 250, 819, 8192, 8, None, 4, "0000:0c:00.0"),
    f"{RTX2080B}__idle__table.txt": (
        1, "610.57.04", "13.3", 33, 38, 250, 211, 8192, 0, None, 2, "0000:0c:00.0"),
    f"{RTX2080B}__load__table.txt": (
        1, "610.57.04", "13.3", 38, 97, 250, 815, 8192, 8, None, 4, "0000:0c:00.0"),
    f"{RTX4080}__idle__table.txt": (
        1, "595.71.05", "13.2", 43, 25, 320, 596, 16376, 0, None, 5, "0000:01:00.0"),
    f"{RTX4080}__load__table.txt": (
        1, "595.71.05", "13.2", 45, 83, 320, 1474, 16376, 7, None, 7, "0000:01:00.0"),
    f"{H100}__idle__table.txt": (1, "590.48.01", "13.1", 41, 69, 700, 0, 81559, 0, 0, 0, "0000:00:09.0"),
    f"{H100}__load__table.txt": (1, "590.48.01", "13.1", 59, 629, 700, 19818, 81559, 100, 0, 3, "0000:00:09.0"),
    f"{H100_MIG}__idle__table.txt": (1, "590.48.01", "13.1", 42, 98, 700, 59, 81559, None, None, 0, "0000:00:09.0"),
    f"{H100_MIG}__load__table.txt": (
        1, "590.48.01", "13.1", 52, 432, 700, 11125, 81559, None, None, 3, "0000:00:09.0"),
    f"{H200}__idle__table.txt": (1, "590.48.01", "13.1", 28, 77, 700, 0, 143771, 0, 0, 0, "0000:83:00.0"),
    f"{H200}__load__table.txt": (1, "590.48.01", "13.1", 52, 628, 700, 32362, 143771, 100, 0, 3, "0000:83:00.0"),
    f"{L40S}__idle__table.txt": (1, "595.80", "13.2", 64, 242, 350, 0, 46068, 100, 0, 0, "0000:01:00.0"),
    f"{L40S}__load__table.txt": (1, "595.80", "13.2", 54, 110, 350, 1235, 46068, 9, 0, 2, "0000:01:00.0"),
    "thamada__A100SXMx4_smi_table.txt": (4, "555.42.02", "12.5", 25, 59, 500, 1, 81920, 0, 0, 0, "0000:68:00.0"),
    "thamada__A40x10_smi_table.txt": (10, "550.127.05", "12.4", 29, 23, 300, 1, 46068, 0, 0, 0, "0000:4f:00.0"),
    "thamada__H100NVLx2_smi_table.txt": (2, "550.54.14", "12.4", 32, 61, 310, 0, 95830, 0, 0, 0, "0000:ad:00.0"),
    "thamada__H100SXMx8_smi_table.txt": (8, "565.57.01", "12.7", 30, 100, 700, 1, 81559, 0, 0, 0, "0000:18:00.0"),
    "thamada__L40S_smi_table.txt": (1, "550.127.05", "12.4", 31, 33, 350, 1, 46068, 0, 0, 0, "0000:a1:00.0"),
    "thamada__L4_smi_table.txt": (1, "550.90.07", "12.4", 33, 16, 72, 1, 23034, 0, 0, 0, "0000:01:00.0"),
    "thamada__RTX2000Ada_smi_table.txt": (1, "550.54.15", "12.4", 26, 6, 70, 1, 16380, 0, None, 0, "0000:02:00.0"),
    "thamada__RTX3090_smi_table.txt": (2, "560.35.03", "12.6", 30, 30, 350, 2, 24576, 0, None, 0, "0000:41:00.0"),
    "thamada__RTX4000Ada_smi_table.txt": (1, "550.90.07", "12.4", 31, 12, 130, 2, 20475, 0, None, 0, "0000:81:00.0"),
    "thamada__RTX4060Ti_smi_table.txt": (2, "550.54.14", "12.4", 32, 29, 165, 0, 16380, 0, None, 0, "0000:03:00.0"),
    "thamada__RTX4090_smi_table.txt": (8, "550.127.05", "12.4", 28, 20, 450, 2, 24564, 0, None, 0, "0000:01:00.0"),
    "thamada__RTX6000Ada_x8_smi_table.txt": (
        8, "550.127.05", "12.4", 30, 23, 300, 2, 49140, 0, None, 0, "0000:01:00.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_table(name: str) -> None:
    gpus, driver, cuda, temp, watts, limit, used, total, util, uncorrected, processes, address = TABLES[name]
    reading = parse_table(read("nvidia-smi-text", name))
    first = reading.gpus[0]
    assert (len(reading.gpus), reading.driver_version, reading.cuda_version) == (gpus, driver, cuda)
    assert (first.temperature_celsius, first.pci_address) == (temp, address)
    assert (first.telemetry["power_watts"], first.telemetry["power_limit_watts"]) == (watts, limit)
    assert (first.memory_used_bytes, first.memory_bytes) == (used * MIB, total * MIB)
    assert first.utilization == (None if util is None else util / 100)
    assert first.telemetry.get("ecc_uncorrected") == uncorrected
    assert sum(len(gpu.processes or ()) for gpu in reading.gpus) == processes


def test_no_text_is_left_out() -> None:
    assert_covered("nvidia-smi-text", set(REPORTS) | set(TABLES))


# --query-gpu: fields, used MiB, MiB, kept by the driver, percent, degrees, watts, compute capability, SM MHz, fan

CSVS = {
    (RTX2080A, "idle"): (202, 214, 8192, 408, 0, 40, 39.32, "7.5", 765, 0.38),
    (RTX2080A, "load"): (202, 819, 8192, 408, 8, 45, 111.5, "7.5", 2055, 0.38),
    (RTX2080B, "idle"): (241, 211, 8192, 400, 0, 33, 39.17, "7.5", 765, 0.38),
    (RTX2080B, "load"): (241, 815, 8192, 400, 8, 38, 98.14, "7.5", 2070, 0.38),
    (RTX4080, "idle"): (202, 596, 16376, 434, 0, 43, 26.2, "8.9", 210, 0),
    (RTX4080, "load"): (202, 1474, 16376, 434, 7, 46, 84.24, "8.9", 2805, 0),
    (H100, "idle"): (212, 0, 81559, 479, 0, 41, 69.85, "9.0", 345, None),
    (H100, "load"): (212, 19818, 81559, 479, 100, 59, 631.95, "9.0", 1980, None),
    (H100_MIG, "idle"): (212, 59, 81559, 479, None, 42, 71.15, "9.0", 345, None),
    (H100_MIG, "load"): (212, 11125, 81559, 479, None, 53, 433.78, "9.0", 1980, None),
    (H200, "idle"): (212, 0, 143771, 614, 0, 28, 77.71, "9.0", 345, None),
    (H200, "load"): (212, 32362, 143771, 614, 100, 52, 627.4, "9.0", 1980, None),
    (L40S, "idle"): (202, 0, 46068, 609, 100, 63, 144.97, "8.9", 2520, None),
    (L40S, "load"): (202, 1235, 46068, 609, 9, 54, 110.23, "8.9", 2520, None),
}
APPS = {
    (RTX2080A, "idle"): [], (RTX2080A, "load"): [(5268, "ffmpeg", 370), (5267, "ffmpeg", 230)],
    (RTX2080B, "idle"): [], (RTX2080B, "load"): [(28512, "ffmpeg", 370), (28511, "ffmpeg", 230)],
    (RTX4080, "idle"): [(2165, "/usr/bin/kwin_wayland", 25)],
    (RTX4080, "load"): [(2165, "/usr/bin/kwin_wayland", 25), (5022, "ffmpeg", 503), (5021, "ffmpeg", 360)],
    (H100, "idle"): [],
    (H100, "load"): [(11327, "/root/tools/memhog", 2566), (11328, "/root/tools/memhog", 1542),
                     (11345, "./gpu_burn", 15690)],
    (H100_MIG, "idle"): [],
    (H100_MIG, "load"): [(21180, "/root/tools/memhog", 2296), (21181, "/root/tools/memhog", 1272),
                         (21198, "./gpu_burn", 7484)],
    (H200, "idle"): [],
    (H200, "load"): [(10291, "/root/tools/memhog", 2566), (10293, "/root/tools/memhog", 1542),
                     (10309, "./gpu_burn", 28234)],
    (L40S, "idle"): [], (L40S, "load"): [(20037, "ffmpeg", 538), (20038, "ffmpeg", 681)],
}  # fmt: skip


@pytest.mark.parametrize(("machine", "when"), CSVS)
def test_the_spreadsheet(machine: str, when: str) -> None:
    fields, used, total, reserved, util, temp, watts, capability, sm, fan = CSVS[machine, when]
    text = read("nvidia-smi-csv", f"{machine}__{when}__query-gpu.csv")
    assert [len(row) for row in parse_csv(text)] == [fields]
    (gpu,) = parse_query_gpu(text).gpus
    assert (gpu.name, gpu.uuid, gpu.index) == (MACHINES[machine], ZERO, 0)
    sizes = (gpu.memory_used_bytes, gpu.memory_bytes, gpu.memory_reserved_bytes)
    assert sizes == (used * MIB, total * MIB, reserved * MIB)
    assert gpu.utilization == (None if util is None else util / 100)
    assert (gpu.temperature_celsius, gpu.compute_capability) == (temp, capability)
    assert (gpu.telemetry["power_watts"], gpu.telemetry["sm_clock_mhz"]) == (watts, sm)
    assert gpu.telemetry.get("fan_share") == fan


@pytest.mark.parametrize(("machine", "when"), APPS)
def test_processes_in_a_spreadsheet(machine: str, when: str) -> None:
    found = parse_compute_apps(read("nvidia-smi-csv", f"{machine}__{when}__query-compute-apps.csv"))
    told = [(each.pid, each.name, (each.memory_bytes or 0) // MIB) for each in found.get(ZERO, [])]
    assert told == APPS[machine, when]


def test_no_spreadsheet_is_left_out() -> None:
    names = {f"{machine}__{when}__query-gpu.csv" for machine, when in CSVS}
    assert_covered("nvidia-smi-csv", names | {f"{machine}__{when}__query-compute-apps.csv" for machine, when in APPS})


# dmon: watts, degrees of GPU and memory, SM, memory, memory clock, clock; pmon: lines, the first process

DMON = {
    (RTX2080A, "idle"): (36, 40, None, 0, 10, 405, 300), (RTX2080A, "load"): (98, 45, None, 8, 3, 7500, 2055),
    (RTX2080B, "idle"): (38, 33, None, 0, 0, 405, 300), (RTX2080B, "load"): (97, 38, None, 8, 3, 7500, 2070),
    (RTX4080, "idle"): (27, 43, None, 0, 16, 405, 210), (RTX4080, "load"): (83, 46, None, 7, 2, 11251, 2805),
    (H100, "idle"): (69, 41, 47, 0, 0, 2619, 345), (H100, "load"): (631, 63, 57, 100, 10, 2619, 1980),
    (H100_MIG, "idle"): (70, 42, 48, None, None, 2619, 345),
    (H100_MIG, "load"): (438, 55, 61, None, None, 2619, 1980),
    (H200, "idle"): (77, 28, 31, 0, 0, 3201, 345), (H200, "load"): (630, 53, 41, 100, 8, 3201, 1980),
    (L40S, "idle"): (66, 57, None, 0, 0, 9001, 210), (L40S, "load"): (109, 53, None, 10, 2, 9001, 2520),
}  # fmt: skip
PMON = {
    (RTX2080A, "idle"): (10, 1696, "G", "gnome-shell"), (RTX2080A, "load"): (20, 1696, "G", "gnome-shell"),
    (RTX2080B, "idle"): (10, 1720, "G", "gnome-shell"), (RTX2080B, "load"): (20, 1720, "G", "gnome-shell"),
    (RTX4080, "idle"): (25, 2165, "C+G", "kwin_wayland"), (RTX4080, "load"): (35, 2165, "C+G", "kwin_wayland"),
    (H100, "idle"): (5, None, "", ""), (H100, "load"): (15, 11327, "C", "memhog"),
    (H100_MIG, "idle"): (5, None, "", ""), (H100_MIG, "load"): (15, 21180, "C", "memhog"),
    (H200, "idle"): (5, None, "", ""), (H200, "load"): (15, 10291, "C", "memhog"),
    (L40S, "idle"): (5, None, "", ""), (L40S, "load"): (10, 20037, "C", "ffmpeg"),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "when"), DMON)
def test_samples_of_a_gpu(machine: str, when: str) -> None:
    samples = parse_monitor(read("nvidia-smi-dmon", f"{machine}__{when}__dmon.txt"))
    assert len(samples) == 5  # a list of symbols follows in some of the files
    values = samples[0].values
    names = ("pwr", "gtemp", "mtemp", "sm", "mem", "mclk", "pclk")
    assert tuple(values.get(name) for name in names) == DMON[machine, when]


@pytest.mark.parametrize(("machine", "when"), PMON)
def test_samples_of_processes(machine: str, when: str) -> None:
    samples = parse_monitor(read("nvidia-smi-dmon", f"{machine}__{when}__pmon.txt"))
    first = samples[0]
    assert (len(samples), first.pid, first.kind, first.command) == PMON[machine, when]


def test_no_samples_are_left_out() -> None:
    names = {f"{machine}__{when}__{kind}.txt" for machine, when in DMON for kind in ("dmon", "pmon")}
    assert_covered("nvidia-smi-dmon", names)


# Captures: outputs one below the other, framed; query.txt is two rows of an old driver on Windows


def sections(capture: str) -> Iterator[tuple[str, str]]:
    """(title, output) of each section."""
    frame = re.compile(r"^#{80}\n# (.+)\n# \$ .+\n(?:# .*\n)*#{80}\n", re.MULTILINE)
    matches = list(frame.finditer(capture))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        yield match[1], capture[match.end() : len(capture) if following is None else following.start()]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_part_of_a_capture_tells_the_same_gpu(machine: str) -> None:
    parts = dict(sections(read("nvidia-smi-capture", f"{machine}.txt")))
    assert parse_list(parts["capabilities :: list (-L)"])[0].name == MACHINES[machine]
    for when in ("idle", "load"):
        used, total = CSVS[machine, when][1:3]
        (gpu,) = parse_query_gpu(parts[f"{when} :: query-gpu (csv, what the exporter parses)"]).gpus
        report = parse_text(parts[f"{when} :: query (-q)"]).gpus[0]
        table = parse_table(parts[f"{when} :: nvidia-smi (default table)"]).gpus[0]
        assert {gpu.memory_bytes, report.memory_bytes, table.memory_bytes} == {total * MIB}
        assert {gpu.memory_used_bytes, report.memory_used_bytes, table.memory_used_bytes} == {used * MIB}
        assert parse_monitor(parts[f"{when} :: dmon (per-device monitor, incl. PCIe rx/tx)"])[0].gpu == 0


def test_rows_of_an_old_driver_on_windows() -> None:
    first, second = parse_query_gpu(read("nvidia-smi-capture", "nvge__query.txt")).gpus
    assert (first.index, first.pci_address, first.memory_used_bytes) == (0, "0000:01:00.0", 575 * MIB)
    assert first.telemetry == {"fan_share": 0.38}
    assert (second.index, second.uuid, second.compute_capability) == (
        1,
        "GPU-04757e3e-3077-4e2e-b988-7e2d647b52e9",
        "8.6",
    )
    assert (second.name, second.memory_bytes) == ("Some Other GPU", None)


def test_no_capture_is_left_out() -> None:
    assert_covered("nvidia-smi-capture", {f"{machine}.txt" for machine in MACHINES} | {"nvge__query.txt"})


# Text of our own, so that something runs where the samples are not


@pytest.mark.shows("P21")
def test_warnings_before_and_unknown_words_within_are_tolerated() -> None:
    text = (
        "WARNING: infoROM is corrupted\n"
        "index, uuid, memory.used [MiB], utilization.gpu [%], fan.speed [%], power.draw [W]\n"
        "0, GPU-1, 12 MiB, [Not Supported], [N/A], [Unknown Error]\n"
        "1, GPU-2, 7, 3, 40, 51.5\n"
    )
    first, second = parse_query_gpu(text).gpus
    assert (first.memory_used_bytes, first.utilization, first.telemetry) == (12 * MIB, None, {})
    assert (second.memory_used_bytes, second.utilization) == (7 * MIB, 0.03)
    assert second.telemetry == {"fan_share": 0.4, "power_watts": 51.5}
    assert parse_list("GPU 0: A \x1b[31m(UUID: GPU-ab)\x1b[0m\nnoise\n")[0].uuid == "GPU-ab"
    assert parse_csv("No devices were found\n") == ()
    assert parse_monitor("# gpu    pwr\n# Idx      W\n    0      -\n    x      1\n")[0].values == {}
