"""The command nvidia-smi as a source: a script that plays it, in place of NVML and beside it."""

import asyncio
import os
from pathlib import Path

import pytest

from core.clock import ManualClock
from gpupool.agent.processes import clean_environment
from gpupool.discovery.base import LinkType
from gpupool.discovery.nvidia_smi import NvidiaSmiSource, SmiFailed, run
from tests.gpupool.discovery.nvml_gpus import Gpus

MIB = 1 << 20


def gpu_xml(bus: str, uuid: str, *, used: str = "100 MiB", more: str = "") -> str:
    return (
        f'<gpu id="00000000:{bus}:00.0"><product_name>NVIDIA A100-PCIE-40GB</product_name><uuid>{uuid}</uuid>{more}'
        f"<fb_memory_usage><total>40960 MiB</total><reserved>600 MiB</reserved><used>{used}</used></fb_memory_usage>"
        "<ecc_errors><volatile><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors></gpu>"
    )


def report(*gpus: str) -> str:
    return f"<nvidia_smi_log><driver_version>570.1</driver_version>{''.join(gpus)}</nvidia_smi_log>"


class Tool:
    """A folder of answers, by the words of the call."""

    def __init__(self, folder: Path) -> None:
        self._answers = folder / "answers"
        self._answers.mkdir()
        self.command = folder / "nvidia-smi"
        self.command.write_text(
            f'#!/bin/sh\necho "$*" >> {folder}/calls\nname=$(echo "$*" | tr -c "a-zA-Z0-9\\n" "_" | cut -c1-12)\n'
            f'[ -e {self._answers}/hang ] && exec sleep 600\ncat {self._answers}/"$name" 2>/dev/null\n'
        )
        self.command.chmod(0o755)
        self._calls = folder / "calls"
        self.clock = ManualClock()
        self.source = NvidiaSmiSource(
            env=clean_environment(os.environ),
            clock=self.clock,
            root=folder,
            command=str(self.command),
            deadline_seconds=1.0,
        )

    def says(self, name: str, text: str) -> None:
        (self._answers / name).write_text(text)

    def hang(self) -> None:
        (self._answers / "hang").touch()

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path)


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
    with pytest.raises(SmiFailed, match="was not found"):
        await run(("no-such-nvidia-smi",), env={"PATH": "/nowhere"}, deadline_seconds=5)
    text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    with pytest.raises(SmiFailed, match="couldn't communicate"):
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
