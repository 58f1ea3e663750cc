"""Outputs of AMD's tools from several versions. The expected values were read in the files."""

from dataclasses import dataclass

import pytest

from gpupool.discovery import amd, amd_exporter, amd_smi, rocm_smi
from gpupool.discovery.base import LinkType
from gpupool.discovery.gpu_catalogue import capability, product, tags
from gpupool.discovery.reading import part_of
from gpupool.discovery.tolerant import json_in, mappings
from gpupool.discovery.tool_source import Told
from tests.gpupool.discovery.samples import assert_covered, read

MIB = 1 << 20
NODE = "abc123de-1111-2222-3333-444444444444"


@dataclass(frozen=True)
class Expected:
    """One GPU of a file; None is what the file does not say."""

    index: int
    address: str
    stable_id: str
    name: str
    architecture: str
    total: int
    used: int
    celsius: float
    watts: float | None
    limit: float
    sclk: float
    mclk: float
    numa: int | None = 0
    links: int = 0
    facts: tuple[tuple[str, str], ...] = ()


MI100 = "AMD Arcturus GL-XL [Instinct MI100]"
NAVI = "AMD Navi 22 [Radeon RX 6700/6700 XT / 6800M]"
NAVI_ID = "Radeon_RX_6700_XT_0000:07:00.0_abc123de"
V32, V16, V12 = 34342961152, 17163091968, 12868124672


def mi100(index: int, address: str, celsius: float, watts: float) -> Expected:
    stable = f"Instinct_MI100_{address}_abc123de"  # Unique ID: N/A
    return Expected(index, address, stable, MI100, "gfx908", V32, 6782976, celsius, watts, 290, 300, 1200, links=5)


def mi100_new(index: int, address: str, uid: str, celsius: float, watts: float) -> Expected:
    return Expected(
        index, address, f"GPU-{uid}", MI100, "gfx908", V32, 6750208, celsius, watts, 290, 300, 1200, numa=1, links=3
    )


FILES = {
    "pai__rocm_smi.json": [
        Expected(
            1, "0000:03:00.0", "GPU-7c96610172fc1a8d", "AMD Vega 20", "gfx906", V16, 325533696, 33, 34, 250, 808, 350,
            numa=None, facts=(("driver", "5.3.0-26-generic"),),
        ),
        Expected(
            2, "0000:06:00.0", "GPU-249220e172fc1a88", "AMD Vega 20", "gfx906", V16, 19095552, 26, 24, 250, 808, 350,
            numa=None,
        ),
    ],
    "telegraf__mi100_rocm571.json": [
        mi100(0, "0000:1e:00.0", 34, 39),
        mi100(1, "0000:22:00.0", 33, 37),
        mi100(2, "0000:3f:00.0", 34, 35),
        mi100(3, "0000:43:00.0", 35, 39),
        mi100(4, "0000:46:00.0", 34, 39),
        mi100(5, "0000:49:00.0", 35, 40),
    ],
    "telegraf__mi100_rocm602.json": [
        mi100_new(0, "0000:83:00.0", "79ccd55167a2124a", 55, 36),
        mi100_new(1, "0000:a3:00.0", "04edfb117a17a07d", 58, 44),  # written as 0x4edfb117a17a07d
        mi100_new(2, "0000:c3:00.0", "d4a9ec48d03d261d", 57, 43),
        mi100_new(3, "0000:e3:00.0", "1b9dd972253c3736", 53, 39),
    ],
    "telegraf__rx6700xt_rocm430.json": [  # "Card series": "0x1002"
        Expected(
            0, "0000:07:00.0", NAVI_ID, "AMD Radeon RX 6700 XT", "gfx1031", V12, 1622728704, 47, 6, 211, 500, 96,
        )
    ],
    "telegraf__rx6700xt_rocm571.json": [
        Expected(0, "0000:07:00.0", NAVI_ID, NAVI, "gfx1031", V12, 1564491776, 47, 6, 211, 500, 96)
    ],
    "telegraf__rx6700xt_rocm602.json": [  # power: "N/A (Secondary die)"
        Expected(0, "0000:07:00.0", NAVI_ID, NAVI, "gfx1031", V12, 1572757504, 47, None, 211, 500, 96)
    ],
    "telegraf__rx6700xt_rocm612.json": [
        Expected(0, "0000:07:00.0", NAVI_ID, NAVI, "gfx1031", V12, 1572745216, 47, 6, 211, 0, 96)
    ],
    "telegraf__vega-10-XT.json": [
        Expected(
            0, "0000:04:00.0", "GPU-02150e7d042a1124", "AMD Radeon Pro WX 9100", "gfx900", V16, 17776640, 40, 15, 170,
            1269, 167,
        )
    ],
    "telegraf__vega-20-WKS-GL-XE.json": [  # links to seven others, which the file does not list
        Expected(
            0, "0000:63:00.0", "GPU-02f048617326b1ea", "AMD Radeon Instinct MI50 32GB", "gfx906", V32, 10850304, 38, 26,
            225, 1725, 1000, facts=(("serial_number", "692024000810"), ("driver", "5.9.17")),
        )
    ],
}  # fmt: skip


