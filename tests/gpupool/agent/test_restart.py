"""Agents that end, by a signal or by force, and what becomes of their engines."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from core.clock import SystemClock
from gpupool.agent.adoption import adopt_all
from gpupool.agent.leftovers import stop_all
from gpupool.agent.ports import PortRange
from gpupool.agent.processes import EngineProcess, marked_engines, start_engine, start_mark
from gpupool.agent.state import MARK_VARIABLE, AgentAlreadyRuns, InstanceRecord, StateDir, read_records
from gpupool.agent.supervisor import Supervisor
from gpupool.engines.base import GivenDevice
from gpupool.stream.messages import InstanceFact
from tests.doubles.node_web import FakeWeb, row
from tests.gpupool.agent.conftest import FAST, TINY_URI, agent_process, kill_hard, running_agent
from tests.gpupool.agent.test_agent import kill, serves
from tests.ports import worker_port

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


async def own_device(web: FakeWeb) -> str:
    """The stable id of the CPU that an agent found on this machine."""
    await web.until(lambda: bool(web.hellos))
    return next(device.stable_id for device in web.hellos[0].devices if device.kind == "cpu")


@pytest.mark.shows("P7")
async def test_an_agent_killed_and_started_again_adopts_its_engine(web: FakeWeb, var_dir: Path) -> None:
    first_agent = await agent_process(web, var_dir)
    wish = row(devices=[await own_device(web)], artefact_uri=TINY_URI)
    await web.desire(wish)
    before = await web.until_state(wish.instance_id, "ready")
    await kill_hard(first_agent)
    assert await serves(before)  # with nobody to look after it
    web.forget()
    second_agent = await agent_process(web, var_dir)
    try:
        await web.until(lambda: bool(web.hellos))
        after = {fact.instance_id: fact for fact in web.hellos[0].instances}[wish.instance_id]
        assert (after.state, after.pid, after.port) == ("ready", before.pid, before.port)
        assert (after.process_started_at, after.restarts) == (before.process_started_at, before.restarts)
        kill(after)  # an adopted engine is watched like one's own child
        down = await web.until_state(wish.instance_id, "staging")
        assert "The engine ended while ready" in down.reason
        again = await web.until_state(wish.instance_id, "ready")
        assert again.restarts == before.restarts + 1
    finally:
        second_agent.send_signal(signal.SIGTERM)
        await second_agent.communicate()
    assert second_agent.returncode == 0
    assert await serves(again)  # told to stop, an agent leaves its engines


@pytest.mark.shows("P7")
@pytest.mark.parametrize("states", [("staging", "loading"), ("loading", "warming"), ("warming", "ready")])
async def test_an_agent_killed_at_any_point_leaves_one_engine(
    web: FakeWeb, var_dir: Path, states: tuple[str, ...]
) -> None:
    first_agent = await agent_process(web, var_dir)
    wish = row(devices=[await own_device(web)], artefact_uri=TINY_URI)
    await web.desire(wish)
    await web.until_state(wish.instance_id, *states, "ready")  # a short state may fall between two reports
    await kill_hard(first_agent)
    web.forget()
    second_agent = await agent_process(web, var_dir)
    try:
        fact = await web.until_state(wish.instance_id, "ready")
        assert [pid for pid, _ in marked_engines(var_dir / "agent" / "test")] == [fact.pid]
        assert fact.restarts <= 1
    finally:
        await kill_hard(second_agent)


async def test_an_engine_that_ended_while_no_agent_ran_is_started_again(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        before = await web.until_state(wish.instance_id, "ready")
    kill(before)
    web.forget()
    async with running_agent(web, var_dir):
        after = await web.until_state(wish.instance_id, "ready")
        assert after.pid != before.pid
        assert after.restarts == before.restarts + 1


async def test_an_engine_that_lost_its_lease_meanwhile_is_ended(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=1)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        before = await web.until_state(wish.instance_id, "ready")
    newer = row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=9)
    await web.desire(newer)
    web.forget()
    async with running_agent(web, var_dir):
        await web.until_state(newer.instance_id, "ready")
        assert start_mark(before.pid or 0) is None


@pytest.mark.shows("P8")
async def test_an_engine_that_nobody_knows_any_more_is_ended_on_return(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        before = await web.until_state(wish.instance_id, "ready")
    web.forget()
    await web.desire()  # deleted while the node was away
    async with running_agent(web, var_dir):
        await web.until(lambda: bool(web.hellos))
        assert [fact.instance_id for fact in web.hellos[0].instances] == [wish.instance_id]
        assert await serves(before)  # silence is no order
        # What the web process answers to an engine that no row of its accounts for.
        await web.desire(
            row(devices=[], artefact_uri="", instance_id=wish.instance_id, state="stopped", engine="", engine_args={})
        )
        await web.until_state(wish.instance_id, "stopped")
        assert start_mark(before.pid or 0) is None


async def test_told_so_an_agent_takes_its_engines_with_it(web: FakeWeb, var_dir: Path) -> None:
    agent = await agent_process(web, var_dir, "--stop-engines-on-exit")
    wish = row(devices=[await own_device(web)], artefact_uri=TINY_URI)
    await web.desire(wish)
    fact = await web.until_state(wish.instance_id, "ready")
    agent.send_signal(signal.SIGINT)
    await asyncio.wait_for(agent.communicate(), 60)
    assert agent.returncode == 0
    assert start_mark(fact.pid or 0) is None


async def test_leftovers_are_ended_without_an_agent(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
    assert await asyncio.to_thread(stop_all, var_dir) == [fact.pid]
    assert start_mark(fact.pid or 0) is None
    assert stop_all(var_dir) == []


async def test_a_second_agent_of_the_same_node_does_not_start(web: FakeWeb, var_dir: Path) -> None:
    async with running_agent(web, var_dir):
        await web.until(lambda: bool(web.hellos))
        agent = await agent_process(web, var_dir)
        _, stderr = await asyncio.wait_for(agent.communicate(), 60)
        assert agent.returncode == 1
        assert f"Another agent (process {os.getpid()}) runs".encode() in stderr


class Folder:
    """A state folder with fake engines in it."""

    def __init__(self, var_dir: Path) -> None:
        self.state = StateDir(var_dir / "agent" / "test")
        self.state.open()
        self.log = var_dir / "log" / "engine.log"

    def start(self, record: InstanceRecord, mark: str | None = None) -> EngineProcess:
        env = {MARK_VARIABLE: mark or self.state.mark(record.row)}
        return start_engine(SLEEPER, env=env, log_path=self.log, cwd=self.state.path)


@pytest.fixture
def folder(var_dir: Path) -> Folder:
    return Folder(var_dir)


def new_record(**fields: object) -> InstanceRecord:
    return InstanceRecord(row=row(devices=["cpu-test"], artefact_uri=TINY_URI), phase="ready", **fields)  # type: ignore[arg-type]  # a test's shorthand


async def test_an_engine_is_adopted_although_its_pid_was_never_written(folder: Folder) -> None:
    record = new_record()
    folder.state.save(record)  # as just before the start
    process = folder.start(record)
    (adopted,) = await adopt_all(folder.state)
    assert adopted.process is not None
    assert (adopted.process.pid, adopted.record.pid) == (process.pid, process.pid)
    assert adopted.record.phase == "loading"  # nothing answers for it


async def test_a_child_that_outlived_its_engine_is_a_leftover_too(folder: Folder) -> None:
    record = new_record()
    env = {MARK_VARIABLE: folder.state.mark(record.row)}
    code = f"import subprocess; print(subprocess.Popen({SLEEPER!r}).pid)"
    engine = start_engine((sys.executable, "-c", code), env=env, log_path=folder.log, cwd=folder.state.path)
    record.pid, record.start_mark = engine.pid, engine.mark
    folder.state.save(record)
    await engine.ended()
    child = EngineProcess(int(folder.log.read_text()), start_mark(int(folder.log.read_text())) or "gone")
    assert child.alive()
    await asyncio.to_thread(stop_all, folder.state.path.parents[1])
    async with asyncio.timeout(30):
        await child.ended()


async def test_a_stranger_with_the_same_pid_is_left_alone(folder: Folder) -> None:
    stranger = await asyncio.create_subprocess_exec(*SLEEPER)
    try:
        mark = start_mark(stranger.pid)
        assert mark is not None
        earlier = mark.rpartition(":")[0] + ":1"  # the same pid, started at another time
        folder.state.save(new_record(pid=stranger.pid, start_mark=earlier))
        (adopted,) = await adopt_all(folder.state)
        assert adopted.process is None
        assert adopted.record.phase == "staging"
        assert start_mark(stranger.pid) == mark
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_process_of_another_lease_is_not_adopted(folder: Folder) -> None:
    record = new_record()
    process = folder.start(record, mark=f"{folder.state.path}|{record.row.instance_id}|999|999")
    record.pid, record.start_mark = process.pid, process.mark
    folder.state.save(record)
    (adopted,) = await adopt_all(folder.state)
    assert adopted.process is None
    await process.ended()  # it was of this agent, and no record explains its lease


async def test_an_engine_without_a_record_is_killed(folder: Folder) -> None:
    process = folder.start(new_record())
    assert await adopt_all(folder.state) == []
    assert (await process.ended()).describe() == "was killed by SIGKILL"


async def test_a_record_that_cannot_be_read_is_set_aside(folder: Folder) -> None:
    file = folder.state.path / "instances" / "0.json"
    file.write_text("{half a rec")
    assert await adopt_all(folder.state) == []
    assert not file.exists()
    assert file.with_suffix(".unreadable").exists()


def test_records_and_fences_survive(folder: Folder) -> None:
    record = new_record(pid=4, start_mark="b:1", port=21_000, restarts=2, slots=2)
    folder.state.save(record)
    folder.state.save_fences({"gpu0": 7})
    folder.state.close()
    again = StateDir(folder.state.path)
    again.open()
    assert again.load() == {record.row.instance_id: record}
    assert again.load_fences() == {"gpu0": 7}
    again.forget(record.row.instance_id)
    assert read_records(again.path) == []
    again.close()


def test_a_state_folder_has_one_agent(folder: Folder) -> None:
    with pytest.raises(AgentAlreadyRuns, match="stop it first"):
        StateDir(folder.state.path).open()


async def test_how_a_process_ended_is_told(folder: Folder) -> None:
    record = new_record()
    process = folder.start(record)
    process.signal(signal.SIGTERM)
    assert (await process.ended()).describe() == "was killed by SIGTERM"
    short = start_engine(
        (sys.executable, "-c", "raise SystemExit(3)"), env={}, log_path=folder.log, cwd=folder.log.parent
    )
    assert (await short.ended()).describe() == "exited with code 3"
    adopted = EngineProcess(process.pid, process.mark)
    assert (await adopted.ended()).describe() == "ended"


async def test_told_to_stop_all_an_agent_starts_none_again_whatever_it_hears(folder: Folder, var_dir: Path) -> None:
    supervisor = Supervisor(
        state=folder.state,
        log_dir=var_dir / "log",
        ports=PortRange(worker_port(300), 50),
        clock=SystemClock(),
        devices=lambda: {"cpu-test": GivenDevice("cpu-test", "cpu", "host")},
        timings=FAST,
    )
    await supervisor.adopt()
    running = asyncio.create_task(supervisor.run())
    rows = [row(devices=["cpu-test"], artefact_uri=TINY_URI)]
    supervisor.set_desired(rows)
    async with asyncio.timeout(30):
        while [fact.state for fact in supervisor.facts()] != ["ready"]:  # noqa: ASYNC110  # an engine loads
            await asyncio.sleep(0.02)
    stopping = asyncio.create_task(supervisor.stop_all())
    await asyncio.sleep(0)
    supervisor.set_desired(rows)  # the stream still says what it said before
    await stopping
    for _ in range(10):
        await asyncio.sleep(0)  # the supervisor has its turns
        assert [fact.state for fact in supervisor.facts()] == ["stopped"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert list(marked_engines(folder.state.path)) == []


class SkippingClock(SystemClock):
    """The machine's, which somebody can move on."""

    skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


