"""Watches one trainer: `runner.py FOLDER LIMITS -- COMMAND...`, a script of its own that needs nothing of ours.

It leaves its parent at once, so that the end of a worker ends no training. In FOLDER it keeps:

- `lock`: held as long as it lives, so that a job has one runner, however often it is started
- `runner.json`: its pid, and which process that is (boot and start time), as gpupool.agent.processes has it
- `progress.jsonl`, `log.txt`: what the trainer says on standard output and on standard error, up to the limits
- `exit.json`, last of all: how it ended; its absence, when the runner is gone, says that nobody knows

SIGTERM ends the trainer's process group: SIGTERM first, SIGKILL when it has not ended in time. The trainer dies with
the runner (Linux). LIMITS is a JSON object: `seconds`, `log_bytes`, `progress_bytes`, `grace_seconds`.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 0.2
_PIECE = 65536
_LOCK_TRIES = 50


class _Copy:
    """One of the trainer's outputs on its way to a file, up to a limit; what is beyond is read and thrown away."""

    def __init__(self, source: Any, path: str, limit: int) -> None:
        self.source = source
        self._target = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._left = limit
        self.cut = False

    def move(self) -> bool:
        """False at the end."""
        piece = os.read(self.source.fileno(), _PIECE)
        kept = piece[: self._left]
        self._left -= len(kept)
        self.cut = self.cut or len(kept) < len(piece)
        while kept:
            kept = kept[os.write(self._target, kept) :]
        return bool(piece)


class _Runner:
    def __init__(self, folder: str, limits: dict[str, float], command: list[str]) -> None:
        self._folder = folder
        self._limits = limits
        self._command = command
        self._asked_at: float | None = None  # when it was asked to end
        self._why = ""
        self._trainer: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._cancelled)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._write("runner.json", {"pid": os.getpid(), "mark": _mark()})
        try:
            trainer = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        except (OSError, ValueError) as error:
            self._write("exit.json", {"status": None, "why": "not_started", "detail": str(error)[:500], "cut": False})
            return
        self._trainer = trainer
        assert trainer.stdout is not None
        assert trainer.stderr is not None
        copies = [
            _Copy(trainer.stdout, self._path("progress.jsonl"), int(self._limits["progress_bytes"])),
            _Copy(trainer.stderr, self._path("log.txt"), int(self._limits["log_bytes"])),
        ]
        self._watch(trainer, copies)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(trainer.pid, signal.SIGKILL)  # what it left in its group
        self._drain(copies)
        self._write(
            "exit.json",
            {"status": trainer.wait(), "why": self._why, "detail": "", "cut": any(copy.cut for copy in copies)},
        )

    def _watch(self, trainer: "subprocess.Popen[bytes]", copies: list[_Copy]) -> None:
        started = time.monotonic()
        with selectors.DefaultSelector() as ready:
            for copy in copies:
                os.set_blocking(copy.source.fileno(), False)
                ready.register(copy.source, selectors.EVENT_READ, copy)
            killed = False
            while trainer.poll() is None:
                if ready.get_map():
                    for key, _ in ready.select(_TICK_SECONDS):
                        if not key.data.move():
                            ready.unregister(key.fileobj)
                else:
                    time.sleep(_TICK_SECONDS)
                now = time.monotonic()
                if self._asked_at is None and now - started > self._limits["seconds"]:
                    self._end("too_long")
                if not killed and self._asked_at is not None and now - self._asked_at > self._limits["grace_seconds"]:
                    killed = True
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(trainer.pid, signal.SIGKILL)

    def _drain(self, copies: list[_Copy]) -> None:
        """What is still in the pipes. Something that left the group may hold them open: nobody waits for that."""
        for copy in copies:
            with contextlib.suppress(BlockingIOError):
                while copy.move():
                    pass

    def _cancelled(self, number: int, frame: FrameType | None) -> None:
        self._end("cancelled")

    def _end(self, why: str) -> None:
        if self._asked_at is not None:
            return
        self._asked_at, self._why = time.monotonic(), why
        if self._trainer is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._trainer.pid, signal.SIGTERM)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        half = self._path(f".{name}.half")
        with open(half, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, self._path(name))


def _mark() -> str:
    """Empty where there is no /proc."""
    try:
        with open("/proc/self/stat", "rb") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
            return f"{boot.read().strip()}:{int(stat.read().rpartition(b')')[2].split()[19])}"
    except OSError:
        return ""


def _die_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _locked(lock: int) -> bool:
    """Whoever looks whether we live has the lock for a moment, so one try is not enough."""
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def main(arguments: list[str]) -> None:
    """Go to the background, and watch the trainer until it has ended."""
    folder, limits, _, *command = arguments
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():  # no worker has to wait for us, and none can be told of our end
        os._exit(0)
    os.umask(0o077)
    lock = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    if not _locked(lock):
        return  # there is one
    if os.path.exists(os.path.join(folder, "exit.json")):
        return  # it has been
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    _Runner(folder, json.loads(limits), command).run()


if __name__ == "__main__":
    main(sys.argv[1:])
