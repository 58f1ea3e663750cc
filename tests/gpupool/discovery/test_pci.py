"""GPUs and accelerators on the PCI bus, by lspci and by sysfs. Values of samples were read in the files."""

from pathlib import Path

import pytest

from core.clock import ManualClock
from gpupool.agent.devices import merge
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.lspci import gpus, listed
from gpupool.discovery.pci import PciFunction, pci_functions
from gpupool.discovery.pci_source import PciSource
from tests.gpupool.discovery.samples import assert_covered, read

NODE_UUID = "ABC123DE-1111-2222-3333-444444444444"
GIB = 1 << 30


def test_every_file_is_in_a_test() -> None:
    assert_covered("lspci", {"gpud__lspci-vvv_gpu_blocks.txt", "gpud__lspci.nn.a10", "gpud__lspci.nn.a100"})
    assert_covered("sysfs", {"glances__gpu_sysfs.json", "procfs__sys_class_drm.json"})


@pytest.mark.shows("R24")
def test_a_virtual_machine_with_one_a10() -> None:
    text = read("lspci", "gpud__lspci.nn.a10")
    assert len(listed(text)) == 20
    (gpu,) = gpus(text)  # the Virtio GPU, of class 0300 too, only shows a picture
    assert (gpu.address, gpu.class_code, gpu.class_name) == ("0000:06:00.0", "0302", "3D controller")
    assert (gpu.vendor, gpu.name, gpu.vendor_id, gpu.device_id, gpu.revision) == (
        "nvidia", "GA102GL [A10]", "10de", "0x2236", "a1",
    )  # fmt: skip
    (screen,) = [function for function in listed(text) if function.class_code == "0300"]
    assert (screen.description, screen.is_board_display, screen.vendor) == ("Red Hat, Inc. Virtio GPU", True, "unknown")


@pytest.mark.shows("R24")
def test_eight_a100_each_in_a_pci_domain_of_its_own() -> None:
    found = gpus(read("lspci", "gpud__lspci.nn.a100"))
    assert [gpu.address for gpu in found] == [
        "0001:00:00.0", "0002:00:00.0", "0003:00:00.0", "0004:00:00.0",
        "000b:00:00.0", "000c:00:00.0", "000d:00:00.0", "000e:00:00.0",
    ]  # fmt: skip
    assert {(gpu.vendor, gpu.name, gpu.device_id) for gpu in found} == {
        ("nvidia", "GA100 [A100 SXM4 80GB]", "0x20b2"),
    }


def test_the_long_form_without_numbers() -> None:
    text = read("lspci", "gpud__lspci-vvv_gpu_blocks.txt")
    assert len(listed(text)) == 13  # a Matrox, eight H100, four NVSwitches
    found = gpus(text)
    assert [(gpu.address, gpu.numa_node) for gpu in found] == [
        ("0000:19:00.0", 0), ("0000:3b:00.0", 0), ("0000:4c:00.0", 0), ("0000:5d:00.0", 0),
        ("0000:9b:00.0", 1), ("0000:bb:00.0", 1), ("0000:cb:00.0", 1), ("0000:db:00.0", 1),
    ]  # fmt: skip
    for gpu in found:
        assert (gpu.vendor, gpu.name, gpu.class_code) == ("nvidia", "Device 2330", "0302")
        assert (gpu.link_gts, gpu.link_width, gpu.link_gts_max, gpu.link_width_max) == (32.0, 16, 32.0, 16)
    switches = [function for function in listed(text) if function.class_name == "Bridge"]
    assert [(switch.slot, switch.link_gts, switch.link_width) for switch in switches] == [
        ("1", 16.0, 2), ("2", 16.0, 2), ("3", 16.0, 2), ("4", 16.0, 2),
    ]  # fmt: skip
    (matrox,) = [function for function in listed(text) if function.class_code == "0300"]
    assert (matrox.is_gpu, matrox.driver, matrox.numa_node) == (False, "mgag200", 0)


def put(root: Path, address: str, files: dict[str, str], *, driver: str = "", group: str = "") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    for name, target in (("driver", driver), ("iommu_group", group)):
        if target:
            (root / name / target).mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(root / name / target)


