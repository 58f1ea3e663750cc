"""Keeps a set of services running: starts them in order, restarts the dead with back-off, stops in reverse."""

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import psutil

from core.embedded.process import StartError, last_lines, spawn, stop

FIRST_DELAY_SECONDS: Final = 0.5
LONGEST_DELAY_SECONDS: Final = 30.0
STEADY_SECONDS: Final = 60.0
"""A service that lived this long starts again without delay."""
START_ATTEMPTS: Final = 3
"""Before everything is up: a service that died this often is broken."""
TAIL_LINES: Final = 20
_STOP_POLL_SECONDS: Final = 0.05
_SAME_START_SECONDS: Final = 0.05


def restart_delay_seconds(failures: int) -> float:
    """Wait before the next start after `failures` deaths in a row: half a second, doubling to half a minute."""
    return min(FIRST_DELAY_SECONDS * 2.0 ** max(0, failures - 1), LONGEST_DELAY_SECONDS)


class Service(Protocol):
    """Something that runs as one process of ours."""

    @property
    def name(self) -> str: ...
    @property
    def log(self) -> Path: ...
    @property
    def pid(self) -> int | None: ...
    def start(self) -> None:
        """Raises StartError."""

    def poll(self) -> int | None:
        """Exit status once it has ended; None while it runs."""

    def stop(self, *, hard: Callable[[], bool]) -> None:
        """End it and wait; `hard` is asked while waiting, and true means now."""


class Server(Protocol):
    """What PostgresServer and ValkeyServer have in common."""

    log: Path
    port: int

    @property
    def pid(self) -> int | None: ...
    def start(self, *, port: int | None = None) -> None: ...
    def poll(self) -> int | None: ...
    def stop(self) -> None: ...


class ServerService:
    """An embedded server; a restart keeps the port, because everyone knows the address."""

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self._server = server

    @property
    def log(self) -> Path:
        return self._server.log

    @property
    def pid(self) -> int | None:
        return self._server.pid

    def start(self) -> None:
        self._server.start(port=self._server.port or None)

    def poll(self) -> int | None:
        return self._server.poll()

    def stop(self, *, hard: Callable[[], bool]) -> None:
        self._server.stop()  # never cut short: it has data to write, and takes a second


