"""How a simulated node starts engines: doubles in this process, in place of processes of this machine."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpupool.agent.engine import LaunchRefused, Prepared, given_to, launchable
from gpupool.agent.isolation.launcher import Isolator
from gpupool.agent.processes import Ended, EngineProcess
from gpupool.engines.base import GivenDevice, LaunchPlan
from gpupool.policies.simulated import PREFIX, is_simulated
from gpupool.simulation.double import EngineDouble
from gpupool.stream.messages import DesiredInstance

_SLOTS: Final = 64
_pids: Final[Iterator[int]] = itertools.count(50_000_000)
"""No machine has such pids: nothing that is done to a process can meet a real one."""


class SimulatedProcess(EngineProcess):
    """What the agent takes for a process."""

    def __init__(self, double: EngineDouble, device_ids: tuple[str, ...]) -> None:
        self.pid = next(_pids)
        self.mark = f"simulated:{self.pid}"
        self.started_at = time.time()
        self.double = double
        self.device_ids = device_ids

    def alive(self) -> bool:
        return self.double.exit_code is None

    async def ended(self) -> Ended:
        return Ended(await self.double.ended())

    def signal(self, number: signal.Signals) -> None:
        self.double.end(0 if number is signal.SIGTERM else -number)

    def rss_bytes(self) -> int | None:
        return None  # it has none of its own

    def members(self) -> list[int]:
        return [self.pid]

    def listens_on(self, port: int) -> bool | None:
        return True


class SimulatedLauncher:
    """Starts doubles, and knows which run."""

    def __init__(self, *, speed: float = 1.0, traffic: float = 0.0, seed: int = 0) -> None:
        self._speed, self._traffic, self._seed = speed, traffic, seed
        self._started: list[SimulatedProcess] = []

    @property
    def running(self) -> list[SimulatedProcess]:
        """Engines of this node now."""
        self._started = [process for process in self._started if process.alive()]
        return self._started

    def prepare(self, row: DesiredInstance, devices: Mapping[str, GivenDevice]) -> Prepared:
        """Everything but the artefact, which nobody reads."""
        engine, _ = launchable(row)
        if not is_simulated(row.artefact_uri):
            raise LaunchRefused(f"A simulated node runs versions of {PREFIX} and no others.", retry=False)
        if engine.protocol != "openai":
            raise LaunchRefused(f"A simulated engine does not speak as {engine.title} does.", retry=False)
        return Prepared(row, engine, Path("/nonexistent/simulated"), given_to(row, devices))

    def check_weights(self, prepared: Prepared, stopped: Callable[[], bool]) -> None:
        """There are none."""

    def launch(
        self,
        prepared: Prepared,
        *,
        port: int,
        mark: str,
        log_path: Path,
        host: str,
        isolator: Isolator,
        cache: Mapping[str, str],
    ) -> tuple[LaunchPlan, EngineProcess]:
        row = prepared.row
        double = EngineDouble(
            served_name=row.served_name,
            memory_bytes=row.memory_bytes,
            speed=self._speed,
            traffic=self._traffic,
            seed=self._seed + row.instance_id.int % 1_000_003,
        )
        try:
            double.start(host, port)
        except OSError as error:
            raise LaunchRefused(f"The simulated engine cannot listen on port {port}: {error}.", retry=True) from error
        process = SimulatedProcess(double, tuple(row.device_ids))
        self._started.append(process)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("a", encoding="utf-8") as log:
            log.write(f"A simulated engine answers as {row.served_name} on port {port}. Nothing is computed.\n")
            log.write(double.log)
        return LaunchPlan(argv=(), port=port, slots=_SLOTS), process

    def end_all(self) -> None:
        """The node has lost its power."""
        for process in self.running:
            process.double.end(-signal.SIGKILL)
