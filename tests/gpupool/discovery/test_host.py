"""The host's CPU as a device, read from files that a test wrote."""

from pathlib import Path

import pytest

from gpupool.discovery.host import HostSource, cpu_model, host_id, host_memory
from gpupool.discovery.pci import PciGpu, pci_gpus
from tests.gpupool.discovery.machine import write

GIB = 1 << 30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1024 kB\nMemAvailable:   16777216 kB\n"  # 32 GiB, 16 GiB


def test_physical_memory_counts_where_no_group_limits_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/user.slice\n",
            "sys/fs/cgroup/user.slice/memory.max": "max\n",
        },
    )
    memory = host_memory(tmp_path)
    assert (memory.total, memory.available, memory.limited_by) == (32 * GIB, 16 * GIB, "")


def test_the_tightest_control_group_on_the_way_up_limits_memory(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/pod/container/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        },
    )
    memory = host_memory(tmp_path)
    assert (memory.total, memory.available) == (4 * GIB, GIB)
    assert memory.limited_by.endswith("sys/fs/cgroup/pod/memory.max")


def test_page_cache_that_can_be_dropped_counts_as_available(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
        },
    )
    assert host_memory(tmp_path).available == 2 * GIB


def test_cgroup_version_1_is_read_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "5:devices:/\n4:memory:/box\n0::/\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host_memory(tmp_path).total == 2 * GIB


def test_what_no_file_says_is_unknown(tmp_path: Path) -> None:
    memory = host_memory(tmp_path)
    assert (memory.total, memory.available) == (None, None)


async def test_the_claimable_share_is_the_size_of_the_device(tmp_path: Path) -> None:
    machine = "0123456789abcdef0123456789abcdef"
    write(
        tmp_path,
        {"proc/meminfo": MEMINFO, "etc/machine-id": machine + "\n", "proc/cpuinfo": "model name\t: Example  9000\n"},
    )
    (device,) = (await HostSource(memory_share=0.25, root=tmp_path, cpu_percent=lambda: 50.0).probe()).devices
    assert device.stable_id == f"cpu-{machine}"
    assert (device.kind, device.vendor, device.name) == ("cpu", "host", "Example 9000")
    assert device.memory_bytes == 8 * GIB
    assert device.utilization == 0.5
    assert device.facts["memory_total_bytes"] == str(32 * GIB)


async def test_a_device_of_unknown_size_has_no_size(tmp_path: Path) -> None:
    (device,) = (await HostSource(memory_share=0.5, root=tmp_path, cpu_percent=lambda: None).probe()).devices
    assert device.memory_bytes is None
    assert device.utilization is None


@pytest.mark.parametrize("empty", ["00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", ""])
def test_a_dmi_identity_that_was_never_filled_in_is_passed_over(tmp_path: Path, empty: str) -> None:
    machine = "0123456789abcdef0123456789abcdef"
    write(tmp_path, {"sys/class/dmi/id/product_uuid": empty, "etc/machine-id": machine})
    assert host_id(tmp_path) == machine


def test_the_dmi_identity_wins(tmp_path: Path) -> None:
    uuid = "ABC123DE-1111-2222-3333-444444444444"
    write(tmp_path, {"sys/class/dmi/id/product_uuid": uuid + "\n", "etc/machine-id": "0" * 31 + "1"})
    assert host_id(tmp_path) == uuid.lower()


def test_an_unnamed_processor_still_has_a_name(tmp_path: Path) -> None:
    assert cpu_model(tmp_path)


def test_gpus_on_the_pci_bus_are_found_by_class_and_vendor(tmp_path: Path) -> None:
    devices = "sys/bus/pci/devices"
    write(
        tmp_path,
        {
            f"{devices}/0000:17:00.0/class": "0x030200\n",
            f"{devices}/0000:17:00.0/vendor": "0x10de\n",
            f"{devices}/0000:03:00.0/class": "0x120000\n",
            f"{devices}/0000:03:00.0/vendor": "0x1002\n",
            f"{devices}/0000:00:02.0/class": "0x030000\n",
            f"{devices}/0000:00:02.0/vendor": "0x1a03\n",  # a board's own VGA controller
            f"{devices}/0000:00:1f.0/class": "0x020000\n",
            f"{devices}/0000:00:1f.0/vendor": "0x8086\n",  # a network card
        },
    )
    driver = tmp_path / "sys/bus/pci/drivers/amdgpu"
    driver.mkdir(parents=True)
    (tmp_path / devices / "0000:03:00.0/driver").symlink_to(driver)
    assert pci_gpus(tmp_path) == (PciGpu("0000:03:00.0", "amd", "amdgpu"), PciGpu("0000:17:00.0", "nvidia", ""))
