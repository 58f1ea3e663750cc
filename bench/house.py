"""Our own processes (relay, drain, web) started for a measurement or a test, on servers that run already.

The database must be migrated; rows are made by whoever calls, through the services.
"""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.tools import pinned
from core.embedded.process import free_port, last_lines, spawn, stop

_ROOT: Final = Path(__file__).resolve().parent.parent
_READY_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05


class HouseError(Exception):
    """A process did not do what it must; the message ends with its last log lines."""


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
    """Raises HouseError naming `what` when it has not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise HouseError(f"not within {seconds:.0f} s: {what}")
        time.sleep(_POLL_SECONDS)


def http_status(port: int, path: str) -> int | None:
    """Status of a GET on the loopback address; None when nothing answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class House:
    """Processes of one installation that share a folder, a database and two Valkeys.

    `environ` needs DATABASE_URL, VALKEY_STATE_URL and VALKEY_SCRATCH_URL; folders and secrets are chosen here,
    `ports` (relay's and web's) where they are not given. Start processes from a thread that lives as long as they
    should.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], *, ports: tuple[int, int] | None = None) -> None:
        self.folder = folder
        self.relay_port, self.web_port = ports or (free_port(), free_port())
        (folder / "var" / "run").mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GATEHOUSE_")}
        self.environ = {
            **inherited,
            "GATEHOUSE_VAR_DIR": str(folder / "var"),
            "GATEHOUSE_SECRET_KEY": "bench-and-tests-only-" + "0" * 40,
            "GATEHOUSE_RELAY_PORT": str(self.relay_port),
            "GATEHOUSE_WEB_PORT": str(self.web_port),
            "GATEHOUSE_LOG_LEVEL": "WARNING",
            "GATEHOUSE_DRAIN_NOTICE_SECONDS": "0",
            "GATEHOUSE_VALKEY_DEADLINE_SECONDS": "1",  # a busy machine must not turn up as refusals
            **environ,
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def relay_url(self) -> str:
        return f"http://127.0.0.1:{self.relay_port}"

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    def pid(self, name: str) -> int:
        """Process id of a running process. Raises KeyError."""
        return self._processes[name].pid

    def start(self, name: str, *arguments: str, cpus: Sequence[int] | None = None) -> None:
        """Start `manage.py NAME`; relay and web are ready when this returns.

        Raises HouseError with the end of the log when the process ends or is not ready in time.
        """
        command = pinned([sys.executable, str(_ROOT / "manage.py"), name, *arguments], cpus)
        self._processes[name] = spawn(
            command, log=self.log(name), death_signal=signal.SIGKILL, environ=self.environ, cwd=_ROOT
        )
        port = {"relay": self.relay_port, "web": self.web_port}.get(name)
        if port is not None:
            self._wait_ready(name, port)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would be; its children go with it."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str, *, grace_seconds: float = 15.0) -> int:
        """SIGTERM and wait; returns the exit status."""
        return stop(self._processes.pop(name), grace_seconds=grace_seconds)

    def stop_all(self) -> None:
        """The doors first, so that nothing is forwarded that the drain does not see."""
        for name in sorted(self._processes, key=lambda name: name == "drain"):
            self.stop(name, grace_seconds=5.0)

    def _wait_ready(self, name: str, port: int) -> None:
        process = self._processes[name]
        try:
            wait_until(
                lambda: process.poll() is not None or http_status(port, "/readyz") == 200,
                f"{name} ready",
                seconds=_READY_SECONDS,
            )
            ended = process.poll()
        except HouseError:
            ended = None
        else:
            if ended is None:
                return
        lines = "\n".join(last_lines(self.log(name), 40))
        state = f"ended with status {ended}" if ended is not None else "was not ready in time"
        raise HouseError(f"{name} {state}; the end of its log:\n{lines}")