@dataclass
class ProcessService:
    """One of our commands as a child. It dies with us (SIGKILL: each of them is built to be killed)."""

    name: str
    command: Sequence[str]
    log: Path
    environ: Mapping[str, str]
    cwd: Path
    grace_seconds: float = 15.0
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        self._process = spawn(
            self.command, log=self.log, environ=self.environ, cwd=self.cwd, death_signal=signal.SIGKILL
        )

    def poll(self) -> int | None:
        return self._process.poll() if self._process else None

    def stop(self, *, hard: Callable[[], bool]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self.grace_seconds
        while process.poll() is None and time.monotonic() < deadline and not hard():
            time.sleep(_STOP_POLL_SECONDS)
        stop(process, grace_seconds=0.0)


@dataclass
class _Entry:
    service: Service
    started_at: float
    failures: int = 0
    restart_at: float | None = None


class Supervisor:
    """Not thread-safe: everything happens in the caller's thread, which must live as long as the services."""

    def __init__(self, state_file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`state_file` says which processes run, for `status` and for the next start after a kill."""
        self._state_file = state_file
        self._clock = clock
        self._entries: list[_Entry] = []
        self.settled = False
        """Set once everything is up: from then on a dying service is restarted for ever."""

    @property
    def names(self) -> list[str]:
        """Of what it looks after, in the order of starting."""
        return [entry.service.name for entry in self._entries]

    def start(self, service: Service) -> None:
        """Start a service and look after it from now on. Raises StartError."""
        service.start()
        self._entries.append(_Entry(service, self._clock()))
        self._write_state()

    def tick(self) -> list[str]:
        """Look at every service once; returns what happened, in sentences.

        Raises StartError for a service that keeps dying before everything was up.
        """
        happened: list[str] = []
        now = self._clock()
        for entry in self._entries:
            if entry.restart_at is None and (status := entry.service.poll()) is not None:
                entry.failures = 1 if now - entry.started_at > STEADY_SECONDS else entry.failures + 1
                if not self.settled and entry.failures >= START_ATTEMPTS:
                    raise never_came_up(entry.service)
                delay = restart_delay_seconds(entry.failures)
                entry.restart_at = now + delay
                happened.append(f"{entry.service.name} ended ({_ending(status)}); starting it again in {delay:g} s")
            if entry.restart_at is not None and now >= entry.restart_at:
                try:
                    entry.service.start()
                except StartError as error:
                    if not self.settled:
                        raise
                    entry.failures += 1
                    entry.restart_at = now + restart_delay_seconds(entry.failures)
                    happened.append(f"{entry.service.name} does not start: {str(error).splitlines()[0]}")
                    continue
                entry.restart_at = None
                entry.started_at = now
                happened.append(f"{entry.service.name} was started again")
        if happened:
            self._write_state()
        return happened

    def stop_all(self, *, keep: Collection[str] = (), hard: Callable[[], bool] = lambda: False) -> None:
        """Stop in the reverse of the order of starting, all but those named in `keep`."""
        for entry in reversed(self._entries[:]):
            if entry.service.name not in keep:
                entry.service.stop(hard=hard)
                self._entries.remove(entry)
        if self._entries:
            self._write_state()
        else:
            self._state_file.unlink(missing_ok=True)

    def _write_state(self) -> None:
        state = [
            {
                "name": entry.service.name,
                "pid": entry.service.pid,
                "created": _created(entry.service.pid),
                "failures": entry.failures,
                "log": str(entry.service.log),
            }
            for entry in self._entries
        ]
        draft = self._state_file.with_suffix(".draft")
        draft.write_text(json.dumps(state, indent=1))
        draft.replace(self._state_file)


def never_came_up(service: Service) -> StartError:
    """The error for a service that cannot live, with the end of its log."""
    lines = "\n".join(last_lines(service.log, TAIL_LINES))
    return StartError(f"{service.name} does not stay up. The last lines of {service.log}:\n{lines}")


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """One line of the state file, and whether that process still lives."""

    name: str
    pid: int | None
    failures: int
    log: str
    process: psutil.Process | None

    @property
    def alive(self) -> bool:
        return self.process is not None


def running_processes(state_file: Path) -> list[ProcessSeen]:
    """What a supervisor wrote down; empty when it wrote nothing.

    A process is ours only if its start time is the one written down: numbers are given again.
    """
    try:
        state = json.loads(state_file.read_text())
    except (FileNotFoundError, ValueError):
        return []
    return [
        ProcessSeen(item["name"], item["pid"], item["failures"], item["log"], _same(item["pid"], item["created"]))
        for item in state
    ]


def end_leftovers(state_file: Path, *, grace_seconds: float = 10.0) -> int:
    """End processes of a supervisor that was killed and that outlived it; returns how many there were."""
    found = [seen.process for seen in running_processes(state_file) if seen.process is not None]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            # SIGINT is PostgreSQL's fast shutdown; the others take SIGTERM.
            process.send_signal(signal.SIGINT if process.name() == "postgres" else signal.SIGTERM)
    _, alive = psutil.wait_procs(found, timeout=grace_seconds)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=grace_seconds)
    state_file.unlink(missing_ok=True)
    return len(found)


def _same(pid: int | None, created: float | None) -> psutil.Process | None:
    if pid is None or created is None:
        return None
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < _SAME_START_SECONDS
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _created(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def _ending(status: int) -> str:
    if status < 0:
        try:
            return signal.Signals(-status).name
        except ValueError:
            return f"signal {-status}"
    return f"exit status {status}"