def machine(root: Path) -> None:
    """An NVIDIA card, Huawei's accelerator, a board's screen and a network card."""
    (root / "sys/class/dmi/id").mkdir(parents=True)
    (root / "sys/class/dmi/id/product_uuid").write_text(NODE_UUID)
    put(root, "0000:17:00.0", {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "1",
                               "current_link_speed": "16.0 GT/s PCIe", "current_link_width": "8",
                               "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"},
        driver="nvidia", group="41")  # fmt: skip
    put(root, "0000:c1:00.0", {"class": "0x120000", "vendor": "0x19e5", "device": "0xd802", "numa_node": "-1"})
    put(root, "0000:03:00.0", {"class": "0x030000", "vendor": "0x1a03", "device": "0x2000"}, driver="ast")
    put(root, "0000:00:1f.0", {"class": "0x020000", "vendor": "0x8086", "device": "0x1533"})


def test_sysfs_tells_where_a_function_sits(tmp_path: Path) -> None:
    machine(tmp_path)
    first, second = pci_functions(tmp_path)
    assert first == PciFunction(
        address="0000:17:00.0", vendor="nvidia", maker="", vendor_id="0x10de", device_id="0x2330", class_code="0302",
        driver="nvidia", numa_node=1, iommu_group="41", link_gts=16.0, link_width=8, link_gts_max=32.0,
        link_width_max=16,
    )  # fmt: skip
    assert (second.vendor, second.maker, second.numa_node, second.driver) == ("unknown", "Huawei", None, "")


@pytest.mark.shows("R24", "R25")
async def test_whatever_else_computes_is_a_device_of_unknown_memory(tmp_path: Path) -> None:
    machine(tmp_path)
    clock = ManualClock()
    source = PciSource(env={"PATH": ""}, clock=clock, root=tmp_path)
    nvidia, huawei = (await source.probe()).devices
    assert (huawei.vendor, huawei.memory_bytes, huawei.allocatable, huawei.health) == (
        "unknown",
        None,
        False,
        "unknown",
    )
    assert (huawei.name, huawei.stable_id) == ("Huawei device 0xd802", "Huawei_device_0xd802_0000:c1:00.0_abc123de")
    assert huawei.facts["trouble"] == "No driver of the kernel is bound to it."
    assert (nvidia.vendor, nvidia.facts["iommu_group"], nvidia.numa_node) == ("nvidia", "41", 1)
    assert nvidia.telemetry == {"pcie_gts": 16.0, "pcie_width": 8.0, "pcie_gts_max": 32.0, "pcie_width_max": 16.0}


async def test_lspci_gives_names_where_it_is_installed(tmp_path: Path) -> None:
    machine(tmp_path)
    tool = tmp_path / "lspci"
    line = "0000:c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. Device [19e5:d802] (rev 20)"
    tool.write_text(f"#!/bin/sh\necho '{line}'\n")
    tool.chmod(0o755)
    source = PciSource(env={"PATH": f"{tmp_path}:/bin:/usr/bin"}, clock=ManualClock(), root=tmp_path)
    _, huawei = (await source.probe()).devices
    assert huawei.name == "Huawei Technologies Co., Ltd. Device"


async def test_the_bus_is_not_walked_each_second(tmp_path: Path) -> None:
    machine(tmp_path)
    clock = ManualClock()
    source = PciSource(env={"PATH": ""}, clock=clock, root=tmp_path)
    first = await source.probe()
    put(tmp_path, "0000:c2:00.0", {"class": "0x120000", "vendor": "0x19e5", "device": "0xd802"})
    clock.advance(1)
    assert await source.probe() is first
    clock.advance(60)
    assert len((await source.probe()).devices) == 3


async def test_what_a_vendors_source_knows_counts_over_the_bus(tmp_path: Path) -> None:
    machine(tmp_path)
    known = Device(stable_id="GPU-1", kind="gpu", vendor="nvidia", name="NVIDIA H100", memory_bytes=80 * GIB,
                   pci_address="0000:17:00.0")  # fmt: skip
    bus = await PciSource(env={"PATH": ""}, clock=ManualClock(), root=tmp_path).probe()
    first, second = merge([Inventory((known,)), bus])
    assert (first.stable_id, first.name, first.memory_bytes, first.health) == ("GPU-1", "NVIDIA H100", 80 * GIB, "ok")
    assert (first.allocatable, first.numa_node, first.facts["iommu_group"]) == (True, 1, "41")
    assert second.vendor == "unknown"


@pytest.mark.parametrize("text", ["", "lspci: Unable to load libkmod", "zz:00.0 nothing", "\t\tLnkSta: Speed 1GT/s"])
def test_what_is_no_listing_lists_nothing(text: str) -> None:
    assert listed(text) == ()
