"""Which processes handle SIGUSR1 by the launch shim: all others would end by it."""

import os
import signal
from collections.abc import Iterable
from typing import Final

from gpupool.engines.shim import FOLDER, LISTENING

_LINK: Final = f"/memfd:{LISTENING} "


def shim_path(python_path: str) -> str:
    """`PYTHONPATH` with the shim before everything else."""
    return f"{FOLDER}{os.pathsep}{python_path}" if python_path else str(FOLDER)


def listens(pid: int) -> bool:
    """Whether this process holds the shim's file and catches the signal."""
    return _catches(pid) and _holds_mark(pid)


def signal_listeners(pids: Iterable[int]) -> int:
    """Send SIGUSR1 to those that handle it; returns how many."""
    sent = 0
    for pid in pids:
        if not listens(pid):
            continue
        try:
            os.kill(pid, signal.SIGUSR1)
        except (ProcessLookupError, PermissionError):
            continue
        sent += 1
    return sent


def _catches(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next((line.split()[1] for line in file if line.startswith("SigCgt:")), "0")
    except OSError:
        return False
    return bool(int(caught, 16) >> (signal.SIGUSR1 - 1) & 1)


def _holds_mark(pid: int) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}").startswith(_LINK):
                return True
        except OSError:
            continue
    return False
