"""GPUs that work in the host's memory."""

import json
from pathlib import Path

import pytest

from gpupool.discovery.host import HostSource
from gpupool.discovery.uma import (
    Unity,
    machine_model,
    tegra_load,
    tegra_temperature,
    unified_memory,
    unity,
)
from tests.gpupool.discovery.samples import read

GIB = 1 << 30
JETSON = b"NVIDIA Jetson AGX Orin Developer Kit\0"
MEMINFO = "MemTotal:       64000000 kB\nMemFree:  1024 kB\nMemAvailable:   48000000 kB\n"


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize(
    ("gpu", "machine", "how"),
    [
        ("Orin (nvgpu)", JETSON.decode(), Unity.ONE_POOL), ("NVIDIA Thor", "", Unity.ONE_POOL),
        ("NVIDIA GB10", "NVIDIA_DGX_Spark", Unity.ONE_POOL), ("", "NVIDIA Jetson Orin Nano", Unity.ONE_POOL),
        ("Apple M2 Ultra", "", Unity.ONE_POOL), ("AMD Radeon 780M", "", Unity.ONE_POOL),
        ("AMD Instinct MI300A", "", Unity.ONE_POOL),
        ("NVIDIA GH200 480GB", "", Unity.COHERENT), ("NVIDIA GB200", "", Unity.COHERENT),
        ("NVIDIA H100 80GB HBM3", "", Unity.SEPARATE), ("NVIDIA GeForce RTX 4090", JETSON.decode(), Unity.SEPARATE),
        ("AMD Instinct MI300X", "", Unity.SEPARATE), ("AMD Radeon RX 7800 XT", "", Unity.SEPARATE),
        ("NVIDIA B200", "", Unity.SEPARATE), ("", "PowerEdge XE9680", Unity.SEPARATE),
    ],
)  # fmt: skip
def test_which_gpus_share_the_hosts_memory(gpu: str, machine: str, how: Unity) -> None:
    assert unity(gpu, machine) is how


def test_what_another_project_detected_is_told_apart() -> None:
    """Only the GB10 of all those machines has one memory: its 138,932 MiB are the host's."""
    expected = {
        "nvidia_gb10": Unity.ONE_POOL,
        "nvidia_h200": Unity.SEPARATE,
        "nvidia_rtx5090d": Unity.SEPARATE,
        "amd_mi300x": Unity.SEPARATE,
        "amd_rx7800xt": Unity.SEPARATE,
    }
    for file, how in expected.items():
        for gpu in json.loads(read("gpustack-detect", f"gpustack_runtime__detect_output_{file}.json")):
            assert unity(gpu["name"]) is how
    worker = json.loads(read("gpustack-worker", "gpustack__macos_metal_3_m2ultra_192g.json"))
    for gpu in worker["status"]["gpu_devices"]:
        assert (unity(gpu["name"]), gpu["memory"]["is_unified_memory"]) == (Unity.ONE_POOL, True)


@pytest.mark.shows("P17")
def test_the_pool_is_what_the_host_has_and_what_is_free_of_it(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO})
    pool = unified_memory(tmp_path)
    assert (pool.total_bytes, pool.available_bytes) == (64000000 * 1024, 48000000 * 1024)
    assert pool.used_bytes == 16000000 * 1024
    nothing = unified_memory(tmp_path / "elsewhere")
    assert (nothing.total_bytes, nothing.used_bytes) == (None, None)


@pytest.mark.parametrize(
    ("files", "model"),
    [
        ({"proc/device-tree/model": JETSON}, "NVIDIA Jetson AGX Orin Developer Kit"),
        ({"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n"}, "NVIDIA_DGX_Spark"),
        ({"proc/device-tree/model": b"\0", "sys/class/dmi/id/product_name": "PowerEdge\n"}, "PowerEdge"),
        ({}, ""),
    ],
)
def test_the_machines_model(tmp_path: Path, files: dict[str, str | bytes], model: str) -> None:
    write(tmp_path, files)
    assert machine_model(tmp_path) == model


@pytest.mark.shows("P17")
async def test_on_a_board_of_one_memory_the_processor_leaves_the_gpu_its_part(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO, "proc/device-tree/model": JETSON})
    (cpu,) = (await HostSource(memory_share=0.8, root=tmp_path, cpu_percent=lambda: None).probe()).devices
    assert cpu.memory_bytes == 64000000 * 1024 // 4  # and the GPU three quarters: together no more than there is
    assert [str(region.kind) for region in cpu.regions] == ["uma"]
    assert cpu.facts["machine"] == "NVIDIA Jetson AGX Orin Developer Kit"


def test_a_jetsons_load_and_heat(tmp_path: Path) -> None:
    """Glances' own fixture: its NVML tells neither."""
    for name, text in json.loads(read("sysfs", "glances__gpu_sysfs.json")).items():
        if name.startswith("tegra/"):
            write(tmp_path, {name.removeprefix("tegra/"): text})
    assert tegra_load(tmp_path) == 0.774
    assert tegra_temperature(tmp_path) == 51.312
    assert (tegra_load(tmp_path / "x"), tegra_temperature(tmp_path / "x")) == (None, None)
