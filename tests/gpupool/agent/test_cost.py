"""What an agent costs its node: readings of eight GPUs a second must not be felt."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.doubles.node_web import FakeWeb
from tests.gpupool.agent.conftest import ROOT
from tests.gpupool.discovery.nvml_gpus import build

GPUS = 8


def cpu_seconds(process: psutil.Process) -> float:
    """Of the agent and of its probes."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        times = one.cpu_times()
        total += times.user + times.system
    return total


async def agent_share(web: FakeWeb, var_dir: Path, folder: Path, *, seconds: float) -> float:
    """The share of one core that an agent takes while it reports eight GPUs, of no more seconds than reports."""
    scenario = var_dir / "scenario"
    scenario.write_text("hgx\n")
    script = Path(__file__).with_name("cost_agent.py")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    agent = await asyncio.create_subprocess_exec(
        sys.executable, str(script), web.url, web.token, str(var_dir), str(folder), str(scenario), env=env
    )
    try:
        await web.until(lambda: bool(web.observed) and len(web.observed[-1].devices) == GPUS + 1)
        reports = len(web.observed)
        process = psutil.Process(agent.pid)
        before, begun = cpu_seconds(process), asyncio.get_running_loop().time()
        await asyncio.sleep(seconds)
        await web.until(lambda: len(web.observed) - reports >= seconds * 0.7)  # later where the machine stood still
        used, passed = cpu_seconds(process) - before, asyncio.get_running_loop().time() - begun
        return used / min(passed, len(web.observed) - reports)  # a report is of a second
    finally:
        agent.send_signal(signal.SIGTERM)
        await agent.wait()


async def test_an_agent_takes_little_of_a_core(var_dir: Path, tmp_path: Path) -> None:
    async with FakeWeb(heartbeat_seconds=2.0) as web:
        share = await agent_share(web, var_dir, build(tmp_path), seconds=4.0)
    assert share < 0.10  # 3 % on a machine of its own; this one runs other tests at the same time


@pytest.mark.drill
async def test_an_agent_takes_less_than_three_percent_of_a_core(var_dir: Path, tmp_path: Path) -> None:
    async with FakeWeb(heartbeat_seconds=2.0) as web:
        share = await agent_share(web, var_dir, build(tmp_path), seconds=60.0)
    print(f"an agent with {GPUS} GPUs takes {share:.2%} of a core")
    assert share < 0.03