async def test_one_probe_after_a_standstill_of_the_machine_ends_no_engine(folder: Folder, var_dir: Path) -> None:
    """A virtual machine that was paused wakes up with its engines as late as its agent."""
    clock = SkippingClock()
    supervisor = Supervisor(
        state=folder.state,
        log_dir=var_dir / "log",
        ports=PortRange(worker_port(300), 50),
        clock=clock,
        devices=lambda: {"cpu-test": GivenDevice("cpu-test", "cpu", "host")},
        timings=replace(FAST, health_every=0.6, health_deadline=0.6, hung_deadline=60.0),
    )

    async def until(state: str, reason: str) -> InstanceFact:
        async with asyncio.timeout(30):
            while True:
                for fact in supervisor.facts():
                    if (fact.state, fact.reason) == (state, reason):
                        return fact
                await asyncio.sleep(0.02)

    await supervisor.adopt()
    running = asyncio.create_task(supervisor.run())
    supervisor.set_desired([row(devices=["cpu-test"], artefact_uri=TINY_URI)])
    before = await until("ready", "")
    os.kill(before.pid or 0, signal.SIGSTOP)
    clock.skipped = 3600.0
    await until("ready", "It does not answer its health endpoint in time.")
    os.kill(before.pid or 0, signal.SIGCONT)
    after = await until("ready", "")
    assert (after.pid, after.restarts) == (before.pid, before.restarts)
    await supervisor.stop_all()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_an_agent_of_the_first_release_left_is_adopted(web: FakeWeb, var_dir: Path) -> None:
    """Its records have fewer members, and beside them lie fences and nothing else."""
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        before = await web.until_state(wish.instance_id, "ready")
    folder = var_dir / "agent" / "test"
    (file,) = (folder / "instances").iterdir()
    record = msgspec.json.decode(file.read_bytes())
    members = (
        "row", "phase", "pid", "start_mark", "process_started_at", "port", "log_path", "slots", "restarts", "reason",
    )  # fmt: skip
    rows = (
        "instance_id", "state", "lease_id", "fencing_token", "device_ids", "memory_bytes", "engine", "served_name",
        "artefact_uri", "engine_args", "drain_seconds",
    )  # fmt: skip
    old = {name: record[name] for name in members}
    file.write_bytes(msgspec.json.encode(old | {"row": {name: record["row"][name] for name in rows}}))
    for name in ("events.json", "actions.json", "devices.json"):
        (folder / name).unlink(missing_ok=True)
    web.forget()
    async with running_agent(web, var_dir):
        after = await web.until_state(wish.instance_id, "ready")
        assert (after.pid, after.process_started_at, after.restarts) == (before.pid, before.process_started_at, 0)
        assert await serves(after)
