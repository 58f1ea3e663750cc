"""How a desired row becomes a process: the machine's own way, or that of a simulated fleet."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from gpupool.agent import engine as engines
from gpupool.agent.isolation.launcher import Isolator
from gpupool.agent.processes import EngineProcess
from gpupool.engines.base import GivenDevice, LaunchPlan
from gpupool.stream.messages import DesiredInstance


class Launcher(Protocol):
    """What the supervisor starts engines by. Every method may raise engine.LaunchRefused."""

    def prepare(self, row: DesiredInstance, devices: Mapping[str, GivenDevice]) -> engines.Prepared:
        """Check what can be checked without a start. Called in a thread."""

    def check_weights(self, prepared: engines.Prepared, stopped: Callable[[], bool]) -> None:
        """The checksum stage. Called in a thread; may block for minutes, and ends soon when `stopped` says so."""

    def launch(
        self,
        prepared: engines.Prepared,
        *,
        port: int,
        mark: str,
        log_path: Path,
        host: str,
        isolator: Isolator,
        cache: Mapping[str, str],
    ) -> tuple[LaunchPlan, EngineProcess]:
        """Start it, listening on `host`."""


class ProcessLauncher:
    """Processes of this machine."""

    def prepare(self, row: DesiredInstance, devices: Mapping[str, GivenDevice]) -> engines.Prepared:
        return engines.prepare(row, devices)

    def check_weights(self, prepared: engines.Prepared, stopped: Callable[[], bool]) -> None:
        engines.check_weights(prepared, stopped)

    def launch(
        self,
        prepared: engines.Prepared,
        *,
        port: int,
        mark: str,
        log_path: Path,
        host: str,
        isolator: Isolator,
        cache: Mapping[str, str],
    ) -> tuple[LaunchPlan, EngineProcess]:
        return engines.launch(
            prepared, port=port, mark=mark, log_path=log_path, host=host, isolator=isolator, cache=cache
        )


PROCESSES: Final = ProcessLauncher()


async def compare_weights(launcher: Launcher, prepared: engines.Prepared, stop: asyncio.Event) -> None:
    """The checksum stage, given up when `stop` is set or this is cancelled. Raises engine.LaunchRefused, also then."""
    ended = threading.Event()  # a thread does not end with who waits for it
    comparing = asyncio.create_task(asyncio.to_thread(launcher.check_weights, prepared, ended.is_set))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({comparing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.set()
        stopping.cancel()
        await asyncio.gather(comparing, stopping, return_exceptions=True)
    comparing.result()
