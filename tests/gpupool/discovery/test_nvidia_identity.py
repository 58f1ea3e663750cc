"""A GPU stays the same device however it is asked for, and no memory is offered twice."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpupool.agent.devices import merge
from gpupool.discovery import nvidia_smi
from gpupool.discovery.base import Device, Inventory
from gpupool.discovery.nvidia_reading import GpuReading, NvmlReading
from gpupool.discovery.nvidia_smi_text import QUERY, parse_query_gpu, parse_table
from gpupool.discovery.nvidia_view import as_known, devices
from gpupool.discovery.tools import ToolAway
from tests.gpupool.discovery.nvml_gpus import Gpus
from tests.gpupool.discovery.samples import read
from tests.gpupool.discovery.smi_tool import Tool, gpu_xml, report

GIB = 1 << 30
MIB = 1 << 20
NODE = "abc123de-1111-2222-3333-444444444444"
FIRST = "GPU-00000000-0000-0000-0000-000000000001"
MIG_TABLE = "nvge__linux-x86_64__nvidia-h100-mig__590.48.01__load__table.txt"
TABLE = (
    "| NVIDIA-SMI 570.1    Driver Version: 570.1    CUDA Version: 12.8     |\n"
    "|   0  NVIDIA A100-PCIE-4...  On  | 00000000:17:00.0 Off |  0 |\n"
    "| N/A  41C  P0   60W / 250W |  512MiB / 40960MiB |   37%   Default |\n"
    "|                           |                    |        Disabled |\n"
)


def seen(*gpus: GpuReading) -> list[Device]:
    return merge([Inventory(tuple(devices(NvmlReading(gpus=list(gpus)), node_id=NODE, root=Path("/nowhere"))))])


def a100(bus: str, uuid: str | None = None) -> GpuReading:
    return GpuReading(index=0, uuid=uuid, name="NVIDIA A100", pci_address=f"0000:{bus}:00.0", memory_bytes=40 * GIB)


def part(instance: int, uuid: str | None, name: str = "NVIDIA A100 MIG 3g.20gb") -> GpuReading:
    return GpuReading(
        index=0, parent_uuid="GPU-a", uuid=uuid, gpu_instance=instance, name=name, memory_bytes=20 * GIB,
        memory_used_bytes=GIB, memory_reserved_bytes=0,
    )  # fmt: skip


def test_two_gpus_that_say_one_uuid_are_two() -> None:
    assert [device.stable_id for device in seen(a100("17", "GPU-a"), a100("18", "GPU-a"))] == [
        "GPU-a", "A100_0000:18:00.0_abc123de",
    ]  # fmt: skip


@pytest.mark.shows("P18")
def test_parts_without_a_uuid_are_several_and_can_be_shown_to_no_engine() -> None:
    whole = a100("17", "GPU-a")
    whole.mig_enabled = True
    parent, *parts = seen(whole, part(1, None), part(2, None))
    assert len({device.stable_id for device in parts}) == 2
    assert [device.allocatable for device in (parent, *parts)] == [False, False, False]


@pytest.mark.shows("P18")
def test_compute_instances_of_one_gpu_instance_do_not_offer_its_memory_twice() -> None:
    whole = a100("17", "GPU-a")
    whole.mig_enabled = True
    name = "NVIDIA A100 MIG 1c.3g.20gb"
    _, first, second, other = seen(whole, part(1, "MIG-1", name), part(1, "MIG-2", name), part(2, "MIG-3"))
    assert [device.memory_bytes for device in (first, second, other)] == [10 * GIB, 10 * GIB, 20 * GIB]
    assert [device.memory_used_bytes for device in (first, second, other)] == [None, None, GIB]
    assert first.tags == ("A100-MIG-1c.3g.20gb", "MIG-1c.3g.20gb")


def test_a_name_of_any_length_and_kind_makes_an_id() -> None:
    (device,) = seen(GpuReading(index=0, name="NVIDIA X/Y\n" + "z" * 300, pci_address="0000:17:00.0"))
    assert device.stable_id == f"X-Y-{'z' * 96}_0000:17:00.0_abc123de"


@pytest.mark.shows("P18")
def test_the_table_and_the_fields_tell_that_a_gpu_is_divided() -> None:
    assert [gpu.mig_enabled for gpu in parse_table(TABLE).gpus] == [False]
    assert "mig.mode.current" in QUERY.split(",")
    assert parse_query_gpu("index, mig.mode.current\n0, Enabled\n").gpus[0].mig_enabled is True
    assert [gpu.mig_enabled for gpu in parse_table(read("nvidia-smi-text", MIG_TABLE)).gpus] == [True]


async def test_a_gpu_keeps_its_id_when_only_the_table_tells_of_it(
    standin_folder: Path, tool: Tool, tmp_path: Path
) -> None:
    gpus = Gpus(standin_folder, tmp_path, fallback=tool.source)
    before = (await gpus.source.probe()).devices[0]
    gpus.play("hang")
    tool.says("_q__x", "<nvidia_smi_log>")
    tool.says("table", TABLE)
    (device,) = (await gpus.source.probe()).devices
    assert (device.stable_id, device.name, device.tags) == (FIRST, before.name, before.tags)
    assert (device.memory_bytes, device.memory_used_bytes) == (40960 * MIB, 512 * MIB)
    await gpus.source.close()


async def test_the_list_names_the_gpus_of_the_table(tool: Tool) -> None:
    tool.says("_q__x", "<nvidia_smi_log>")
    tool.says("table", TABLE)
    tool.says("_L", "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-ab)\n")
    (device,) = (await tool.source.probe()).devices
    assert (device.stable_id, device.name) == ("GPU-ab", "NVIDIA A100-PCIE-40GB")


@pytest.mark.shows("P18")
async def test_parts_that_another_tool_does_not_list_are_unknown_and_not_gone(
    standin_folder: Path, tool: Tool, tmp_path: Path
) -> None:
    gpus = Gpus(standin_folder, tmp_path, fallback=tool.source)
    gpus.play("mig")
    parts = [device.stable_id for device in (await gpus.source.probe()).devices[1:]]
    gpus.play("hang")
    tool.says("_q__x", "<nvidia_smi_log>")
    tool.says("__query_gpu_", f"index, uuid, memory.total [MiB], mig.mode.current\n0, {FIRST}, 40960 MiB, Enabled\n")
    parent, *others = (await gpus.source.probe()).devices
    assert (parent.stable_id, parent.allocatable) == (FIRST, False)
    assert [(device.stable_id, device.health) for device in others] == [(part, "unknown") for part in parts]
    await gpus.source.close()


@pytest.mark.shows("P18")
async def test_a_mig_mode_that_is_not_said_once_makes_no_whole(gpus: Gpus) -> None:
    gpus.play("mig")
    assert (await gpus.source.probe()).devices[0].allocatable is False
    gpus.play("mig-silent")
    inventory = await gpus.source.probe()
    assert [device.allocatable for device in inventory.devices] == [False, True, True]


@pytest.mark.shows("P23")
async def test_what_another_tool_said_before_it_failed_is_not_told_as_new(
    standin_folder: Path, tool: Tool, tmp_path: Path
) -> None:
    tool.says("_q__x", report(gpu_xml("17", "GPU-a")))
    gpus = Gpus(standin_folder, tmp_path, fallback=tool.source)
    gpus.play("driver")
    assert [device.health for device in (await gpus.source.probe()).devices] == ["ok"]
    tool.says("_q__x", report())
    tool.clock.advance(11)
    (device,) = (await gpus.source.probe()).devices
    assert (device.stable_id, device.health, device.memory_used_bytes) == ("GPU-a", "unknown", None)
    await gpus.source.close()


@pytest.mark.shows("P23")
async def test_beside_a_command_that_cannot_be_killed_no_other_is_started(
    tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []

    class Hung:
        returncode: int | None = None

    hung = Hung()

    async def hang(argv: Sequence[str], *, env: Mapping[str, str], deadline_seconds: float, stuck: list[Hung]) -> str:
        started.append(argv)
        await asyncio.sleep(0)
        stuck.append(hung)
        raise ToolAway("It did not answer.")

    monkeypatch.setattr(nvidia_smi, "run", hang)
    for _ in range(3):
        assert (await tool.source.probe()).devices == ()
        tool.clock.advance(61)
    assert len(started) == 1
    assert "cannot even be killed" in (await tool.source.probe()).reason
    hung.returncode = -9
    tool.clock.advance(61)
    await tool.source.probe()
    assert len(started) == 2


@pytest.mark.shows("P17")
def test_a_figure_of_memory_in_common_is_not_offered_beside_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {128 << 20} kB\nMemAvailable: {100 << 20} kB\n")
    gpu = GpuReading(index=0, uuid="GPU-a", name="NVIDIA GB10", memory_bytes=128 * GIB, memory_used_bytes=GIB)
    (device,) = devices(NvmlReading(gpus=[gpu]), node_id=NODE, root=tmp_path)
    assert (device.memory_bytes, device.memory_used_bytes) == (96 * GIB, GIB)  # the CPU's part is the rest


@pytest.mark.parametrize(("told", "kept"), [(39 * GIB - MIB, 39 * GIB), (38 * GIB, 38 * GIB), (None, None)])
def test_a_tool_that_counts_mib_makes_no_gpu_smaller(told: int | None, kept: int | None) -> None:
    (known,) = seen(a100("17", "GPU-a"))
    known = replace(known, memory_bytes=39 * GIB)
    (device,) = as_known([replace(known, memory_bytes=told)], [known])
    assert device.memory_bytes == kept
