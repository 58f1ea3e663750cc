"""Over a stream that loses frames and breaks, every event arrives, in order and once."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gpupool.discovery.base import Device, Inventory, Noticed
from gpupool.stream.messages import STREAM_PATH, Desired, EventFact
from tests.doubles.node_web import FakeWeb
from tests.gpupool.agent.conftest import running_agent

LOSS = 0.12
ERRORS = 40


class Troubled:
    """One GPU that has an error at every look."""

    device = Device(stable_id="GPU-1", kind="gpu", vendor="nvidia", name="GPU", pci_address="0000:17:00.0")

    def __init__(self) -> None:
        self.told = 0

    async def probe(self) -> Inventory:
        noticed: Sequence[Noticed] = ()
        if self.told < ERRORS:
            codes = range(self.told + 1, self.told + 11)
            noticed = [Noticed(source="nvml", kind="xid", at=float(n), stable_id="GPU-1", code=n) for n in codes]
            self.told += len(noticed)
        return Inventory((self.device,), "", tuple(noticed))

    async def close(self) -> None:
        return None


class Keeper(FakeWeb):
    """Keeps events as the web process does, each number once, and says up to where it does."""

    def __init__(self) -> None:
        super().__init__(heartbeat_seconds=0.2)
        self.kept: dict[int, EventFact] = {}
        self.rows = {}

    async def _tell(self, connection: ServerConnection) -> None:
        newest = max(self.kept, default=0)
        desired = Desired(revision=self.revision, instances=[], event_sequence=newest)
        await connection.send(msgspec.json.encode(desired), text=True)

    async def _heard(self) -> None:
        for report in self.observed:
            for event in report.events:
                self.kept.setdefault(event.sequence, event)
        for connection in list(self.connections):
            try:
                await self._tell(connection)
            except ConnectionClosed:
                continue
        await super()._heard()


@asynccontextmanager
async def lossy(target: str, seed: int) -> AsyncIterator[str]:
    """An address that passes frames on and loses every eighth, and breaks now and then. Greetings come through."""
    chance = random.Random(seed)
    lost = 0

    async def carry(source: object, sink: object, *, free: int) -> None:
        nonlocal lost
        passed = 0
        async for frame in source:  # type: ignore[attr-defined]  # both ends are connections of different kinds
            passed += 1
            if passed > free and chance.random() < LOSS:
                lost += 1
                if chance.random() < 0.2:
                    return  # the whole connection breaks
                continue
            await sink.send(frame)  # type: ignore[attr-defined]  # as above

    async def talk(agent: ServerConnection) -> None:
        assert agent.request is not None
        token = agent.request.headers["Authorization"]
        url = target.replace("http:", "ws:") + STREAM_PATH
        async with connect(url, additional_headers={"Authorization": token}, proxy=None) as web:
            ways = [asyncio.create_task(carry(agent, web, free=1)), asyncio.create_task(carry(web, agent, free=1))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async with serve(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
    assert lost > 0


@pytest.mark.shows("P24")
@pytest.mark.parametrize("seed", [1, 2])
async def test_at_twelve_percent_loss_every_event_arrives_once(var_dir: Path, seed: int) -> None:
    async with Keeper() as web, lossy(web.url, seed) as address:
        web_port, web.port = web.port, int(address.rpartition(":")[2])
        async with running_agent(web, var_dir, sources=[Troubled()]):
            web.port = web_port
            await web.until(lambda: len(web.kept) == ERRORS, deadline_seconds=120.0)
            assert [web.kept[n].code for n in sorted(web.kept)] == list(range(1, ERRORS + 1))
            assert sorted(web.kept) == list(range(1, ERRORS + 1))
            await web.until(lambda: any(not report.events for report in web.observed))
