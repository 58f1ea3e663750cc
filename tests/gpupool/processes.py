"""Real processes of the pool for fault tests: web (agent streams), controller, agent; killed hard at the end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from gpupool.agent.leftovers import stop_all
from tests.ports import worker_port

ROOT: Final = Path(__file__).resolve().parents[2]
PORTS_EACH: Final = 50
T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(look: Callable[[], T], *, seconds: float = 30.0, say: Callable[[], str] = lambda: "") -> T:
    """Ask until the answer is true; fails with `say()` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s. {say()}")
        time.sleep(0.05)


class Pool:
    """Processes over one database, each with a log under `folder`."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.web_port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("GATEHOUSE_")} | {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": database_url,
            "GATEHOUSE_VAR_DIR": str(folder / "var"),
            "GATEHOUSE_SECRET_KEY": "for tests only " * 4,
            "GATEHOUSE_WEB_URL": f"http://127.0.0.1:{self.web_port}",
            "GATEHOUSE_WEB_PORT": str(self.web_port),
            "GATEHOUSE_CONTROLLER_LEASE_SECONDS": "1.5",
            "GATEHOUSE_NODE_UNREACHABLE_SECONDS": "5",
        }

    def start_web(self) -> "subprocess.Popen[bytes]":
        return self._start("web", [sys.executable, "manage.py", "web"])

    def start_controller(self) -> "subprocess.Popen[bytes]":
        return self._start("controller", [sys.executable, "manage.py", "controller"])

    def start_agent(self, node: str, token: str) -> "subprocess.Popen[bytes]":
        # Nodes on one machine share its address: ranges apart, as they would be configured.
        first_port = worker_port(400 + PORTS_EACH * (len(self._processes) % 16))
        environ = {
            "GATEHOUSE_NODE_TOKEN": token,
            "DATABASE_URL": "",
            "GATEHOUSE_ENGINE_PORT_FIRST": str(first_port),
            "GATEHOUSE_ENGINE_PORT_COUNT": str(PORTS_EACH),
        }
        return self._start(f"agent-{node}", [sys.executable, "manage.py", "agent", "--node", node], environ)

    def kill(self, process: "subprocess.Popen[bytes]", number: int = signal.SIGKILL) -> None:
        process.send_signal(number)
        process.wait(20)

    def logs(self) -> str:
        """The last lines of every log, for a failing test."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-25:]
            parts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(parts)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait(20)
        stop_all(self.folder / "var", grace_seconds=1.0)

    def _start(self, name: str, command: list[str], environ: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
        number = len(self._processes)
        with (self.folder / f"{number:02}-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environ | (environ or {}), stdout=log, stderr=subprocess.STDOUT
            )
        self._processes.append(process)
        return process
