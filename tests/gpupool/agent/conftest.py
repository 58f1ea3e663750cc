"""A fake web process, agents that are cleaned up with their engines, and the tiny model."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpupool.agent.leftovers import stop_all
from gpupool.agent.node import NodeAgent, NodeSettings
from gpupool.agent.workshop import Timings
from gpupool.discovery.base import Device, DeviceSource, Inventory
from tests.doubles.node_web import FakeWeb
from tests.ports import worker_port

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests" / "data" / "tiny512.gguf"
TINY_URI = TINY.as_uri()

FAST = Timings(load_deadline=45.0, load_poll=0.1, health_every=0.3, stop_grace=5.0, drain_notice=0.2)


class OneCpu:
    """A device source with one CPU device of 1 GiB."""

    device = Device(stable_id="cpu-test", kind="cpu", vendor="host", name="Test CPU", memory_bytes=1 << 30)

    async def probe(self) -> Inventory:
        return Inventory((self.device,), "")

    async def close(self) -> None:
        return None


@pytest.fixture
async def web() -> AsyncIterator[FakeWeb]:
    async with FakeWeb() as fake:
        yield fake


@pytest.fixture
def var_dir(tmp_path: Path) -> Iterator[Path]:
    """A state folder; engines that were started from it are gone after the test."""
    yield tmp_path
    stop_all(tmp_path, grace_seconds=2.0)


@asynccontextmanager
async def running_agent(
    web: FakeWeb,
    var_dir: Path,
    *,
    timings: Timings = FAST,
    port_first: int | None = None,
    sources: Sequence[DeviceSource] = (),
    **settings: Any,
) -> AsyncIterator["asyncio.Task[None]"]:
    """An agent in this process; leaving the block tells it to stop."""
    agent = NodeAgent(
        NodeSettings(
            node="test",
            token=web.token,
            web_url=web.url,
            var_dir=var_dir,
            port_first=port_first or worker_port(0),
            port_count=50,
            timings=timings,
            **settings,
        ),
        [OneCpu(), *sources],
    )
    stop = asyncio.Event()
    task = asyncio.create_task(agent.run(stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), 20)


async def agent_process(
    web: FakeWeb, var_dir: Path, *arguments: str, token: str | None = None
) -> asyncio.subprocess.Process:
    """`manage.py agent` as a process of its own, without any store's URL."""
    env = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    env |= {
        "GATEHOUSE_VAR_DIR": str(var_dir),
        "GATEHOUSE_WEB_URL": web.url,
        "GATEHOUSE_NODE_TOKEN": web.token if token is None else token,
        "GATEHOUSE_ENGINE_PORT_FIRST": str(worker_port(100)),
        "GATEHOUSE_LOG_FORMAT": "console",
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "manage.py"), "agent", "--node", "test", *arguments,
        env=env, cwd=var_dir, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def kill_hard(process: asyncio.subprocess.Process) -> None:
    """SIGKILL, and wait for the end."""
    process.send_signal(signal.SIGKILL)
    await process.communicate()
