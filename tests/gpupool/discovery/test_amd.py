"""AMD GPUs: what amd-smi says in its several shapes, divided GPUs, the driver's files."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpupool.agent.facts import given_device
from gpupool.discovery import amd, amd_smi
from gpupool.discovery.base import Device, DeviceProcess, LinkType
from gpupool.discovery.drm_files import cards
from gpupool.discovery.tool_source import Told
from gpupool.engines.base import EngineArgumentsRefused, device_environment
from tests.gpupool.discovery.samples import read

MIB, GIB = 1 << 20, 1 << 30
NODE = "abc123de-1111-2222-3333-444444444444"
WARNING = "WARNING: User is missing the following required groups: render, video.\n"


def static(gpu: int, *, bdf: str, serial: str = "0x8D1457E2C20F59D2", **more: Any) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "asic": {
            "market_name": "AMD Instinct MI300X",
            "device_id": "0x74a1",
            "asic_serial": serial,
            "num_compute_units": 304,
            "target_graphics_version": "gfx942",
        },
        "bus": {"bdf": bdf, "max_pcie_width": 16},
        "limit": {"socket_power": {"value": 750, "unit": "W"}},
        "driver": {"version": "6.12.12"},
        "numa": {"node": 0},
        "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
        **more,
    }


def metric(gpu: int, **more: Any) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": {"value": 37, "unit": "%"}, "umc_activity": "12 %"},
        "power": {"socket_power": {"value": 412, "unit": "W"}, "throttle_status": "UNTHROTTLED"},
        "clock": {"gfx_0": {"clk": {"value": 1800, "unit": "MHz"}}, "mem_0": {"clk": {"value": 1300, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 61, "unit": "C"}, "mem": {"value": 44, "unit": "C"}},
        "pcie": {"width": 16, "replay_count": 0},
        "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 0},
        "fan": {"usage": "N/A"},
        "mem_usage": {
            "total_vram": {"value": 196592, "unit": "MB"},
            "used_vram": {"value": 80110, "unit": "MB"},
            "total_gtt": {"value": 515847, "unit": "MB"},
            "used_gtt": {"value": 20, "unit": "MB"},
        },
        **more,
    }


def devices(cards: list[dict[str, str]] | None = None, **outputs: object) -> tuple[Device, ...]:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in outputs.items()}
    return tuple(amd.devices(Told(outputs=texts, cards=cards or []), NODE))


@pytest.mark.shows("P21", "R12")
def test_amd_smi_with_a_warning_before_its_json_and_values_in_several_shapes() -> None:
    (gpu,) = devices(
        static=WARNING + json.dumps({"gpu_data": [static(0, bdf="0000:26:00.0")]}),
        metric=WARNING + json.dumps([metric(0)]),  # older versions: a bare array
        process=[
            {
                "gpu": 0,
                "process_list": [
                    {"process_info": {"name": "python3", "pid": 4242, "memory_usage": {"vram_mem": "8192 MB"}}},
                    {"process_info": "No running processes detected"},
                ],
            }
        ],
    )
    assert (gpu.stable_id, gpu.vendor, gpu.health) == ("GPU-8d1457e2c20f59d2", "amd", "ok")
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (196592 * MIB, 80110 * MIB)
    assert (gpu.utilization, gpu.temperature_celsius) == (0.37, 61.0)
    assert gpu.processes == (DeviceProcess(pid=4242, name="python3", memory_bytes=8192 * MIB),)
    assert gpu.telemetry == {
        "power_watts": 412.0, "power_limit_watts": 750.0, "throttled": 0.0, "sm_clock_mhz": 1800.0,
        "memory_clock_mhz": 1300.0, "memory_utilization": 0.12, "memory_celsius": 44.0, "ecc_corrected": 3.0,
        "ecc_uncorrected": 0.0, "pcie_replays": 0.0, "pcie_width": 16.0, "pcie_width_max": 16.0,
        "gtt_used_bytes": 20.0 * MIB,
    }  # fmt: skip
    assert [(region.kind, region.size_bytes) for region in gpu.regions] == [
        ("vram", 196592 * MIB),
        ("pinned", 515847 * MIB),
    ]
    assert gpu.capability.peak_tflops == 1307.4
    assert "fp8" in gpu.capability.precisions


@pytest.mark.parametrize("metrics", ["", "amd-smi: command failed", "[]", '{"gpu_data": [{"gpu": 0}]}'])
def test_without_metrics_the_gpu_is_there_and_its_readings_are_unknown(metrics: str) -> None:
    (gpu,) = devices(static=[static(0, bdf="0000:26:00.0")], metric=metrics)
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (196592 * MIB, None)
    assert (gpu.utilization, gpu.temperature_celsius) == (None, None)


@pytest.mark.parametrize(
    ("serial", "uuid", "known"),
    [
        ("0x8D1457E2C20F59D2", None, "GPU-8d1457e2c20f59d2"),
        ("0x4edfb117a17a07d", None, "GPU-04edfb117a17a07d"),
        ("N/A", "8dff74a1-0000-1000-8014-57e2c20f59d2", "GPU-8d1457e2c20f59d2"),  # the tool's own name of that chip
        ("0x0000000000000000", "00ff73df-0000-1000-8000-000000000000", ""),
        ("N/A", "N/A", ""),
    ],
)
def test_a_chip_has_one_name_whichever_tool_tells_of_it(serial: str, uuid: str | None, known: str) -> None:
    assert amd_smi.unique_id(serial, uuid) == known


def mode(gpu: int, part: int, name: str = "N/A", memory: str = "N/A") -> dict[str, Any]:
    return {"gpu_id": gpu, "memory": memory, "accelerator_type": name, "partition_id": part}


@pytest.mark.shows("P20")
@pytest.mark.parametrize(("name", "count"), [("DPX", 2), ("QPX", 4), ("CPX", 8)])
def test_a_divided_gpu_lists_all_its_parts_with_their_share_of_the_memory(name: str, count: int) -> None:
    """Each part is a GPU of its own to amd-smi, at the same slot, and each tells the memory of the whole."""
    found = devices(
        static=[static(number, bdf=f"0000:26:00.{number}") for number in range(count)],
        partition={
            "current_partition": [mode(0, 0, name, "NPS1"), *(mode(number, number) for number in range(1, count))]
        },
    )
    whole, *parts = found
    assert (whole.stable_id, whole.allocatable, whole.memory_bytes) == ("GPU-8d1457e2c20f59d2", False, 196592 * MIB)
    assert [part.stable_id for part in parts] == [f"GPU-8d1457e2c20f59d2.p{number}" for number in range(count)]
    assert {part.memory_bytes for part in parts} == {196592 * MIB // count}
    assert sum(part.memory_bytes or 0 for part in parts) <= 196592 * MIB
    for number, part in enumerate(parts):
        assert (part.allocatable, part.partition_of, part.index) == (True, whole.stable_id, number)
        assert part.capability.compute_units == 304 // count
        assert (part.facts["compute_partition"], part.facts["memory_partition"]) == (name, "NPS1")
        assert part.tags == (f"MI300X-{name}",)


@pytest.mark.shows("P20")
def test_a_tool_that_tells_each_parts_own_memory_is_believed() -> None:
    """24 GiB each, eight of them: the sum is the whole, and no part is divided again."""
    vram = {"type": "HBM3", "size": {"value": 24574, "unit": "MB"}}
    whole, *parts = devices(
        static=[static(number, bdf=f"0000:26:00.{number}", vram=vram) for number in range(8)],
        partition=[mode(0, 0, "CPX", "NPS4"), *(mode(number, number) for number in range(1, 8))],
    )
    assert whole.memory_bytes == 8 * 24574 * MIB
    assert {part.memory_bytes for part in parts} == {24574 * MIB}


@pytest.mark.shows("P20")
def test_parts_that_a_tool_does_not_list_are_there_all_the_same() -> None:
    """rocm-smi, and the driver's files, know the card and its mode."""
    card = {"card0": {"Device Name": "AMD Instinct MI300X", "PCI Bus": "0000:26:00.0", "Unique ID": "0x8d1457e2c2",
                      "VRAM Total Memory (B)": str(192 * GIB), "VRAM Total Used Memory (B)": str(60 * GIB),
                      "Compute Partition": "CPX", "Memory Partition": "NPS1"}}  # fmt: skip
    whole, *parts = devices(rocm=card)
    assert (whole.allocatable, whole.memory_used_bytes) == (False, None)
    assert len(parts) == 8
    assert {part.memory_bytes for part in parts} == {24 * GIB}
    assert {part.memory_used_bytes for part in parts} == {None}  # 60 GiB are of the whole: whose is not known