def test_every_file_is_in_a_table() -> None:
    assert_covered("rocm-smi-json", set(FILES))
    assert_covered("amd-smi-json", {"dme__mi210_static.json"})
    assert_covered("amd-metrics", {"ROCm__device-metrics-exporter__metrics_mini.txt"})
    prefix = "thamada__MI300X"
    assert_covered(
        "rocm-smi-text",
        {
            f"{prefix}_smi_table.txt",
            f"{prefix}_x4_rocminfo_table.txt",
            f"{prefix}_x4_smi_q.txt",
            f"{prefix}_x4_smi_table.txt",
        },
    )


@pytest.mark.parametrize("file", FILES)
def test_rocm_smi_json(file: str) -> None:
    devices = amd.devices(Told(outputs={"rocm": read("rocm-smi-json", file)}), NODE)
    assert len(devices) == len(FILES[file])
    for device, expected in zip(devices, FILES[file], strict=True):
        assert (device.index, device.pci_address, device.stable_id) == (
            expected.index, expected.address, expected.stable_id,
        )  # fmt: skip
        assert (device.vendor, device.name, device.capability.architecture) == (
            "amd", expected.name, expected.architecture,
        )  # fmt: skip
        assert (device.memory_bytes, device.memory_used_bytes) == (expected.total, expected.used)
        assert (device.temperature_celsius, device.utilization) == (expected.celsius, 0.0)
        assert device.telemetry.get("power_watts") == expected.watts
        assert device.telemetry["power_limit_watts"] == expected.limit
        assert (device.telemetry["sm_clock_mhz"], device.telemetry["memory_clock_mhz"]) == (
            expected.sclk, expected.mclk,
        )  # fmt: skip
        assert device.numa_node == expected.numa
        assert len(device.links) == expected.links
        assert {link.kind for link in device.links} <= {LinkType.PCIE_HOST}  # two hops: of one processor
        assert set(expected.facts) <= set(device.facts.items())
        assert device.allocatable


def test_a_process_without_a_gpu_open_is_on_none() -> None:
    """`"PID104225": "mlir-cpu-runner, 0, 0, 0, 0"`."""
    for device in amd.devices(Told(outputs={"rocm": read("rocm-smi-json", "telegraf__mi100_rocm571.json")}), NODE):
        assert device.processes == ()


def test_amd_smi_static_of_an_mi210() -> None:
    (reading,) = amd_smi.readings({"static": read("amd-smi-json", "dme__mi210_static.json")})
    assert (reading.name, reading.device_id, reading.architecture) == ("AMD Instinct MI210", "0x740f", "gfx90a")
    assert (reading.compute_units, reading.memory_bytes, reading.numa_node) == (104, 65520 * MIB, 1)
    assert reading.telemetry == {"power_limit_watts": 300.0, "pcie_width_max": 16.0, "bad_page_threshold": 655.0}
    assert (reading.facts["memory_vendor"], reading.facts["ecc"], reading.facts["pcie"]) == (
        "HYNIX", "ENABLED", "Gen 4",
    )  # fmt: skip
    assert "serial" not in reading.facts  # "product_serial": "0"
    assert (reading.memory_used_bytes, reading.utilization, reading.unique_id) == (None, None, "")
    known = capability(reading.name, reading.architecture, reading.compute_units)
    assert known.precisions == {"fp64", "fp32", "fp16", "bf16", "int8"}
    assert (known.tensor_cores, known.peak_tflops) == (True, 181.0)


def test_the_metrics_exporters_megabytes_are_decimal() -> None:
    (reading,) = amd_exporter.readings(read("amd-metrics", "ROCm__device-metrics-exporter__metrics_mini.txt"))
    assert reading.unique_id == "GPU-6699c0a8-4200-4242-037f-f97e6cae0f09"
    assert (reading.memory_bytes, reading.utilization) == (68_702_000_000, 0.0)  # 65520 MiB
    assert (reading.telemetry, reading.facts) == ({"power_watts": 41.0}, {"serial_number": "692247001282"})


MI300X = [  # address, unique id, junction, watts, sclk, as `rocm-smi -a` says
    ("0000:26:00.0", "8d1457e2c20f59d2", 35.0, 133.0, 137.0),
    ("0000:46:00.0", "b4fa34630e85d42a", 37.0, 130.0, 133.0),
    ("0000:65:00.0", "e8986800e182538a", 34.0, 131.0, 141.0),
    ("0000:85:00.0", "eff71edc82169115", 39.0, 136.0, 132.0),
]


