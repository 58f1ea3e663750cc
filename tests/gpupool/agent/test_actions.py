"""Actions on devices: nothing that is held is reset, a dry run runs nothing, and the end of each is told once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from core.clock import SystemClock
from gpupool.agent import actions
from gpupool.agent.actions import ActionRunner, Patience
from gpupool.discovery.base import Device, DeviceProcess
from gpupool.stream.messages import ActionFact, DesiredInstance, DeviceAction
from tests.waiting import wait_until

GIB = 1 << 30
OURS = UUID(int=7)
SMI = """#!/bin/sh
echo "$@" >> {calls}
{body}
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi of the test's own, before the machine's; returns the file that its calls are written to."""
    calls, folder = tmp_path / "calls", tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    make_smi(tmp_path, "exit 0")
    return calls


def said(calls: Path) -> str:
    """What nvidia-smi was called with, line by line."""
    return calls.read_text() if calls.exists() else ""


def make_smi(tmp_path: Path, body: str) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(SMI.format(calls=tmp_path / "calls", body=body))
    program.chmod(0o755)


def a_gpu(*processes: DeviceProcess, **more: Any) -> Device:
    given: dict[str, Any] = {
        "stable_id": "GPU-1", "kind": "gpu", "vendor": "nvidia", "name": "A", "memory_used_bytes": 0,
        "processes": tuple(processes),
    }  # fmt: skip
    return Device(**given | more)


def an_action(action: str, *, stable_id: str = "GPU-1", dry_run: bool = False) -> DeviceAction:
    return DeviceAction(action_id=uuid4(), action=action, stable_id=stable_id, dry_run=dry_run)


def an_engine(*device_ids: str, pid: int = 11) -> tuple[DesiredInstance, list[int]]:
    row = DesiredInstance(
        instance_id=OURS, state="running", lease_id=1, fencing_token=1, device_ids=list(device_ids), memory_bytes=GIB,
        engine="vllm", served_name="m", artefact_uri="file:///m", engine_args={},
    )  # fmt: skip
    return row, [pid]


class Node:
    def __init__(self, folder: Path, *devices: Device, reboot: str = "true") -> None:
        self.devices = list(devices)
        self.running: list[tuple[DesiredInstance, list[int]]] = []
        self.told = asyncio.Event()
        self.runner = ActionRunner(
            path=folder / "actions.json",
            devices=lambda: self.devices,
            running=lambda: self.running,
            on_change=self.told.set,
            reboot_command=(reboot,),
            clock=SystemClock(),
            patience=Patience(holders=0.2, poll=0.01, reset=30.0, notice=0.0),
        )

    async def end_of(self, row: DeviceAction) -> ActionFact:
        self.runner.set_wanted([row])
        async with asyncio.timeout(30):
            while True:
                for fact in self.runner.facts():
                    if fact.action_id == row.action_id and fact.state != "running":
                        return fact
                self.told.clear()
                await self.told.wait()


@asynccontextmanager
async def a_node(folder: Path, *devices: Device, **more: Any) -> AsyncIterator[Node]:
    node = Node(folder, *devices, **more)
    node.runner.load()
    task = asyncio.create_task(node.runner.run())
    try:
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_empty_device_is_reset_by_its_uuid_and_seen_to_answer(tmp_path: Path, smi: Path) -> None:
    async with a_node(tmp_path, a_gpu()) as node:
        fact = await node.end_of(an_action("reset"))
    assert (fact.state, fact.outcome) == ("done", "It was reset, and answers.")
    assert said(smi).splitlines() == [
        "--gpu-reset -i GPU-1", "--query-gpu=uuid --format=csv,noheader -i GPU-1",
    ]  # fmt: skip


@pytest.mark.shows("R139")
async def test_a_device_that_a_process_holds_is_not_reset(tmp_path: Path, smi: Path) -> None:
    async with a_node(tmp_path, a_gpu(DeviceProcess(pid=99, name="train.py"))) as node:
        fact = await node.end_of(an_action("drain_reset"))
        assert fact.state == "failed"
        assert fact.outcome == "Process 99 (train.py) still holds it."
        node.devices = [a_gpu(partition_of="GPU-0")]
        assert "divided" in (await node.end_of(an_action("reset"))).outcome
        node.devices = [a_gpu(vendor="amd")]
        assert "cannot reset" in (await node.end_of(an_action("reset"))).outcome
        assert "no device GPU-9" in (await node.end_of(an_action("reset", stable_id="GPU-9"))).outcome
    assert said(smi) == ""


async def test_a_dry_run_says_what_it_would_run_and_runs_nothing(tmp_path: Path, smi: Path) -> None:
    async with a_node(tmp_path, a_gpu(), reboot="/bin/false") as node:
        reset = await node.end_of(an_action("reset", dry_run=True))
        reboot = await node.end_of(an_action("reboot", stable_id="", dry_run=True))
    assert (reset.state, reboot.state) == ("dry_run", "dry_run")
    assert "nvidia-smi --gpu-reset -i GPU-1" in reset.outcome
    assert "/bin/false" in reboot.outcome
    assert said(smi) == ""


@pytest.mark.shows("R92")
async def test_a_power_limit_is_a_dry_run_until_it_is_for_real(tmp_path: Path, smi: Path) -> None:
    busy = a_gpu(DeviceProcess(pid=99))  # what runs there runs on
    async with a_node(tmp_path, busy) as node:
        wish = msgspec.structs.replace(an_action("limit_power", dry_run=True), watts=300)
        dry = await node.end_of(wish)
        assert (dry.state, dry.outcome) == ("dry_run", "It would run: nvidia-smi -i GPU-1 --power-limit 300")
        assert said(smi) == ""
        done = await node.end_of(msgspec.structs.replace(wish, action_id=uuid4(), dry_run=False))
        assert done.state == "done"
        assert said(smi) == "-i GPU-1 --power-limit 300\n"
        assert "how many watts" in (await node.end_of(an_action("limit_power"))).outcome
        node.devices = [a_gpu(vendor="amd")]
        refused = await node.end_of(msgspec.structs.replace(wish, action_id=uuid4(), dry_run=False))
        assert refused.state == "failed"


async def test_what_a_tool_says_is_told_when_it_fails_or_hangs(
    tmp_path: Path, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_smi(tmp_path, "echo 'GPU is in use by another client'; exit 19")
    async with a_node(tmp_path, a_gpu()) as node:
        fact = await node.end_of(an_action("reset"))
        assert fact.state == "failed"
        assert "code 19" in fact.outcome
        assert "in use by another client" in fact.outcome
        make_smi(tmp_path, "exec sleep 60")
        node.runner._patience = Patience(holders=0.2, poll=0.01, reset=0.2)
        assert "did not answer" in (await node.end_of(an_action("reset"))).outcome
        monkeypatch.setenv("PATH", "/nowhere")
        assert "cannot be run" in (await node.end_of(an_action("reset"))).outcome


async def test_a_node_with_a_process_on_a_gpu_is_not_restarted(tmp_path: Path) -> None:
    mark = tmp_path / "restarted"
    async with a_node(tmp_path, a_gpu(DeviceProcess(pid=99)), reboot=str(mark)) as node:
        fact = await node.end_of(an_action("reboot", stable_id=""))
    assert (fact.state, fact.outcome) == ("failed", "Process 99 (unknown) uses GPU-1.")


async def test_an_engine_that_the_driver_does_not_list_still_holds_its_device_and_its_node(
    tmp_path: Path, smi: Path
) -> None:
    mark = tmp_path / "restarted"
    async with a_node(tmp_path, a_gpu(), reboot=str(mark)) as node:
        node.running = [an_engine("GPU-2")]
        assert (await node.end_of(an_action("reset", dry_run=True))).state == "dry_run"  # it is on another one
        node.running = [an_engine("GPU-1")]
        reset = await node.end_of(an_action("reset"))
        reboot = await node.end_of(an_action("reboot", stable_id=""))
    assert (reset.state, reset.outcome) == ("failed", f"Instance {OURS} still runs on it.")
    assert (reboot.state, reboot.outcome) == ("failed", f"Instance {OURS} still runs on this node.")
    assert said(smi) == ""
    assert not mark.exists()


async def test_a_restart_is_told_before_it_and_never_called_done_by_the_agent(tmp_path: Path) -> None:
    command, mark = tmp_path / "restart", tmp_path / "restarted"
    command.write_text(f"#!/bin/sh\ntouch {mark}\n")
    command.chmod(0o755)
    async with a_node(tmp_path, a_gpu(), reboot=str(command)) as node:
        node.runner.set_wanted([an_action("reboot", stable_id="")])
        await asyncio.to_thread(wait_until, mark.exists, "the node was not restarted")
        (fact,) = node.runner.facts()
    assert (fact.state, fact.outcome) == ("running", f"It restarts: {command}")


async def test_a_restart_that_did_not_come_keeps_nothing_else_waiting(tmp_path: Path, smi: Path) -> None:
    async with a_node(tmp_path, a_gpu()) as node:
        node.runner.set_wanted([an_action("reboot", stable_id="")])
        async with asyncio.timeout(30):
            while not any(fact.outcome for fact in node.runner.facts()):
                node.told.clear()
                await node.told.wait()
        fact = await node.end_of(an_action("reset"))  # the restart's row is gone: its end was not told in time
    assert fact.state == "done"


async def test_a_defect_fails_an_action_and_does_not_end_the_agent(tmp_path: Path) -> None:
    odd: Any = {"memory_reserved_bytes": None}
    async with a_node(tmp_path, a_gpu(telemetry=odd)) as node:
        fact = await node.end_of(an_action("end_processes"))
        assert fact.state == "failed"
        assert "defect" in fact.outcome
        assert (await node.end_of(an_action("clear_cache"))).state == "done"


@pytest.mark.shows("R139")
async def test_memory_is_seen_to_return_and_other_peoples_is_left_alone(tmp_path: Path) -> None:
    theirs = DeviceProcess(pid=99, memory_bytes=4 * GIB)
    async with a_node(tmp_path, a_gpu(theirs, memory_used_bytes=4 * GIB + 5)) as node:
        node.running = [an_engine("GPU-1")]
        done = await node.end_of(an_action("end_processes"))
        assert done.state == "done"
        node.devices = [a_gpu(theirs, memory_used_bytes=9 * GIB)]
        leaked = await node.end_of(an_action("end_processes"))
        assert (leaked.state, "no process owns" in leaked.outcome) == ("failed", True)
        node.devices = [a_gpu(theirs, DeviceProcess(pid=11, memory_bytes=1), memory_used_bytes=4 * GIB)]
        assert "11 are still on it" in (await node.end_of(an_action("end_processes"))).outcome
        node.devices = [a_gpu(memory_used_bytes=None)]
        assert "cannot be seen" in (await node.end_of(an_action("end_processes"))).outcome


async def test_caches_are_emptied_by_our_own_processes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def ask(pids: list[int]) -> int:
        asked.extend(pids)
        return len(pids)

    monkeypatch.setattr(actions, "signal_listeners", ask)
    async with a_node(tmp_path, a_gpu(DeviceProcess(pid=11), DeviceProcess(pid=99))) as node:
        node.running = [an_engine("GPU-1")]
        fact = await node.end_of(an_action("clear_cache"))
    assert (fact.state, asked) == ("done", [11])


async def test_what_has_ended_is_not_done_again_by_the_next_agent_and_forgotten_once_it_is_kept(
    tmp_path: Path, smi: Path
) -> None:
    row = an_action("reset")
    async with a_node(tmp_path, a_gpu()) as node:
        await node.end_of(row)
    asked = said(smi)
    async with a_node(tmp_path, a_gpu()) as node:
        assert (await node.end_of(row)).state == "done"
        assert said(smi) == asked
        node.runner.set_wanted([])
        assert node.runner.facts() == []
    async with a_node(tmp_path, a_gpu()) as node:
        assert node.runner.facts() == []


async def test_an_action_of_a_newer_release_is_refused_by_a_sentence(tmp_path: Path) -> None:
    async with a_node(tmp_path, a_gpu()) as node:
        assert "does not know" in (await node.end_of(an_action("polish"))).outcome
        assert "nothing that an agent does" in (await node.end_of(an_action("isolate"))).outcome
