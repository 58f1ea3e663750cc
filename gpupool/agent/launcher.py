"""How a desired row becomes a process: the machine's own way, or that of a simulated fleet."""

from collections.abc import Mapping
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

    def check_weights(self, prepared: engines.Prepared) -> None:
        """The checksum stage. Called in a thread; may block for minutes."""

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

    def check_weights(self, prepared: engines.Prepared) -> None:
        engines.check_weights(prepared)

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
