"""Intel GPUs: xpu-smi's words, tiles, the drivers' files. Values of samples were read in the files."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupool.discovery import intel, intel_gpu_top, xpu_smi
from gpupool.discovery.base import Device, DeviceProcess, LinkType
from gpupool.discovery.drm_files import cards
from gpupool.discovery.tool_source import Told
from tests.gpupool.discovery.machine import write
from tests.gpupool.discovery.samples import assert_covered, read

MIB, GIB = 1 << 20, 1 << 30
NODE = "abc123de-1111-2222-3333-444444444444"


def devices(outputs: dict[str, object], cards: list[dict[str, str]] | None = None) -> tuple[Device, ...]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in outputs.items()}
    return tuple(intel.devices(Told(outputs=texts, cards=cards or []), NODE))


def listed(number: int, address: str, **more: Any) -> dict[str, Any]:
    return {
        "device_id": number,
        "device_name": "Intel(R) Data Center GPU Max 1550",
        "pci_bdf_address": address,
        "pci_device_id": "0xbd5",
        "uuid": "00000000-0000-0000-0000-0bd500008086",
        **more,
    }


def stats(**metrics: float) -> list[dict[str, Any]]:
    return [{"metrics_type": f"XPUM_STATS_{name}", "value": value} for name, value in metrics.items()]


def test_every_file_is_in_a_test() -> None:
    assert_covered("intel", {"xpum__discovery.json", "netdata__intel_gpu_top.json"})


def test_discovery_alone_tells_of_no_memory_and_so_nothing_can_be_claimed() -> None:
    (gpu,) = devices({"discovery": read("intel", "xpum__discovery.json")})
    assert (gpu.index, gpu.name, gpu.pci_address) == (0, "Intel(R) Graphics [0x020a]", "0000:4d:00.0")
    assert (gpu.vendor, gpu.capability.architecture) == ("intel", "xe-hp")
    assert (gpu.memory_bytes, gpu.allocatable) == (None, False)
    assert (gpu.facts["uuid"], gpu.facts["function"]) == ("00000000-0000-0000-0000-020a00008086", "physical")
    # That UUID is of the model: every such card of every node has it.
    assert gpu.stable_id == "Graphics_0x020a_0000:4d:00.0_abc123de"
    assert xpu_smi.device_ids(read("intel", "xpum__discovery.json")) == [0]


def test_intel_gpu_top() -> None:
    reading = intel_gpu_top.reading(read("intel", "netdata__intel_gpu_top.json"))
    assert reading is not None
    assert reading.utilization == pytest.approx(0.96092944)  # Render/3D, the busiest
    assert reading.telemetry == {"sm_clock_mhz": 1253.085184, "power_watts": 3.233528, "package_watts": 16.658620}
    assert reading.processes == (DeviceProcess(pid=2727837, name="ffmpeg"),)


@pytest.mark.shows("R12")
def test_a_card_of_one_tile_with_details_and_statistics() -> None:
    (gpu,) = devices(
        {
            "discovery": {"device_list": [listed(0, "0000:29:00.0")]},
            "detail 0": "Warning: limited rights\n"
            + json.dumps(listed(0, "0000:29:00.0", memory_physical_size_byte=str(48 * GIB), number_of_tiles="1",
                                driver_version="I915_23.10", serial_number="unknown", number_of_eus="448",
                                device_name="Intel(R) Data Center GPU Max 1100")),
            "stats 0": {
                "device_level": stats(MEMORY_USED=2048.5, GPU_UTILIZATION=25, POWER=180.5, GPU_FREQUENCY=1550,
                                      GPU_CORE_TEMPERATURE=51, MEMORY_TEMPERATURE=44, MEMORY_BANDWIDTH=10)
            },
            "topology 0": {"affinity_localcpulist": "0-23,48-71"},
        }
    )  # fmt: skip
    assert gpu.stable_id == "Data_Center_GPU_Max_1550_0000:29:00.0_abc123de"  # by the PCI device id
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (48 * GIB, int(2048.5 * MIB))
    assert (gpu.utilization, gpu.temperature_celsius, gpu.allocatable) == (0.25, 51.0, True)
    assert gpu.telemetry == {
        "power_watts": 180.5, "sm_clock_mhz": 1550.0, "memory_celsius": 44.0, "memory_utilization": 0.1,
    }  # fmt: skip
    assert (gpu.facts["driver"], gpu.facts["execution_units"], gpu.facts["local_cpus"]) == (
        "I915_23.10", "448", "0-23,48-71",
    )  # fmt: skip
    assert "serial" not in gpu.facts
    assert (gpu.capability.architecture, gpu.capability.peak_tflops, gpu.tags) == (
        "xe-hpc", 352.3, ("Max-1100-48GB", "Max-1100"),
    )  # fmt: skip


MATRIX = """
         GPU 0/0|GPU 0/1|GPU 1/0|GPU 1/1|CPU Affinity
