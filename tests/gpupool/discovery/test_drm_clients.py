"""Processes on GPUs by the kernel's own count."""

import json
import os
from pathlib import Path

from gpupool.discovery.amd import devices
from gpupool.discovery.base import DeviceProcess
from gpupool.discovery.drm_clients import DrmClient, clients, parse, processes
from gpupool.discovery.tool_source import Told
from tests.gpupool.discovery.samples import read

MIB, GIB = 1 << 20, 1 << 30
AMD = """pos:\t0
drm-driver:\tamdgpu
drm-client-id:\t{client}
drm-pdev:\t0000:26:00.0
drm-memory-vram:\t1048576 KiB
drm-memory-gtt: \t2048 KiB
drm-total-vram:\t2097152 KiB
drm-resident-vram:\t1048576 KiB
drm-engine-compute:\t5000 ns
"""
XE = """drm-driver:\txe
drm-client-id:\t7
drm-pdev:\t0000:4d:00.0
drm-resident-vram0:\t512 MiB
drm-total-vram0:\t1 GiB
"""


def test_the_words_of_drivers() -> None:
    assert parse(AMD.format(client=3)) == DrmClient("amdgpu", "0000:26:00.0", "3", GIB)
    assert parse(XE) == DrmClient("xe", "0000:4d:00.0", "7", 512 * MIB)
    assert parse("pos:\t0\nflags:\t02\n") is None


def test_files_of_a_gpu_without_memory_of_its_own() -> None:
    """Glances' own fixture of an ARM board; the values were read in the file."""
    sample = json.loads(read("sysfs", "glances__gpu_sysfs.json"))
    assert parse(sample["arm/proc/1234/fdinfo/7"]) == DrmClient("panthor", "fe9b0000.gpu", "42", None)
    assert parse(sample["arm/proc/5678/fdinfo/3"]) == DrmClient("panthor", "fe9b0000.gpu", "43", None)
    assert parse(sample["arm/proc/9999/fdinfo/4"]) is None


def test_copies_of_a_descriptor_count_once(tmp_path: Path) -> None:
    for number, client in (("5", 3), ("6", 3), ("7", 4)):
        for folder, text in (("fdinfo", AMD.format(client=client)), ("fd", "")):
            path = tmp_path / "proc/4242" / folder / number
            path.parent.mkdir(parents=True, exist_ok=True)
            if text:
                path.write_text(text)
            else:
                os.symlink("/dev/dri/renderD128", path)
    os.symlink("/dev/null", tmp_path / "proc/4242/fd/0")
    (tmp_path / "proc/4242/comm").write_text("llama-server\n")
    (tmp_path / "proc/self").mkdir()
    found = processes(*clients(tmp_path))
    assert found == {"0000:26:00.0": (DeviceProcess(pid=4242, name="llama-server", memory_bytes=2 * GIB),)}


def test_a_device_has_the_processes_that_the_kernel_counts_where_no_tool_lists_them() -> None:
    counted = (DeviceProcess(pid=4242, name="llama-server", memory_bytes=2 * GIB),)
    card = {"address": "0000:26:00.0", "device": "0x740f", "mem_info_vram_total": str(64 * GIB)}
    (gpu,) = devices(Told(cards=[card], processes={"0000:26:00.0": counted}), "abc123de")
    assert gpu.processes == counted
