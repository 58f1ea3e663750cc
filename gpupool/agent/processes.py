"""Engine processes: started to outlive the agent, told apart from strangers that got the same pid."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import psutil
import structlog

from gpupool.agent.groups import command_name, members_now, resident_bytes, shared_groups
from gpupool.agent.state import MARK_VARIABLE

log = structlog.get_logger(__name__)

_POLL_SECONDS: Final = 0.25
SANDBOXES: Final = frozenset({"bwrap", "runsc", "runsc-sandbox"})
"""Names of processes that are around an engine and not of it."""
_FOR_ALL: Final = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT})

_PASSED_ON: Final = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"}
)


@cache
def boot_id() -> str:
    """Changes with every start of the machine: pids of an earlier one mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{psutil.boot_time():.0f}"


def start_mark(pid: int) -> str | None:
    """Which process has this pid: boot id and kernel start time. None when it is gone or a zombie.

    On Linux the start time is in clock ticks since boot, which no change of the wall clock moves.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return _portable_mark(pid)
    fields = stat.rpartition(b")")[2].split()  # the command's name may hold spaces and brackets
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{boot_id()}:{int(fields[19])}"


def _portable_mark(pid: int) -> str | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{boot_id()}:{process.create_time():.3f}"
    except psutil.Error:
        return None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended; `exit_code` is negative for a signal, None when it was not our child."""

    exit_code: int | None

    def describe(self) -> str:
        """For the middle of a sentence."""
        if self.exit_code is None:
            return "ended"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        try:
            name = signal.Signals(-self.exit_code).name
        except ValueError:
            name = str(-self.exit_code)
        return f"was killed by {name}"


class EngineProcess:
    """One engine, our child or adopted. It leads a process group of its own."""

    def __init__(self, pid: int, mark: str, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self.mark = mark
        self.started_at = _created_at(pid)  # seconds since the epoch; None when it cannot be read
        self._child = child

    def alive(self) -> bool:
        """Whether this very process still runs."""
        if self._child is not None and self._child.poll() is not None:
            return False
        return start_mark(self.pid) == self.mark

    async def ended(self) -> Ended:
        """Wait for the end. Uses a pidfd where there is one, which works for adopted processes too."""
        loop = asyncio.get_running_loop()
        pidfd = _pidfd(self.pid)
        if pidfd is None:
            while True:
                if not self.alive():
                    break
                await asyncio.sleep(_POLL_SECONDS)
        else:
            gone = asyncio.Event()
            try:
                if self.alive():  # the pidfd is surely of this process only if it lives after the open
                    loop.add_reader(pidfd, gone.set)
                    await gone.wait()
            finally:
                loop.remove_reader(pidfd)
                os.close(pidfd)
        if self._child is None:
            return Ended(None)
        return Ended(self._child.wait())

    def signal(self, number: signal.Signals) -> None:
        """Send to the whole group; nothing happens when this very process is gone."""
        signal_group(self.pid, self.mark, number)

    def rss_bytes(self) -> int | None:
        """Resident memory of the engine's process group; None when it cannot be read."""
        return sum(resident_bytes(pid) or 0 for pid in shared_groups.members(self.pid)) or None

    def members(self) -> list[int]:
        """Its own processes, the engine and its workers, without the sandbox around them; at most a second old."""
        return [pid for pid in shared_groups.members(self.pid) if command_name(pid) not in SANDBOXES]

    def listens_on(self, port: int) -> bool | None:
        """Whether this engine itself holds the port, and not a stranger; None when that cannot be seen."""
        try:
            process = psutil.Process(self.pid)
            family = [process, *process.children(recursive=True)]
            return any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for member in family
                for connection in member.net_connections(kind="tcp")
            )
        except psutil.Error:
            return None


def signal_group(pid: int, mark: str, number: signal.Signals) -> bool:
    """Signal the process group led by `pid` if it is still the process of `mark`; says whether it was.

    Of an engine in a sandbox, the sandbox itself is only ever killed: it would end at a signal that it does not
    handle, and take the engine with it at once. It ends when the engine has.
    """
    if start_mark(pid) != mark:
        return False
    try:
        name = "" if number in _FOR_ALL else command_name(pid)
        if name == "bwrap":
            for member in members_now(pid):
                if command_name(member) != "bwrap":
                    os.kill(member, number)
        elif name == "runsc":
            os.kill(pid, number)  # it passes signals on
        else:
            os.killpg(pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        log.error("agent.engine_of_another_user", pid=pid)  # started by an agent under another user: only that may
    return True


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The few variables that an engine or probe may inherit: the agent's token and store URLs are not among them."""
    return {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_")}


def start_engine(argv: Sequence[str], *, env: Mapping[str, str], log_path: Path, cwd: Path) -> EngineProcess:
    """Start one engine in a session of its own, its output appended to `log_path`.

    It gets no parent-death signal on purpose: an agent that dies and comes back adopts it.
    Raises OSError when it cannot be started.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path, "ab") as output:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    mark = start_mark(child.pid)
    if mark is None:  # over before it could be looked at: `ended` will tell how
        mark = f"{boot_id()}:gone"
    return EngineProcess(child.pid, mark, child)


def marked_engines(state_path: Path) -> Iterator[tuple[int, str]]:
    """Engines (group leaders) started by the agent of this state folder: pid and mark.

    Finds also those whose record was lost, by the mark in their environment. Other users' are not seen.
    """
    prefix = f"{state_path.resolve()}|"
    for pid, mark in _marked():
        if mark.startswith(prefix) and _leads_its_group(pid):
            yield pid, mark


def mark_of(pid: int) -> str | None:
    """The mark in a process's environment, empty when it has none; None when it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return _portable_mark_of(pid)
    prefix = f"{MARK_VARIABLE}=".encode()
    marks = (variable[len(prefix) :] for variable in variables if variable.startswith(prefix))
    return os.fsdecode(next(marks, b""))


def _portable_mark_of(pid: int) -> str | None:
    if Path("/proc/self/environ").exists():
        return None
    try:
        return psutil.Process(pid).environ().get(MARK_VARIABLE, "")
    except (psutil.Error, OSError):
        return None


def kill_marked(mark: str) -> int:
    """SIGKILL whatever still carries an engine's mark, such as children that outlived it; says how many."""
    found = [pid for pid, value in _marked() if value == mark]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def kill_orphans(leader: int, cwd: Path) -> int:
    """SIGKILL what is left of the process group of an engine that has ended; says how many.

    vLLM's processes show titles of their own, which overwrites the environment that `kill_marked` looks into, and go
    on holding a GPU's memory without their leader. They are in its group and in the folder that `start_engine` gave it.
    """
    if start_mark(leader) is not None:  # it runs, or its pid is another's now
        return 0
    killed = 0
    for pid in members_now(leader):
        with contextlib.suppress(psutil.Error):
            member = psutil.Process(pid)
            if member.cwd() == str(cwd.resolve()):
                member.kill()
                killed += 1
    return killed


def _marked() -> Iterator[tuple[int, str]]:
    for pid in psutil.pids():
        mark = mark_of(pid)
        if mark and start_mark(pid) is not None:
            yield pid, mark


def _leads_its_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False


def _created_at(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return None


def _pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
