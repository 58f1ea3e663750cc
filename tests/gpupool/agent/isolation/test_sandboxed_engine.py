"""A real engine in a real sandbox: it serves, sees nothing but its own, and is stopped and adopted as any other."""

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from gpupool.agent.groups import command_name
from gpupool.agent.isolation.sandbox import trial_argv
from gpupool.agent.processes import start_mark
from gpupool.stream.messages import InstanceFact
from tests.doubles.node_web import FakeWeb, row
from tests.gpupool.agent.conftest import TINY, TINY_URI, agent_process, kill_hard, running_agent
from tests.gpupool.agent.test_agent import serves

BWRAP = shutil.which("bwrap")


def works() -> bool:
    return BWRAP is not None and subprocess.run(trial_argv(BWRAP), check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not works(), reason="bubblewrap is not installed, or cannot make a sandbox here")


def engine_of(fact: InstanceFact) -> psutil.Process:
    """The engine itself, inside of its sandbox."""
    assert fact.pid is not None
    family = psutil.Process(fact.pid).children(recursive=True)
    (engine,) = [process for process in family if process.name() != "bwrap"]
    return engine


@pytest.mark.shows("R143", "R144")
async def test_an_engine_in_bubblewrap_serves_and_sees_only_its_own(web: FakeWeb, var_dir: Path) -> None:
    (var_dir / "secret").write_text("of another tenant")
    wish = replace(row(devices=["cpu-test"], artefact_uri=TINY_URI), isolation={"sandbox": "bubblewrap"})
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        assert await serves(fact)
        assert command_name(fact.pid or 0) == "bwrap"
        engine = engine_of(fact)
        inside = Path(f"/proc/{engine.pid}/root")
        assert (inside / str(TINY).lstrip("/")).exists()
        assert sorted(os.listdir(inside / str(TINY.parent).lstrip("/"))) == [TINY.name]  # its artefact alone
        assert os.listdir(inside / str(var_dir).lstrip("/")) == ["work"]
        assert not (inside / "etc/shadow").exists()
        namespaces = Path(f"/proc/{engine.pid}/ns"), Path("/proc/self/ns")
        assert os.readlink(namespaces[0] / "pid") != os.readlink(namespaces[1] / "pid")
        assert os.readlink(namespaces[0] / "net") == os.readlink(namespaces[1] / "net")
        assert fact.memory_rss_bytes is not None
        await web.until(lambda: web.hellos[-1].capabilities["bubblewrap"]["available"] is True)


async def test_it_is_adopted_and_stopped_as_any_other(web: FakeWeb, var_dir: Path) -> None:
    wish = replace(row(devices=["cpu-test"], artefact_uri=TINY_URI), isolation={"sandbox": "bubblewrap"})
    await web.desire(wish)
    async with running_agent(web, var_dir):
        first = await web.until_state(wish.instance_id, "ready")
        engine = engine_of(first).pid
    web.forget()
    async with running_agent(web, var_dir):
        again = await web.until_state(wish.instance_id, "ready")
        assert (again.pid, again.process_started_at) == (first.pid, first.process_started_at)
        stop = replace(wish, state="stopped", isolation={})
        await web.desire(stop)
        await web.until_state(wish.instance_id, "stopped")
        assert start_mark(first.pid or 0) is None
        assert start_mark(engine) is None
        await web.desire()
        await web.until(lambda: web.fact(wish.instance_id) is None)
        assert not (var_dir / "work" / str(wish.instance_id)).exists()


async def test_it_serves_on_when_its_agent_is_killed_and_ends_when_its_sandbox_is(web: FakeWeb, var_dir: Path) -> None:
    first_agent = await agent_process(web, var_dir)
    await web.until(lambda: bool(web.hellos))
    host = web.hellos[-1].devices[0].stable_id
    wish = replace(row(devices=[host], artefact_uri=TINY_URI), isolation={"sandbox": "bubblewrap"})
    await web.desire(wish)
    first = await web.until_state(wish.instance_id, "ready")
    await kill_hard(first_agent)
    assert await serves(first)
    web.forget()
    second_agent = await agent_process(web, var_dir)
    try:
        again = await web.until_state(wish.instance_id, "ready")
        assert (again.pid, again.process_started_at) == (first.pid, first.process_started_at)
        engine = engine_of(again)
        psutil.Process(again.pid or 0).kill()  # the sandbox alone
        await web.until(lambda: (fact := web.fact(wish.instance_id)) is not None and fact.restarts == 1)
        await web.until_state(wish.instance_id, "ready")
        assert not engine.is_running()
    finally:
        await kill_hard(second_agent)


GVISOR_WORKS = shutil.which("runsc") is not None


@pytest.mark.skipif(not GVISOR_WORKS, reason="gVisor (runsc) is not installed here")
@pytest.mark.shows("R143")
async def test_an_engine_in_gvisor_serves_and_is_stopped(web: FakeWeb, var_dir: Path) -> None:
    wish = replace(row(devices=["cpu-test"], artefact_uri=TINY_URI), isolation={"sandbox": "gvisor"})
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        assert await serves(fact)
        assert command_name(fact.pid or 0).startswith("runsc")
        await web.desire(replace(wish, state="stopped"))
        await web.until_state(wish.instance_id, "stopped")
        assert start_mark(fact.pid or 0) is None


@pytest.mark.skipif(GVISOR_WORKS, reason="gVisor (runsc) is installed here")
@pytest.mark.shows("R143")
async def test_a_sandbox_that_is_not_there_is_refused_and_not_left_out(web: FakeWeb, var_dir: Path) -> None:
    wish = replace(row(devices=["cpu-test"], artefact_uri=TINY_URI), isolation={"sandbox": "gvisor"})
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "failed")
        assert fact.reason == "It asks for gVisor, which its node lacks: runsc was not found: install gVisor."
        assert fact.pid is None