def test_a_part_is_run_on_only_by_a_name_of_its_own() -> None:
    """Newer drivers give each part a UUID; of an older one, that of the whole tells no part apart."""
    agent = "*******\nAgent 2\n*******\n  Name: gfx942\n  Uuid: {uuid}\n  Device Type: GPU\n  BDFID: {bdf}\n"
    own = {0: "GPU-8d1457e2c20f59d2", 1: "GPU-00000000000000b1"}
    _, first, second = devices(
        static=[static(number, bdf=f"0000:26:00.{number}") for number in (0, 1)],
        partition=[mode(0, 0, "DPX"), mode(1, 1)],
        rocminfo="".join(agent.format(uuid=uuid, bdf=0x2600 + number) for number, uuid in own.items()),
    )
    assert second.facts["uuid"] == "GPU-00000000000000b1"
    assert first.facts["uuid"] == "part 0 of GPU-8d1457e2c20f59d2"
    assert device_environment([given_device(second)])["ROCR_VISIBLE_DEVICES"] == "GPU-00000000000000b1"
    with pytest.raises(EngineArgumentsRefused, match="The UUID of part 0 of GPU-8d1457e2c20f59d2 is not known"):
        device_environment([given_device(first)])


def test_virtual_functions_in_one_slot_are_gpus_of_their_own() -> None:
    found = devices(static=[static(0, bdf="0000:05:02.0", serial="0x1111111111111111"),
                            static(1, bdf="0000:05:02.1", serial="0x2222222222222222")])  # fmt: skip
    assert [gpu.stable_id for gpu in found] == ["GPU-1111111111111111", "GPU-2222222222222222"]
    assert all(gpu.allocatable and gpu.memory_bytes == 196592 * MIB for gpu in found)