GPU 0/0 |S      |MDF    |XL*    |XL16   |0-23,48-71
GPU 0/1 |MDF    |S      |XL16   |XL*    |0-23,48-71
GPU 1/0 |XL*    |XL16   |S      |MDF    |24-47,72-95
GPU 1/1 |XL16   |XL*    |MDF    |S      |24-47,72-95
"""


@pytest.mark.shows("R27")
def test_tiles_are_allocatable_and_their_whole_is_not() -> None:
    details = {"memory_physical_size_byte": str(128 * GIB), "number_of_tiles": "2"}
    found = devices(
        {
            "discovery": {"device_list": [listed(0, "0000:29:00.0"), listed(1, "0000:3a:00.0")]},
            "detail 0": listed(0, "0000:29:00.0", **details),
            "detail 1": listed(1, "0000:3a:00.0", **details),
            "stats 0": {
                "tile_level": [
                    {"tile_id": 0, "data_list": stats(MEMORY_USED=100, GPU_UTILIZATION=90, POWER=200)},
                    {"tile_id": 1, "data_list": stats(MEMORY_USED=61, GPU_UTILIZATION=0, POWER=50)},
                ]
            },
            "matrix": MATRIX,
        }
    )
    whole, first, second, *others = found
    # As the runtime counts them where each tile is a device, in the order of the bus.
    assert [device.index for device in (first, second, others[1], others[2])] == [0, 1, 2, 3]
    assert (whole.allocatable, whole.memory_bytes, len(others)) == (False, 128 * GIB, 3)
    assert whole.telemetry["power_watts"] == 250.0  # of both tiles
    assert whole.utilization == 0.9
    for number, (tile, used, busy) in enumerate(((first, 100, 0.9), (second, 61, 0.0))):
        assert (tile.stable_id, tile.partition_of) == (f"{whole.stable_id}.t{number}", whole.stable_id)
        assert (tile.memory_bytes, tile.memory_used_bytes, tile.utilization) == (64 * GIB, used * MIB, busy)
        assert tile.capability.compute_units == 64
    assert {link.peer: (link.kind, link.lanes) for link in first.links} == {
        second.stable_id: (LinkType.C2C, None),  # dies of one card
        others[1].stable_id: (LinkType.XELINK, None),  # XL*: by way of another tile
        others[2].stable_id: (LinkType.XELINK, 16),
    }


def test_the_drivers_files_without_any_tool(tmp_path: Path) -> None:
    card = "sys/class/drm/card1/device"
    write(
        tmp_path,
        {
            f"{card}/vendor": "0x8086", f"{card}/device": "0x56c0", f"{card}/numa_node": "0",
            f"{card}/uevent": "DRIVER=i915\nPCI_SLOT_NAME=0000:4d:00.0\n",
            f"{card}/lmem_total_bytes": str(14 * GIB), f"{card}/lmem_avail_bytes": str(10 * GIB),
            f"{card}/hwmon/hwmon2/power1_input": "75000000", f"{card}/hwmon/hwmon2/temp1_input": "48000",
            "sys/class/drm/card1/gt_act_freq_mhz": "2050",
        },
    )  # fmt: skip
    (gpu,) = devices({}, cards(tmp_path, "0x8086"))
    assert (gpu.name, gpu.pci_address) == ("Intel(R) Data Center GPU Flex 170", "0000:4d:00.0")
    assert (gpu.memory_bytes, gpu.memory_used_bytes, gpu.numa_node) == (14 * GIB, 4 * GIB, 0)
    assert (gpu.temperature_celsius, gpu.telemetry) == (48.0, {"power_watts": 75.0, "sm_clock_mhz": 2050.0})
    assert gpu.allocatable


def test_tiles_in_the_files_of_the_xe_driver(tmp_path: Path) -> None:
    card = "sys/class/drm/card0/device"
    sizes = {f"{card}/tile{number}/physical_vram_size_bytes": hex(64 * GIB) for number in (0, 1)}
    write(tmp_path, {f"{card}/vendor": "0x8086", f"{card}/device": "0x0bd5",
                     f"{card}/uevent": "DRIVER=xe\nPCI_SLOT_NAME=0000:29:00.0\n", **sizes})  # fmt: skip
    whole, *tiles = devices({}, cards(tmp_path, "0x8086"))
    assert (whole.allocatable, whole.memory_bytes) == (False, 128 * GIB)
    assert [tile.memory_bytes for tile in tiles] == [64 * GIB, 64 * GIB]


def test_a_processors_own_gpu_has_no_memory_to_claim(tmp_path: Path) -> None:
    """procfs's own fixture: the second card is a laptop's."""
    for name, text in json.loads(read("sysfs", "procfs__sys_class_drm.json")).items():
        if "/card1/device/" in name:
            write(tmp_path, {name: text})
    write(tmp_path, {"sys/class/drm/card1/device/vendor": "0x8086"})
    (gpu,) = devices({}, cards(tmp_path, "0x8086"))
    assert (gpu.name, gpu.pci_address) == ("Intel(R) UHD Graphics 620", "0000:00:02.0")
    assert (gpu.memory_bytes, gpu.allocatable, gpu.facts["driver"]) == (None, False, "i915")


@pytest.mark.shows("P21")
@pytest.mark.parametrize("noise", ["", "Error: Level Zero Initialization Error", '{"error": "device not found"}', "[]"])
def test_a_tool_that_only_complains_finds_nothing(noise: str) -> None:
    assert devices({"discovery": noise}) == ()


def test_a_number_of_tiles_that_no_gpu_has_is_not_believed() -> None:
    device = '{"device_id": 0, "pci_bdf_address": "0000:4d:00.0", "number_of_tiles": "1000000000000"}'
    (reading,) = xpu_smi.readings({"discovery": f'{{"device_list": [{device}]}}'})
    assert reading.tiles is None
