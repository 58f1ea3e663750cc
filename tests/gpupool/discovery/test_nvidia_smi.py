"""The command nvidia-smi as a source: a script that plays it, in place of NVML and beside it."""

import asyncio
from pathlib import Path

import pytest

from gpupool.discovery.base import LinkType
from gpupool.discovery.nvidia_smi import run
from gpupool.discovery.tools import ToolFailed
from tests.gpupool.discovery.nvml_gpus import Gpus
from tests.gpupool.discovery.smi_tool import Tool, gpu_xml, report

MIB = 1 << 20


TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-7\t0\nGPU1\tPIX\t X \t0-7\t0\n"


async def test_gpus_and_the_ways_between_them(tool: Tool) -> None:
    tool.says("_q__x", report(gpu_xml("17", "GPU-a"), gpu_xml("18", "GPU-b")))
    tool.says("topo__m", TOPO)
    first, second = (await tool.source.probe()).devices
    assert (first.stable_id, first.memory_bytes, first.memory_used_bytes) == ("GPU-a", 40360 * MIB, 100 * MIB)
    assert (first.facts["driver"], first.facts["told_by"]) == ("570.1", "nvidia-smi")
    assert [(link.peer, link.kind) for link in first.links] == [("GPU-b", LinkType.PCIE_SWITCH)]
    assert second.numa_node == 0
    before = tool.calls()
    await tool.source.probe()
    assert tool.calls() == before  # what it said stands for a while
    tool.clock.advance(11)
    await tool.source.probe()
    assert tool.calls() == [*before, "-q -x"]  # the ways between GPUs do not change so fast


async def test_instances_get_their_names_from_the_list(tool: Tool) -> None:
    mig = (
        "<mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices><mig_device><index>0</index>"
        "<gpu_instance_id>2</gpu_instance_id><fb_memory_usage><total>20000 MiB</total><used>5 MiB</used>"
        "</fb_memory_usage></mig_device></mig_devices>"
    )
    tool.says("_q__x", report(gpu_xml("17", "GPU-ab", more=mig)))
    tool.says("_L", "GPU 0: NVIDIA A100 (UUID: GPU-ab)\n  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n")
    parent, part = (await tool.source.probe()).devices
    assert parent.allocatable is False
    assert (part.stable_id, part.partition_of, part.memory_bytes) == ("MIG-1", "GPU-ab", 20000 * MIB)
    assert part.tags == ("A100-MIG-3g.20gb", "MIG-3g.20gb")


async def test_a_broken_report_is_made_up_for_by_the_fields_that_matter(tool: Tool) -> None:
    tool.says("_q__x", "<nvidia_smi_log><gpu>")
    tool.says("__query_gpu_", "index, uuid, name, memory.total [MiB]\n0, GPU-a, NVIDIA A100-PCIE-40GB, 40960 MiB\n")
    (device,) = (await tool.source.probe()).devices
    assert (device.stable_id, device.memory_bytes) == ("GPU-a", 40960 * MIB)


@pytest.mark.shows("P23")
async def test_a_command_that_hangs_is_killed_and_its_devices_are_unknown(tool: Tool) -> None:
    tool.says("_q__x", report(gpu_xml("17", "GPU-a")))
    await tool.source.probe()
    tool.hang()
    tool.clock.advance(11)
    async with asyncio.timeout(10):
        inventory = await tool.source.probe()
    assert "did not answer within 1 s and was killed" in inventory.reason
    (device,) = inventory.devices
    assert (device.health, device.memory_used_bytes, device.memory_bytes) == ("unknown", None, 40360 * MIB)


async def test_a_command_that_is_not_there_or_fails_says_so() -> None:
    with pytest.raises(ToolFailed, match="was not found"):
        await run(("no-such-nvidia-smi",), env={"PATH": "/nowhere"}, deadline_seconds=5)
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    with pytest.raises(ToolFailed, match="couldn't communicate"):
        await run(("/bin/echo", text), env={}, deadline_seconds=5)


@pytest.mark.shows("R24", "R30")
async def test_where_nvml_fails_the_command_is_asked_and_its_changes_are_events(
    standin_folder: Path, tool: Tool, tmp_path: Path
) -> None:
    tool.says("_q__x", report(gpu_xml("17", "GPU-a")))
    gpus = Gpus(standin_folder, tmp_path, fallback=tool.source)
    gpus.play("driver")
    (device,) = (await gpus.source.probe()).devices
    assert device.facts["told_by"] == "nvidia-smi"
    sick = gpu_xml("17", "GPU-a").replace("<dram_uncorrectable>0", "<dram_uncorrectable>3")
    tool.says("_q__x", report(sick))
    tool.clock.advance(11)
    (event,) = (await gpus.source.probe()).noticed
    assert (event.source, event.kind, event.stable_id, event.at) == ("snapshot", "ecc", "GPU-a", 1000.0)
    assert (event.data["counter"], event.data["from"], event.data["to"]) == ("ecc_uncorrected", "0", "3")
    assert len(event.data["id"]) == 16
    assert (await gpus.source.probe()).noticed == ()
    await gpus.source.close()
