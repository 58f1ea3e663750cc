"""The child that runs a vendor's tools: quiet where there is none, never waited for, ended when it hangs."""

import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from core.clock import ManualClock
from gpupool.discovery.amd import amd_source, devices
from gpupool.discovery.base import Inventory
from gpupool.discovery.intel import intel_source
from gpupool.discovery.tool_plans import PLANS
from gpupool.discovery.tool_probe import Runner, ToolAnswer
from gpupool.discovery.tool_source import ToolSource
from tests.waiting import is_gone, wait_until

CARD = {"card0": {"Device Name": "AMD Instinct MI210", "PCI Bus": "0000:26:00.0", "Unique ID": "0x8d1457e2c20f59d2",
                  "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "1000",
                  "Average Graphics Package Power (W)": "90.0"}}  # fmt: skip


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    path = tmp_path / "bin"
    path.mkdir()
    return path


@pytest.fixture
async def sources() -> AsyncIterator[list[ToolSource]]:
    made: list[ToolSource] = []
    yield made
    for source in made:
        await source.close()


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def prints(value: object) -> str:
    return f"cat <<'EOF'\n{json.dumps(value)}\nEOF"


def put_on_the_bus(root: Path, vendor: str, driver: str = "") -> None:
    folder = root / "sys/bus/pci/devices/0000:26:00.0"
    folder.mkdir(parents=True)
    (folder / "class").write_text("0x038000\n")
    (folder / "vendor").write_text(vendor + "\n")
    if driver:
        (root / "drivers" / driver).mkdir(parents=True)
        (folder / "driver").symlink_to(root / "drivers" / driver)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (amd_source, "No AMD GPU was found: none is on the PCI bus, and amd-smi or rocm-smi tells of none."),
        (intel_source, "No Intel GPU was found: none is on the PCI bus, and xpu-smi tells of none."),
    ],
)
async def test_without_a_tool_and_a_gpu_nothing_is_run(
    tmp_path: Path, bin_dir: Path, make: Callable[..., ToolSource], sentence: str
) -> None:
    clock = ManualClock()
    source = make(env={"PATH": str(bin_dir)}, clock=clock, root=tmp_path)
    for _ in range(3):
        assert await source.probe() == Inventory((), sentence)
        assert source.probe_pid is None
        clock.advance(1)


async def test_a_gpu_on_the_bus_whose_driver_is_missing_is_named(
    tmp_path: Path, bin_dir: Path, sources: list[ToolSource]
) -> None:
    put_on_the_bus(tmp_path, "0x1002")
    source = amd_source(env={"PATH": str(bin_dir)}, clock=ManualClock(), root=tmp_path)
    sources.append(source)
    found = await source.probe()
    assert found.reason == ("A GPU of AMD is on the PCI bus (0000:26:00.0), but no driver is bound to it: load amdgpu.")
    assert source.probe_pid is None  # asked once, and let go


async def test_a_tools_own_complaint_is_told(tmp_path: Path, bin_dir: Path, sources: list[ToolSource]) -> None:
    tool(bin_dir, "rocm-smi", "echo 'ERROR: amdgpu not found in modules' >&2; exit 2")
    source = amd_source(env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, clock=ManualClock(), root=tmp_path)
    sources.append(source)
    found = await source.probe()
    assert found.reason == "No AMD GPU was found; rocm-smi rocm said: ERROR: amdgpu not found in modules."


async def test_devices_come_of_what_the_tool_prints(tmp_path: Path, bin_dir: Path, sources: list[ToolSource]) -> None:
    tool(bin_dir, "rocm-smi", prints(CARD))
    clock = ManualClock()
    source = amd_source(env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, clock=clock, root=tmp_path)
    sources.append(source)
    (gpu,) = (await source.probe()).devices
    assert (gpu.stable_id, gpu.memory_bytes, gpu.health) == ("GPU-8d1457e2c20f59d2", 68702699520, "ok")
    first = source.probe_pid
    clock.advance(1)
    (again,) = (await source.probe()).devices  # between two runs of the tool: what it said last
    assert again == gpu
    assert source.probe_pid == first


