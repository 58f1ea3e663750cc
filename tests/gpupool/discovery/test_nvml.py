"""NVML through a stand-in library: what the driver says, and what happens when it says nothing."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from core.clock import ManualClock
from gpupool.agent.processes import clean_environment
from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading
from gpupool.discovery.nvml import NvmlSource, device, no_gpu_reason, traceable_id
from gpupool.discovery.pci import PciGpu
from tests.gpupool.discovery.nvml_gpus import Gpus

GIB = 1 << 30


async def test_gpus_are_read(gpus: Gpus) -> None:
    inventory = await gpus.source.probe()
    assert inventory.reason == ""
    first, second = inventory.devices
    assert first.stable_id == "GPU-00000000-0000-0000-0000-000000000001"
    assert (first.kind, first.vendor, first.name, first.index) == ("gpu", "nvidia", "NVIDIA A100-PCIE-40GB", 0)
    assert (first.memory_bytes, first.memory_used_bytes) == (40 * GIB, GIB // 2)
    assert (first.utilization, first.temperature_celsius, first.health) == (0.37, 41, "ok")
    assert first.facts["pci_address"] == "0000:17:00.0"
    assert first.facts["driver"] == "570.00.01"
    assert first.facts["compute_capability"] == "8.0"
    assert second.stable_id.endswith("02")


@pytest.mark.shows("P18")
async def test_mig_instances_are_devices_and_their_parent_is_not(gpus: Gpus) -> None:
    gpus.play("mig")
    inventory = await gpus.source.probe()
    assert [(found.stable_id, found.allocatable) for found in inventory.devices] == [
        ("GPU-00000000-0000-0000-0000-000000000001", False),
        ("MIG-00000000-0000-0000-0000-000000000011", True),
        ("MIG-00000000-0000-0000-0000-000000000012", True),
    ]
    instance = inventory.devices[1]
    assert instance.partition_of == "GPU-00000000-0000-0000-0000-000000000001"
    assert instance.tags == ("A100-MIG-3g.20gb", "MIG-3g.20gb")
    assert instance.memory_bytes == 20 * GIB
    assert instance.utilization is None  # NVML does not say it for an instance
    assert instance.facts["mig_parent"] == "GPU-00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("none", "reports no device"),
        ("mig-empty", "a MIG parent cannot be allocated"),
        ("driver", "kernel module is not loaded"),
        ("permission", "may not talk to the NVIDIA driver"),
    ],
)
async def test_no_gpu_is_explained_in_a_sentence(gpus: Gpus, scenario: str, words: str) -> None:
    gpus.play(scenario)
    inventory = await gpus.source.probe()
    assert not any(found.allocatable for found in inventory.devices)
    assert words in inventory.reason
    assert inventory.reason.endswith(".")


async def test_without_a_driver_no_child_is_kept_and_it_is_asked_again_later(gpus: Gpus) -> None:
    gpus.play("driver")
    await gpus.source.probe()
    assert gpus.source.probe_pid is None
    gpus.play("ok")
    assert (await gpus.source.probe()).devices == ()
    gpus.clock.advance(61)
    assert len((await gpus.source.probe()).devices) == 2


async def test_a_machine_without_the_library_says_so(tmp_path: Path) -> None:
    environment = clean_environment(os.environ) | {"LD_LIBRARY_PATH": str(tmp_path)}
    source = NvmlSource(env=environment, clock=ManualClock(), root=tmp_path)
    inventory = await source.probe()
    if inventory.devices:
        pytest.skip("this machine has a GPU of its own")
    assert "libnvidia-ml.so.1 was not found" in inventory.reason
    await source.close()


async def test_what_the_driver_does_not_say_is_unknown_and_not_zero(gpus: Gpus) -> None:
    gpus.play("unified")
    (found,) = (await gpus.source.probe()).devices
    assert (found.memory_bytes, found.memory_used_bytes) == (None, None)
    assert (found.utilization, found.temperature_celsius) == (None, None)


@pytest.mark.shows("P23")
async def test_a_hanging_driver_costs_one_deadline_and_makes_the_devices_unknown(gpus: Gpus) -> None:
    await gpus.source.probe()
    hanging = gpus.source.probe_pid
    assert hanging is not None
    gpus.play("hang")
    async with asyncio.timeout(10):
        inventory = await gpus.source.probe()
        assert not psutil.pid_exists(hanging)
        assert [found.health for found in inventory.devices] == ["unknown", "unknown"]
        assert [found.memory_used_bytes for found in inventory.devices] == [None, None]
        assert [found.memory_bytes for found in inventory.devices] == [40 * GIB, 40 * GIB]
        await gpus.source.probe()  # in its pause nobody is asked
        assert gpus.source.probe_pid is None
    gpus.play("ok")
    gpus.clock.advance(61)
    assert [found.health for found in (await gpus.source.probe()).devices] == ["ok", "ok"]


async def test_a_lost_gpu_keeps_its_identity_and_is_failed(gpus: Gpus) -> None:
    before = (await gpus.source.probe()).devices
    gpus.play("lost")
    after = (await gpus.source.probe()).devices
    assert [found.stable_id for found in after] == [found.stable_id for found in before]
    assert [found.health for found in after] == ["ok", "failed"]
    assert after[1].facts["trouble"] == "GPU_IS_LOST"
    assert after[1].memory_used_bytes is None


async def test_a_gpu_that_moves_up_when_another_leaves_the_bus_is_not_taken_for_it(gpus: Gpus) -> None:
    first, second = (await gpus.source.probe()).devices
    gpus.play("gone")
    inventory = await gpus.source.probe()
    (left,) = inventory.devices
    assert (left.stable_id, left.index, left.pci_address) == (second.stable_id, 0, second.pci_address)
    assert [(event.kind, event.stable_id) for event in inventory.noticed] == [("lost", first.stable_id)]


async def test_a_killed_probe_is_replaced(gpus: Gpus) -> None:
    await gpus.source.probe()
    first = gpus.source.probe_pid
    assert first is not None
    psutil.Process(first).kill()
    assert [found.health for found in (await gpus.source.probe()).devices] == ["unknown", "unknown"]
    gpus.clock.advance(61)
    assert [found.health for found in (await gpus.source.probe()).devices] == ["ok", "ok"]
    assert gpus.source.probe_pid != first


@pytest.mark.shows("R25")
def test_a_gpu_without_uuid_is_known_by_model_address_and_node() -> None:
    gpu = GpuReading(index=3, name="NVIDIA A100 PCIe", pci_address="0000:17:00.0")
    node = "abc123de-1111-2222-3333-444444444444"
    assert traceable_id(gpu, node) == "A100_PCIe_0000:17:00.0_abc123de"
    assert device(gpu, None, node).stable_id == "A100_PCIe_0000:17:00.0_abc123de"


def test_a_gpu_on_the_bus_without_a_driver_is_named() -> None:
    reading = NvmlReading(failure="LIBRARY_NOT_FOUND")
    sentence = no_gpu_reason(reading, [PciGpu("0000:17:00.0", "nvidia", "")])
    assert sentence == (
        "An NVIDIA GPU is on the PCI bus (0000:17:00.0), "
        "but the NVIDIA driver's library libnvidia-ml.so.1 was not found."
    )
    others = no_gpu_reason(reading, [PciGpu("0000:03:00.0", "amd", "amdgpu")])
    assert others == "No NVIDIA GPU was found: the NVIDIA driver's library libnvidia-ml.so.1 was not found."


@pytest.mark.shows("P16")
def test_more_use_than_memory_is_clamped_and_said() -> None:
    gpu = GpuReading(index=0, name="NVIDIA A100", uuid="GPU-1", memory_bytes=40 * GIB, memory_used_bytes=41 * GIB)
    made = device(gpu, None, "node")
    assert (made.memory_bytes, made.memory_used_bytes) == (40 * GIB, 40 * GIB)
    assert made.facts["memory_used_reported_bytes"] == str(41 * GIB)
