"""Many node agents in one process, over the real stream to the real web process; nodes go and come back."""

import asyncio
import contextlib
import fcntl
import os
import random
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpupool.agent.link import NodeRefused
from gpupool.agent.node import NodeAgent, NodeSettings
from gpupool.agent.state import AgentAlreadyRuns
from gpupool.simulation.devices import SimulatedDevices
from gpupool.simulation.kinds import KINDS
from gpupool.simulation.launcher import SimulatedLauncher

log = structlog.get_logger(__name__)

_FEWEST_PORTS: Final = 64  # of a node
_MOST_PORTS: Final = 640  # an engine may take nine, and a GPU has room for several
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What a simulated fleet is like."""

    kind: str
    gpus: int  # of each node
    web_url: str
    var_dir: Path
    port_first: int
    speed: float = 1.0
    traffic: float = 0.3  # imagined work of each engine, 0 to 1
    xids_an_hour: float = 0.0  # of each GPU
    losses_an_hour: float = 0.0  # of each node
    outage_seconds: float = 45.0
    tls: ssl.SSLContext | None = None  # for a web process that is spoken to by https
    seed: int = 1


class SimulatedNode:
    """One node: an agent, made-up devices, engine doubles."""

    def __init__(self, name: str, token: str, number: int, fleet: FleetSettings, *, ports: int = _FEWEST_PORTS) -> None:
        self.name = name
        self.losses = 0
        self._token = token
        self._fleet = fleet
        self._ports = ports
        self._port_first = fleet.port_first + number * ports
        self._chance = random.Random(fleet.seed * 1_000_003 + number)  # noqa: S311  (a course of events, no secret)
        self._launcher = SimulatedLauncher(speed=fleet.speed, traffic=fleet.traffic, seed=fleet.seed)

    async def run(self) -> None:
        """Live until cancelled, with a loss of power now and then. Raises NodeRefused."""
        try:
            while True:
                agent = asyncio.create_task(self._agent().run(asyncio.Event()), name=f"agent-{self.name}")
                try:
                    await self._until_lost(agent)
                finally:
                    agent.cancel()
                    # A node that loses its power says no good-bye: its engines end with it.
                    self._launcher.end_all()
                    await asyncio.gather(agent, return_exceptions=True)
                self.losses += 1
                log.info("simulation.node_lost", node=self.name, seconds=self._fleet.outage_seconds)
                await asyncio.sleep(self._fleet.outage_seconds)
        finally:
            self._launcher.end_all()

    def _agent(self) -> NodeAgent:
        fleet = self._fleet
        devices = SimulatedDevices(
            node=self.name,
            kind=KINDS[fleet.kind],
            count=fleet.gpus,
            running=lambda: self._launcher.running,
            chance=self._chance,
            xids_an_hour=fleet.xids_an_hour,
        )
        settings = NodeSettings(
            node=self.name,
            token=self._token,
            web_url=fleet.web_url,
            var_dir=fleet.var_dir,
            port_first=self._port_first,
            port_count=self._ports,
            tls=fleet.tls,
            simulated=True,
            boot_id=str(uuid.uuid4()),  # each time it starts anew
        )
        return NodeAgent(settings, [devices], launcher=self._launcher)

    async def _until_lost(self, agent: asyncio.Task[None]) -> None:
        while True:
            done, _ = await asyncio.wait({agent}, timeout=_LOOK_SECONDS)
            if done:
                agent.result()  # raises what ended it
                raise RuntimeError(f"The agent of {self.name} ended.")
            if self._chance.random() < self._fleet.losses_an_hour * _LOOK_SECONDS / 3600:
                return


class Fleet:
    """All nodes."""

    def __init__(self, settings: FleetSettings, tokens: Mapping[str, str]) -> None:
        """`tokens` by node name. Raises ValueError for a kind that is not known, or ports beyond 65535."""
        if settings.kind not in KINDS:
            raise ValueError(f"There is no simulated kind {settings.kind!r}: {', '.join(KINDS)}.")
        ports = ports_of_a_node(settings.port_first, len(tokens))
        self.nodes: Sequence[SimulatedNode] = [
            SimulatedNode(name, token, number, settings, ports=ports)
            for number, (name, token) in enumerate(tokens.items())
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises NodeRefused for a token that is not taken."""
        stopping = asyncio.create_task(stop.wait())
        nodes = [asyncio.create_task(node.run(), name=f"node-{node.name}") for node in self.nodes]
        try:
            await asyncio.wait({stopping, *nodes}, return_when=asyncio.FIRST_COMPLETED)
            for node in nodes:
                if node.done():
                    node.result()
        finally:
            for task in (stopping, *nodes):
                task.cancel()
            with contextlib.suppress(NodeRefused):
                await asyncio.gather(stopping, *nodes, return_exceptions=True)


def ports_of_a_node(first: int, nodes: int) -> int:
    """How many ports each node has, from `first` on. Raises ValueError where there are too few below 65536."""
    ports = min(_MOST_PORTS, (65_536 - first) // max(1, nodes))
    if ports < _FEWEST_PORTS:
        raise ValueError(f"{nodes} nodes need {_FEWEST_PORTS} ports each, from {first}: there are 65535.")
    return ports


@contextlib.contextmanager
def sole_fleet(var_dir: Path, kind: str) -> Iterator[None]:
    """Held by one process: two fleets of a kind would be the same nodes. Raises AgentAlreadyRuns, or OSError."""
    var_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(var_dir / f"{kind}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise AgentAlreadyRuns(
                f"A simulated fleet of {kind} runs already (process {holder}): stop it first, or give another --kind."
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def node_names(kind: str, count: int) -> list[str]:
    """Names of simulated nodes: `sim-h100-01`."""
    width = max(2, len(str(count)))
    return [f"sim-{kind}-{number:0{width}d}" for number in range(1, count + 1)]
