"""CPU time and memory of a process and all its descendants, from /proc (Linux)."""

import os
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PROC: Final = Path("/proc")

# Fields of /proc/PID/stat after the closing bracket of the name; see proc_pid_stat(5).
_PARENT, _UTIME, _STIME, _CUTIME, _CSTIME, _RSS = 1, 11, 12, 13, 14, 21


def _stat(pid: int) -> list[int] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return [int(part) if part.lstrip("-").isdigit() else 0 for part in text.rpartition(")")[2].split()]


def process_tree(root: int) -> dict[int, list[int]]:
    """The stat fields of `root` and every living descendant, by process id; empty when it is gone."""
    stats = {int(entry): stat for entry in os.listdir(_PROC) if entry.isdigit() and (stat := _stat(int(entry)))}
    tree: dict[int, list[int]] = {}
    level = [root] if root in stats else []
    while level:
        tree.update((pid, stats[pid]) for pid in level)
        level = [pid for pid, stat in stats.items() if stat[_PARENT] in level and pid not in tree]
    return tree


def cpu_seconds(root: int) -> float:
    """User and system seconds of the tree, children that ended and were waited for included.

    The kernel rounds down to ticks (10 ms): measure stretches of many ticks.
    """
    ticks = sum(s[_UTIME] + s[_STIME] + s[_CUTIME] + s[_CSTIME] for s in process_tree(root).values())
    return ticks / _TICKS_PER_SECOND


def rss_bytes(root: int) -> int:
    """Resident memory of the tree; pages that its processes share are counted for each."""
    return sum(stat[_RSS] for stat in process_tree(root).values()) * _PAGE_BYTES
