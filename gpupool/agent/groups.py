"""Which processes belong to which group: asked with every report, so /proc is gone through once for all engines."""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Final

import psutil

_FRESH_SECONDS: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Groups:
    """Process ids by the id of their group, as of a moment ago."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at: float | None = None
        self._groups: dict[int, list[int]] = {}

    def members(self, leader: int) -> list[int]:
        """Processes of a group, at most a second old."""
        now = self._clock()
        if self._read_at is None or now - self._read_at >= _FRESH_SECONDS:
            self._groups, self._read_at = read_groups(), now
        return self._groups.get(leader, [])


def read_groups() -> dict[int, list[int]]:
    """All processes of this machine by their group, now."""
    groups: dict[int, list[int]] = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            groups.setdefault(os.getpgid(pid), []).append(pid)
    return groups


def members_now(leader: int) -> list[int]:
    """Processes of one group, now: for what is done to them, where an old answer would miss some."""
    return read_groups().get(leader, [])


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None when it is gone or not readable."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        pass
    if os.path.exists("/proc/self/statm"):
        return None
    try:
        return int(psutil.Process(pid).memory_info().rss)  # not Linux
    except psutil.Error:
        return None


def command_name(pid: int) -> str:
    """The name that the kernel has for a process, at most 15 characters; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


shared_groups: Final = Groups()
