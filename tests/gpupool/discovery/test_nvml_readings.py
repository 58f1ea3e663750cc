"""All that NVML says of a GPU, through the stand-in: numbers, links, events, and what stays unknown."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from gpupool.discovery.base import Device, Link, LinkType, MemoryType, Noticed
from tests.gpupool.discovery.nvml_gpus import Gpus, build, nvml_header_folder

GIB = 1 << 30
MIB = 1 << 20

pytestmark = pytest.mark.skipif(
    nvml_header_folder() is None, reason="nvidia-nvml-dev is not installed: the stand-in has a few functions only"
)


@pytest.mark.shows("R12", "R14", "R25", "R27")
async def test_eight_gpus_of_a_server_are_one_kind_of_device_with_all_that_is_known(gpus: Gpus) -> None:
    gpus.play("hgx")
    inventory = await gpus.source.probe()
    assert [found.index for found in inventory.devices] == list(range(8))
    first, last = inventory.devices[0], inventory.devices[7]
    assert first.memory_bytes == (81559 - 480) * MIB  # what the driver keeps is nobody's to claim
    assert first.memory_used_bytes == GIB
    assert first.tags == ("H100-80GB", "H100")
    assert first.pci_address == "0000:17:00.0"
    assert first.traceable_id.startswith("H100_80GB_HBM3_0000:17:00.0_")
    assert first.capability.architecture == "hopper"
    assert first.capability.tensor_cores is True
    assert {"bf16", "fp8"} <= first.capability.precisions
    assert first.capability.compute_units == 132
    assert first.capability.peak_tflops == 989.0
    assert first.recovery_action == "none"
    assert [region.kind for region in first.regions] == [MemoryType.VRAM, MemoryType.SHARED]
    assert first.regions[1].size_bytes == 64 * GIB  # the window that the host can map
    wanted = {
        "power_watts": 101.0, "power_limit_watts": 700.0, "sm_clock_mhz": 1410.0, "memory_clock_mhz": 2619.0,
        "memory_utilization": 0.12, "memory_temperature_celsius": 57.0, "ecc_corrected": 0.0, "ecc_uncorrected": 0.0,
        "remapped_rows_correctable": 0.0, "remap_pending": 0.0, "remap_failed": 0.0, "retired_pages": 0.0,
        "pcie_replays": 3.0, "pcie_generation": 4.0, "pcie_width": 8.0, "throttled": 0.0, "nvlinks_active": 18.0,
        "nvlink_tx_bytes": float(1 << 43), "memory_reserved_bytes": 480.0 * MIB,
    }  # fmt: skip
    assert {key: first.telemetry.get(key) for key in wanted} == wanted
    assert "fan_share" not in first.telemetry  # it has no fan
    assert "nvlink_rx_bytes" not in first.telemetry
    assert (first.facts["cuda"], first.facts["serial"]) == ("12.8", "1321000000001")
    assert (last.telemetry["nvlinks_active"], last.telemetry["nvlinks_down"]) == (17.0, 1.0)


async def test_processes_are_listed_once_and_unknown_memory_stays_unknown(gpus: Gpus) -> None:
    gpus.play("hgx")
    first, second = (await gpus.source.probe()).devices[:2]
    assert [(process.pid, process.memory_bytes) for process in first.processes] == [(4242, 3 * GIB), (4343, None)]
    assert second.processes == ()


@pytest.mark.shows("R26", "R27")
async def test_gpus_on_an_nvswitch_share_a_hub_and_know_their_distance_over_pcie(gpus: Gpus) -> None:
    gpus.play("hgx")
    devices = (await gpus.source.probe()).devices
    hubs = [links_of(device, LinkType.NVSWITCH) for device in devices]
    assert {hub.peer for (hub,) in hubs} == {hubs[0][0].peer}
    assert (hubs[0][0].lanes, hubs[0][0].bandwidth_bytes) == (18, 900_000_000_000)
    assert (hubs[7][0].lanes, hubs[7][0].bandwidth_bytes) == (17, 850_000_000_000)
    assert {link.peer for link in links_of(devices[0], LinkType.NUMA)} == {each.stable_id for each in devices[1:4]}
    assert {link.peer for link in links_of(devices[0], LinkType.SYSTEM)} == {each.stable_id for each in devices[4:]}


async def test_nvlinks_between_two_gpus_are_one_link_of_many_lanes(gpus: Gpus) -> None:
    gpus.play("pair")
    first, second = (await gpus.source.probe()).devices
    assert links_of(first, LinkType.NVLINK) == [
        Link(peer=second.stable_id, kind=LinkType.NVLINK, lanes=12, bandwidth_bytes=600_000_000_000)
    ]
    assert [link.peer for link in links_of(first, LinkType.PCIE_SWITCH)] == [second.stable_id]


async def test_errors_that_appear_between_two_looks_are_events(gpus: Gpus) -> None:
    assert (await gpus.source.probe()).noticed == ()
    gpus.play("sick")
    events: list[Noticed] = []
    for _ in range(6):  # counters of errors are asked for at every fifth look
        events += (await gpus.source.probe()).noticed
    assert {event.stable_id for event in events} == {"GPU-00000000-0000-0000-0000-000000000002"}
    assert {(event.source, event.kind) for event in events} == {
        ("snapshot", "ecc"), ("snapshot", "remap"), ("snapshot", "recovery_action"),
    }  # fmt: skip
    recovery = next(event for event in events if event.kind == "recovery_action")
    assert (recovery.data["from"], recovery.data["to"]) == ("none", "drain_reset")
    device = (await gpus.source.probe()).devices[1]
    assert device.recovery_action == "drain_reset"
    assert device.facts["throttled_by"] == "hardware_thermal"
    assert device.telemetry["ecc_uncorrected_aggregate"] == 12.0
    assert device.telemetry["retired_pages"] == 2.0  # one of each cause


@pytest.mark.shows("P24")
async def test_the_same_xid_twice_is_two_events(gpus: Gpus) -> None:
    await gpus.source.probe()
    gpus.happen(2, 79)
    gpus.happen(2, 79)
    events = (await gpus.source.probe()).noticed
    assert [(event.source, event.kind, event.code) for event in events] == [("nvml", "xid", 79)] * 2
    assert events[0].stable_id == "GPU-00000000-0000-0000-0000-000000000002"
    assert events[0].pci_address == "0000:18:00.0"
    assert events[0].at > 0
    gpus.happen(1, 0)
    (double,) = (await gpus.source.probe()).noticed
    assert (double.kind, double.code) == ("ecc", None)
    assert (await gpus.source.probe()).noticed == ()


async def test_questions_that_fail_lose_no_other_answer(gpus: Gpus) -> None:
    gpus.play("mute")
    first, _ = (await gpus.source.probe()).devices
    assert (first.name, first.temperature_celsius, first.health) == ("NVIDIA A100-PCIE-40GB", 41, "ok")
    assert (first.memory_bytes, first.utilization, first.recovery_action) == (None, None, "")
    assert first.capability.architecture == "ampere"  # by its compute capability
    assert not {"power_watts", "ecc_uncorrected", "remap_pending", "throttled", "sm_clock_mhz"} & set(first.telemetry)


@pytest.fixture
async def old_gpus(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> AsyncIterator[Gpus]:
    played = Gpus(build(tmp_path_factory.mktemp("old"), "-DFEW"), tmp_path)
    yield played
    await played.source.close()


async def test_a_library_without_most_functions_still_gives_what_it_has(old_gpus: Gpus) -> None:
    first, _ = (await old_gpus.source.probe()).devices
    assert (first.memory_bytes, first.utilization, first.tags) == (40 * GIB, 0.37, ("A100-40GB", "A100"))
    assert first.telemetry == {"memory_utilization": 0.12}


@pytest.mark.shows("P17")
async def test_a_gpu_that_works_in_the_hosts_memory_has_the_hosts_figures(gpus: Gpus, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 125829120 kB\nMemAvailable: 115343360 kB\n")  # 120, 110 GiB
    gpus.play("unified")
    (found,) = (await gpus.source.probe()).devices
    assert found.name == "NVIDIA GB10"
    assert [(region.kind, region.size_bytes) for region in found.regions] == [(MemoryType.UMA, 120 * GIB)]
    assert found.memory_bytes == 90 * GIB  # three quarters: the rest stays the CPU's
    assert found.memory_used_bytes == 10 * GIB
    assert found.facts["memory_total_bytes"] == str(120 * GIB)


async def test_mig_instances_know_their_place_and_their_part(gpus: Gpus) -> None:
    gpus.play("mig")
    parent, first, second = (await gpus.source.probe()).devices
    assert parent.allocatable is False
    assert (first.facts["gpu_instance"], second.facts["gpu_instance"]) == ("1", "2")
    assert first.capability.compute_units == 42
    assert first.capability.peak_tflops is None  # of the whole, not of a part


def links_of(device: Device, kind: LinkType) -> list[Link]:
    return [link for link in device.links if link.kind is kind]


async def test_looking_at_eight_gpus_each_second_takes_little_of_a_core(gpus: Gpus) -> None:
    """Ours alone: what a real driver takes for its answers comes on top."""
    gpus.play("hgx")
    await gpus.source.probe()
    assert gpus.source.probe_pid is not None
    child = psutil.Process(gpus.source.probe_pid)
    before = spent(child)
    for _ in range(20):
        await gpus.source.probe()
    share = (spent(child) - before) / 20
    assert share < 0.03, f"{share:.1%} of a core"


def spent(child: psutil.Process) -> float:
    """Seconds of processor time of both sides."""
    theirs = child.cpu_times()
    return time.process_time() + theirs.user + theirs.system