@pytest.mark.shows("R27")
def test_xgmi_links_and_processors_between_gpus() -> None:
    def link(gpu: int, bdf: str, kind: str, hops: int, bandwidth: str) -> dict[str, Any]:
        return {
            "gpu": gpu, "bdf": bdf, "link_status": "ENABLED", "link_type": kind, "num_hops": hops,
            "bandwidth": bandwidth,
        }  # fmt: skip

    first, second, third = devices(
        static=[
            static(0, bdf="0000:0c:00.0", serial="0x0a"),
            static(1, bdf="0000:15:00.0", serial="0x0b"),
            static(2, bdf="0000:9f:00.0", serial="0x0c"),
        ],
        topology=[
            {
                "gpu": 0,
                "bdf": "0000:0c:00.0",
                "links": [
                    link(0, "0000:0c:00.0", "SELF", 0, "N/A"),
                    link(1, "0000:15:00.0", "XGMI", 1, "64000-64000"),
                    link(2, "0000:9f:00.0", "PCIE", 3, "N/A"),
                ],
            }
        ],
    )
    assert [(link.peer, link.kind, link.bandwidth_bytes) for link in first.links] == [
        (second.stable_id, LinkType.XGMI, 128_000_000_000),  # 64 GB/s each way
        (third.stable_id, LinkType.SYSTEM, None),  # three hops: by way of two processors
    ]
    assert second.links == ()


