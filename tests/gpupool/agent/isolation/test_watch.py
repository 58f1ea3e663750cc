"""Whether running instances are isolated as asked and see their devices is looked at while they run."""

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from core.clock import ManualClock
from gpupool.agent.isolation import watch as watches
from gpupool.agent.isolation.sight import unseen
from gpupool.agent.isolation.watch import CLIENTS, UNSEEN, IsolationWatch, look_in_child
from gpupool.discovery.base import Noticed
from gpupool.stream.messages import DesiredInstance
from tests.doubles.node_web import row
from tests.gpupool.agent.isolation.test_launcher import CDI, GPU

DEVICES = {GPU.stable_id: GPU}


class Watched:
    """One instance on one GPU, and what is noticed of it."""

    def __init__(self, **changes: Any) -> None:
        plain = row(devices=[GPU.stable_id], artefact_uri="file:///m.gguf")
        self.row: DesiredInstance = replace(plain, **changes)
        self.use: dict[int, int | None] = {}
        self.missing: dict[str, str] = {}
        self.noticed: list[Noticed] = []
        self.asked: list[tuple[int, tuple[str, ...]]] = []
        self.watch = IsolationWatch(
            running=lambda: [(self.row, [7, 8, 9])],
            devices=lambda: DEVICES,
            device_use=lambda device: self.use,
            cdi_specs=lambda: [CDI],
            notice=self.noticed.append,
            clock=ManualClock(),
            sight=self._sight,
        )

    async def _sight(self, pid: int, nodes: Sequence[str]) -> dict[str, str]:
        self.asked.append((pid, tuple(nodes)))
        return self.missing

    async def kinds(self) -> list[tuple[str, str]]:
        """What is noticed now, of which device."""
        self.noticed.clear()
        await self.watch.look()
        return [(one.kind, one.stable_id) for one in self.noticed]


@pytest.mark.shows("P22")
async def test_an_instance_that_lost_its_device_is_told_of_once_until_it_has_it_back() -> None:
    watched = Watched()
    assert await watched.kinds() == []
    assert watched.asked == [(7, ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"))]
    watched.missing = {"/dev/nvidia3": "Operation not permitted"}
    assert await watched.kinds() == [(UNSEEN, "GPU-1")]
    assert watched.noticed[0].text == "The instance cannot open /dev/nvidia3 any more: Operation not permitted."
    assert watched.noticed[0].data == {"instance_id": str(watched.row.instance_id)}
    assert await watched.kinds() == []
    watched.missing = {}
    await watched.kinds()
    watched.missing = {"/dev/nvidia3": "Operation not permitted"}
    assert await watched.kinds() == [(UNSEEN, "GPU-1")]


async def test_a_look_that_fails_ends_neither_the_watch_nor_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, looks, done = Watched(), 0, asyncio.Event()

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            done.set()
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(watches, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watched.watch, "look", look)
    task = asyncio.create_task(watched.watch.run())
    await asyncio.wait({task, waiting := asyncio.create_task(done.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert not task.done()
    for one in (task, waiting):
        one.cancel()


@pytest.mark.shows("P25")
async def test_clients_of_mps_are_counted() -> None:
    watched = Watched(isolation={"mps": True})
    watched.use = {7: 1, 99: 1}  # 99 is another's
    assert await watched.kinds() == []
    watched.use = {7: 1, 8: None, 99: 1}
    assert await watched.kinds() == [(CLIENTS, "GPU-1")]
    watched.row = replace(watched.row, isolation={"mps": True, "mps_clients": 2})
    assert await watched.kinds() == []
    watched.row = replace(watched.row, isolation={})
    assert await watched.kinds() == []


@pytest.mark.shows("P22")
async def test_a_node_is_opened_as_the_process_sees_it(tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    node.touch()
    gone = tmp_path / "nvidia1"
    assert unseen(os.getpid(), [str(node), str(gone)]) == {str(gone): "No such file or directory"}
    assert await look_in_child(os.getpid(), [str(node)]) == {}
    assert await look_in_child(os.getpid(), [str(gone)]) == {str(gone): "No such file or directory"}