def test_long_text_and_rocminfo_together_tell_what_neither_tells_alone() -> None:
    """In that virtual machine rocm-smi says nothing of memory sizes; rocminfo does."""
    long_text = read("rocm-smi-text", "thamada__MI300X_x4_smi_q.txt")
    rocminfo = read("rocm-smi-text", "thamada__MI300X_x4_rocminfo_table.txt")
    assert [reading.memory_bytes for reading in rocm_smi.readings_of_text(long_text)] == [None] * 4
    devices = amd.devices(Told(outputs={"rocm": long_text, "rocminfo": rocminfo}), NODE)
    for index, (device, (address, uid, celsius, watts, sclk)) in enumerate(zip(devices, MI300X, strict=True)):
        assert (device.index, device.stable_id, device.pci_address) == (index, f"GPU-{uid}", address)
        assert device.name == "AMD Instinct MI300X OAM"
        assert device.memory_bytes == 201310208 * 1024  # of rocminfo's first pool
        assert device.memory_used_bytes is None
        assert (device.temperature_celsius, device.telemetry["power_watts"]) == (celsius, watts)
        assert (device.telemetry["sm_clock_mhz"], device.telemetry["power_limit_watts"]) == (sclk, 750.0)
        assert (device.facts["compute_partition"], device.facts["memory_partition"]) == ("SPX", "NPS1")
        assert (device.facts["driver"], device.traceable_id) == (
            "6.7.0", f"Instinct_MI300X_{address}_abc123de",
        )  # fmt: skip
        assert (device.capability.architecture, device.capability.compute_units) == ("gfx942", 304)
        assert device.tags == ("MI300X-192GB", "MI300X")


def test_processors_in_rocminfo_are_no_gpus() -> None:
    readings = rocm_smi.readings_of_rocminfo(read("rocm-smi-text", "thamada__MI300X_x4_rocminfo_table.txt"))
    assert [(reading.pci_address, reading.unique_id) for reading in readings] == [
        (address, f"GPU-{uid}") for address, uid, *_ in MI300X
    ]
    assert {reading.architecture for reading in readings} == {"gfx942"}


@pytest.mark.parametrize(
    ("file", "junctions", "watts"),
    [
        ("thamada__MI300X_smi_table.txt", [41.0], [121.0]),
        ("thamada__MI300X_x4_smi_table.txt", [35.0, 37.0, 34.0, 38.0], [133.0, 131.0, 131.0, 137.0]),
    ],
)
def test_the_short_table_with_a_degree_sign_that_was_spoilt(
    file: str, junctions: list[float], watts: list[float]
) -> None:
    readings = rocm_smi.readings_of_table(read("rocm-smi-text", file))
    assert [reading.temperature_celsius for reading in readings] == junctions
    assert [reading.telemetry["power_watts"] for reading in readings] == watts
    for index, reading in enumerate(readings):
        assert (reading.index, reading.name, reading.device_id) == (index, "AMD Instinct MI300X", "0x74a1")
        assert (reading.compute_partition, reading.memory_partition) == ("SPX", "NPS1")
        assert (reading.telemetry["memory_clock_mhz"], reading.telemetry["power_limit_watts"]) == (900.0, 750.0)
        assert (reading.utilization, reading.memory_bytes) == (0.0, None)


@pytest.mark.parametrize(
    ("file", "tag", "architecture", "units"),
    [
        ("gpustack_runtime__detect_output_amd_mi300x.json", ("MI300X-192GB", "MI300X"), "gfx942", 304),
        ("gpustack_runtime__detect_output_amd_mi308x.json", ("MI308X-192GB", "MI308X"), "gfx942", 80),
        ("gpustack_runtime__detect_output_amd_rx7800xt.json", ("RX-7800-XT-16GB", "RX-7800-XT"), "gfx1101", 60),
    ],
)
def test_the_catalogue_agrees_with_what_another_project_detected(
    file: str, tag: tuple[str, str], architecture: str, units: int
) -> None:
    detected = list(mappings(json_in(read("gpustack-detect", file))))
    assert {gpu["cores"] for gpu in detected} == {units}
    for gpu in detected:
        name, mib = str(gpu["name"]), gpu["memory"]
        assert isinstance(mib, int)
        known = product(name)
        assert known is not None
        assert (known.architecture, known.compute_units) == (architecture, units)
        assert gpu["compute_capability"] == architecture
        assert tags(name, mib * MIB) == tag


@pytest.mark.shows("R26")
def test_the_mi300xs_hbm_and_its_interconnect_are_two_figures() -> None:
    known = product("AMD Instinct MI300X OAM")
    assert known is not None
    assert known.memory_bandwidth == 5.3e12  # HBM3: often told as 5.2 TB/s, and as if GPUs reached each other so fast
    assert known.link_bandwidth == 7 * 128e9  # seven XGMI links
    shown = capability("AMD Instinct MI300X OAM", "gfx942", 304)
    assert (shown.memory_bandwidth, shown.link_bandwidth) == (5.3e12, 896e9)
    part = part_of(shown, 8)
    assert (part.compute_units, part.memory_bandwidth, part.link_bandwidth) == (38, 5.3e12 / 8, None)