def write_sysfs(root: Path, folder: str, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def sample_tree(root: Path, sample: str, prefix: str = "") -> None:
    for name, text in json.loads(read("sysfs", sample)).items():
        if name.startswith(prefix) and "\x00" not in name:
            path = root / name.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def test_the_drivers_files_of_a_vega(tmp_path: Path) -> None:
    """procfs's own fixture; values read in the file."""
    sample_tree(tmp_path, "procfs__sys_class_drm.json")
    (gpu,) = devices(cards=cards(tmp_path, "0x1002"))
    assert (gpu.stable_id, gpu.pci_address, gpu.name) == (
        "GPU-0123456789abcdef", "0000:09:00.0", "AMD Radeon RX Vega",
    )  # fmt: skip
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (8573157376, 1490378752)
    assert (gpu.utilization, gpu.numa_node) == (0.04, None)  # -1: the firmware does not say
    assert gpu.regions[1].size_bytes == 8573157376  # GTT
    assert (gpu.telemetry["sm_clock_mhz"], gpu.telemetry["memory_clock_mhz"]) == (852.0, 167.0)
    assert gpu.telemetry["gtt_used_bytes"] == 144560128.0
    assert (gpu.capability.architecture, gpu.facts["vbios_version"]) == ("gfx900", "115-D050PIL-100")


def test_the_drivers_files_of_an_apu(tmp_path: Path) -> None:
    """Glances' own fixture: no address, no vendor file, 2 GiB of the host's memory set apart as VRAM."""
    sample_tree(tmp_path, "glances__gpu_sysfs.json", "amd/")
    write_sysfs(tmp_path, "sys/class/drm/card0/device", {"vendor": "0x1002\n"})
    (gpu,) = devices(cards=cards(tmp_path, "0x1002"))
    assert (gpu.name, gpu.capability.architecture) == ("AMD Radeon 8060S", "gfx1151")
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (2147483648, 79949824)
    assert (gpu.utilization, gpu.temperature_celsius) == (0.10, 24.0)
    assert (gpu.telemetry["sm_clock_mhz"], gpu.telemetry["memory_clock_mhz"]) == (551.0, 300.0)


def test_files_are_fresher_and_tools_know_more(tmp_path: Path) -> None:
    device = "sys/devices/pci0000:20/0000:20:01.1/0000:26:00.0"
    files = {
        "vendor": "0x1002", "device": "0x74a1", "unique_id": "8d1457e2c20f59d2", "numa_node": "1",
        "mem_info_vram_total": str(196592 * MIB), "mem_info_vram_used": str(99 * GIB), "gpu_busy_percent": "88",
        "current_compute_partition": "SPX", "hwmon/hwmon3/temp1_input": "41000", "hwmon/hwmon3/temp1_label": "edge",
        "hwmon/hwmon3/temp2_input": "63000", "hwmon/hwmon3/temp2_label": "junction",
        "hwmon/hwmon3/power1_average": "512000000", "ras/umc_err_count": "ue: 0\nce: 7\n",
    }  # fmt: skip
    write_sysfs(tmp_path, device, files)
    (tmp_path / "sys/class/drm/card1").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card1/device").symlink_to(tmp_path / device)
    (gpu,) = devices(cards=cards(tmp_path, "0x1002"), static=[static(0, bdf="0000:26:00.0")], metric=[metric(0)])
    assert (gpu.index, gpu.name, gpu.pci_address) == (0, "AMD Instinct MI300X", "0000:26:00.0")
    assert (gpu.memory_used_bytes, gpu.utilization, gpu.temperature_celsius) == (99 * GIB, 0.88, 63.0)
    assert (gpu.telemetry["power_watts"], gpu.telemetry["edge_celsius"]) == (512.0, 41.0)
    assert (gpu.telemetry["ecc_corrected"], gpu.telemetry["ecc_uncorrected"]) == (7.0, 0.0)
    assert gpu.numa_node == 1


def test_two_cards_under_one_switch_are_near(tmp_path: Path) -> None:
    switch = "sys/devices/pci0000:20/0000:20:01.1/0000:21:00.0"
    places = [f"{switch}/0000:22:00.0/0000:23:00.0", f"{switch}/0000:22:01.0/0000:24:00.0",
              "sys/devices/pci0000:80/0000:80:01.1/0000:81:00.0"]  # fmt: skip
    for number, place in enumerate(places):
        write_sysfs(tmp_path, place, {"vendor": "0x1002", "device": "0x738c", "unique_id": f"{number + 1:016x}",
                                      "mem_info_vram_total": str(32 * GIB), "numa_node": str(number // 2)})  # fmt: skip
        (tmp_path / f"sys/class/drm/card{number}").mkdir(parents=True)
        (tmp_path / f"sys/class/drm/card{number}/device").symlink_to(tmp_path / place)
    first, second, third = devices(cards=cards(tmp_path, "0x1002"))
    assert {link.peer: link.kind for link in first.links} == {
        second.stable_id: LinkType.PCIE_SWITCH,
        third.stable_id: LinkType.SYSTEM,
    }


def test_more_used_than_there_is_is_clamped_and_said() -> None:
    memory = {"total_vram": {"value": 100, "unit": "MB"}, "used_vram": {"value": 160, "unit": "MB"}}
    (gpu,) = devices(static=[static(0, bdf="0000:26:00.0")], metric=[metric(0, mem_usage=memory)])
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (100 * MIB, 100 * MIB)
    assert gpu.facts["memory_used_reported_bytes"] == str(160 * MIB)


def test_cards_that_claim_one_id_are_told_apart_by_their_place() -> None:
    found = devices(static=[static(0, bdf="0000:26:00.0"), static(1, bdf="0000:46:00.0")])
    assert [gpu.stable_id for gpu in found] == ["GPU-8d1457e2c20f59d2", "Instinct_MI300X_0000:46:00.0_abc123de"]


def test_a_tool_that_falls_silent_makes_no_other_device_of_a_gpu() -> None:
    card = {"driver": "amdgpu", "address": "0000:07:00.0", "device": "0x73df", "mem_info_vram_total": "12868124672"}
    printed = '{"card0": {"PCI Bus": "0000:07:00.0", "Unique ID": "0x8d1457e2c20f59d2"}}'
    told = Told(cards=[card], outputs={"rocm": printed})
    (before,) = amd.devices(told, NODE)
    del told.outputs["rocm"]  # forgotten, as it has said nothing for long
    (after,) = amd.devices(told, NODE)
    assert (before.stable_id, after.stable_id) == ("GPU-8d1457e2c20f59d2",) * 2