@pytest.mark.shows("P23")
async def test_a_tool_that_hangs_holds_nothing_up_and_what_it_said_goes_stale(
    tmp_path: Path, bin_dir: Path, sources: list[ToolSource]
) -> None:
    """The probe does not wait for a tool; a probe that is held up itself is killed, and its devices are unknown."""
    tool(bin_dir, "rocm-smi", prints(CARD))
    clock = ManualClock()
    source = ToolSource(
        "amd", devices, env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, clock=clock,
        root=tmp_path, deadline_seconds=0.3,
    )  # fmt: skip
    sources.append(source)
    (gpu,) = (await source.probe()).devices
    assert gpu.health == "ok"
    pid = source.probe_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as one in uninterruptible sleep would be: it does not answer
    found = await source.probe()
    assert found.reason == "AMD's tools were asked for GPUs: The probe did not answer within 0.3 s and was killed."
    (stale,) = found.devices
    assert (stale.stable_id, stale.health) == (gpu.stable_id, "unknown")
    assert (stale.memory_bytes, stale.memory_used_bytes, stale.telemetry) == (gpu.memory_bytes, None, {})
    assert is_gone(pid)
    clock.advance(61)
    assert [device.health for device in (await source.probe()).devices] == ["ok"]


class Time:
    """Seconds that a test moves on."""

    def __init__(self) -> None:
        self.value = 0.0

    def __call__(self) -> float:
        return self.value


def runner(bin_dir: Path, now: Callable[[], float]) -> Runner:
    made = Runner(PLANS["amd"], "amd", env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, now=now)
    made._first = False  # no wait for the first answer: the time of these tests stands still
    return made


@pytest.mark.shows("P23")
def test_a_hanging_tool_is_killed_after_its_time_and_never_runs_twice(tmp_path: Path, bin_dir: Path) -> None:
    tool(bin_dir, "rocm-smi", f"echo $$ >> {tmp_path}/pids; exec sleep 600")
    now = Time()
    made = runner(bin_dir, now)
    began = time.monotonic()
    assert made.answer() == ToolAnswer(tools=["rocm-smi"])
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().strip() != "", "the tool did not start")
    now.value = 16.0  # due again, and yet running
    assert made.answer().failures == {}
    now.value = 21.0
    assert made.answer().failures == {"rocm": "it did not end within 20 s and was killed"}
    (pid,) = pids.read_text().split()
    wait_until(lambda: is_gone(int(pid)), "the tool was not killed")
    assert time.monotonic() - began < 18  # not by the machine's clock


def test_a_tool_is_asked_seldom_where_files_tell_of_what_moves(bin_dir: Path, tmp_path: Path) -> None:
    tool(bin_dir, "rocm-smi", f"echo run >> {tmp_path}/runs; echo '{{}}'")
    now = Time()
    made = runner(bin_dir, now)
    made.beside_files = True
    runs = tmp_path / "runs"
    for second, expected in ((0.0, 1), (16.0, 1), (59.0, 1), (61.0, 2)):
        now.value = second
        wait_until(lambda: not made.answer().outputs and not made._runs, "the tool did not end")
        assert runs.read_text().count("run") == expected


def test_an_output_with_an_error_code_still_counts(bin_dir: Path) -> None:
    tool(bin_dir, "rocm-smi", "echo '{\"card0\": {}}'; echo 'broken pipe' >&2; exit 1")
    made = runner(bin_dir, Time())
    answers: list[ToolAnswer] = []

    def told() -> bool:
        answers.append(made.answer())
        return bool(answers[-1].outputs)

    wait_until(told, "the tool told nothing")
    assert answers[-1].outputs == {"rocm": '{"card0": {}}\n'}
    assert answers[-1].failures == {"rocm": "broken pipe"}


