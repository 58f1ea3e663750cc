"""Starting a job's runner, and finding it again from any process of the same machine."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gpupool.agent.processes import start_mark

_RUNNER: Final = Path(__file__).with_name("runner.py")
_NOTE: Final = "runner.json"
_START_SECONDS: Final = 20.0
_PASSED_ON: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one trainer."""

    seconds: float
    log_bytes: int
    progress_bytes: int
    grace_seconds: float


class Ending(msgspec.Struct):
    """How a trainer ended: its exit status, and why it was ended where somebody did."""

    status: int | None
    why: str = ""  # cancelled, too_long, not_started
    detail: str = ""
    cut: bool = False  # it said more than is kept


class _Note(msgspec.Struct):
    pid: int
    mark: str = ""


def trainer_environment(folder: Path, *, passed: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """All that a trainer sees of our environment: a list of names, never what is merely not forbidden."""
    kept = {name: environ[name] for name in (*_PASSED_ON, *passed) if name in environ}
    return kept | {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "GATEHOUSE_JOB_FILE": str(folder / "job.json"),
        "GATEHOUSE_OUTPUT_DIR": str(folder / "output"),
    }


def start_runner(folder: Path, command: Sequence[str], limits: Limits, environment: Mapping[str, str]) -> None:
    """Start the job's runner; does nothing where one lives or has been. Raises OSError, subprocess.SubprocessError."""
    bounds = {name: getattr(limits, name) for name in Limits.__slots__}
    subprocess.run(
        [sys.executable, "-I", "-S", str(_RUNNER), str(folder), msgspec.json.encode(bounds).decode(), "--", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        cwd=folder,
        close_fds=True,
        check=True,
        timeout=_START_SECONDS,
    )
    # It goes to the background before it has its lock; until then it would be taken for one that is gone.
    late_at = time.monotonic() + _START_SECONDS
    while not (folder / _NOTE).exists():
        if time.monotonic() > late_at:
            raise TimeoutError("the runner did not say that it runs")
        time.sleep(0.01)


def was_started(folder: Path) -> bool:
    """Whether the job ever had a runner."""
    return (folder / _NOTE).exists()


def is_alive(folder: Path) -> bool:
    """Whether the job's runner lives: it holds its lock until its end, which no other process's pid can look like."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def runner_pid(folder: Path) -> tuple[int, str] | None:
    """The runner's pid and which process that is; None before it has said so, when it is gone, or elsewhere."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
        mark = start_mark(note.pid)
        if mark is not None and note.mark in ("", mark):
            return note.pid, mark
    return None


def ask_to_end(pid: int, mark: str) -> None:
    """Have the runner end its trainer; nothing happens to a stranger that has the pid by now."""
    if start_mark(pid) == mark:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)


def kill_leftovers(folder: Path) -> int:
    """Kill what a trainer left behind when it ended, also what has left its process group; returns how many.

    Found by what only a job's processes have in their environment, so on Linux alone.
    """
    mark = b"GATEHOUSE_JOB_FILE=" + os.fsencode(folder / "job.json")
    killed = 0
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
    return killed


def read_ending(folder: Path) -> Ending | None:
    """How it ended; None where nobody knows (yet)."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / "exit.json").read_bytes(), type=Ending)
    return None