def test_the_newer_tool_is_preferred_and_the_older_is_not_run(bin_dir: Path) -> None:
    tool(bin_dir, "amd-smi", "exit 0")
    tool(bin_dir, "rocm-smi", "exit 0")
    commands = PLANS["amd"].commands(str(bin_dir))
    assert {command.argv[0] for command in commands.values()} == {"amd-smi"}
    assert set(commands) == {"list", "static", "partition", "topology", "metric", "process"}


async def test_one_intel_gpu_after_the_other_is_asked_for(
    tmp_path: Path, bin_dir: Path, sources: list[ToolSource]
) -> None:
    """Details and readings are asked for by number, once the list is there."""
    listing = {"device_list": [{"device_id": 0, "device_name": "Intel(R) Data Center GPU Flex 170",
                                "pci_bdf_address": "0000:4d:00.0", "pci_device_id": "0x56c0"}]}  # fmt: skip
    detail = {"device_id": 0, "memory_physical_size_byte": "15032385536", "number_of_tiles": "1"}
    stats = {"device_level": [{"metrics_type": "XPUM_STATS_MEMORY_USED", "value": 512}]}
    tool(
        bin_dir,
        "xpu-smi",
        f"""case "$*" in
"discovery -j") {prints(listing)}
;;
"discovery -d 0 -j") {prints(detail)}
;;
"stats -d 0 -j") {prints(stats)}
;;
esac""",
    )
    source = intel_source(env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, clock=ManualClock(), root=tmp_path)
    sources.append(source)
    (gpu,) = (await source.probe()).devices
    assert (gpu.memory_bytes, gpu.memory_used_bytes) == (15032385536, 512 << 20)


def collected(made: Runner) -> ToolAnswer:
    """The first answer in which there is something."""
    answers: list[ToolAnswer] = []

    def something() -> bool:
        answers.append(made.answer())
        return bool(answers[-1].outputs or answers[-1].failures)

    wait_until(something, "the tool did not end")
    return answers[-1]


def test_what_a_tool_says_of_many_parts_is_read_to_its_end(bin_dir: Path) -> None:
    printed = json.dumps([{"gpu": gpu, "links": ["x" * 300] * 64} for gpu in range(64)])  # over a MiB
    (bin_dir / "printed").write_text(printed)
    tool(bin_dir, "rocm-smi", f"exec cat {bin_dir}/printed")
    assert collected(runner(bin_dir, Time())).outputs == {"rocm": printed}


def test_a_first_answer_that_is_full_waits_for_nothing_more(bin_dir: Path) -> None:
    """What does not fit in comes with the next: here the clock stands still, so that waiting on would have no end."""
    (bin_dir / "printed").write_text(printed := json.dumps(["x" * 300] * 6000))
    for name in ("rocm-smi", "rocminfo"):
        tool(bin_dir, name, f"exec cat {bin_dir}/printed")
    made = Runner(PLANS["amd"], "amd", env={"PATH": f"{bin_dir}:/bin:/usr/bin"}, now=Time())
    answers = [made.answer().outputs, made.answer().outputs]
    assert sorted(name for told in answers for name in told) == ["rocm", "rocminfo"]
    assert [list(told.values()) for told in answers] == [[printed], [printed]]


@pytest.mark.parametrize(
    "script",
    ["exec yes", "exec head -c 3000000 /dev/zero", "exec head -c 1000000 /dev/zero", "yes '[' | head -c 2500000"],
)
def test_what_is_too_much_is_not_read_in_part(bin_dir: Path, script: str) -> None:
    tool(bin_dir, "rocm-smi", script)
    answer = collected(runner(bin_dir, Time()))
    assert answer.outputs == {}
    assert answer.failures == {"rocm": "it printed more than 2097152 bytes of text"}
