"""Ends engines that agents of this folder left behind; for `up` and `down`, where no agent runs. No Django."""

import signal
import time
from pathlib import Path
from typing import Final

from gpupool.agent.processes import kill_marked, kill_orphans, marked_engines, signal_group, start_mark
from gpupool.agent.state import StateDir, read_records

_POLL_SECONDS: Final = 0.05


def stop_all(var_dir: Path, *, grace_seconds: float = 5.0) -> list[int]:
    """Stop every engine that agents under `var_dir` started; returns the pids that were still running.

    SIGTERM first, SIGKILL after `grace_seconds`. Engines are known by pid and kernel start time, or by the
    mark in their environment. Call it with no agent running: an agent would start them again.
    """
    running: dict[int, str] = {}
    marks: set[str] = set()
    leaders: list[tuple[int, Path]] = []
    for folder in sorted((var_dir / "agent").glob("*")):
        state = StateDir(folder)
        for record in read_records(folder):
            marks.add(state.mark(record.row))
            if record.pid is not None and record.log_path is not None:
                leaders.append((record.pid, Path(record.log_path).parent))
            if record.pid is not None and record.start_mark and start_mark(record.pid) == record.start_mark:
                running[record.pid] = record.start_mark
        for pid, mark in marked_engines(folder):
            marks.add(mark)
            started = start_mark(pid)
            if started is not None:
                running[pid] = started
    for pid, started in running.items():
        signal_group(pid, started, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while _left(running) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for pid in _left(running):
        signal_group(pid, running[pid], signal.SIGKILL)
    for mark in marks:
        kill_marked(mark)  # children that outlived their engine
    for pid, folder in leaders:
        kill_orphans(pid, folder)
    return sorted(running)


def _left(running: dict[int, str]) -> list[int]:
    return [pid for pid, started in running.items() if start_mark(pid) == started]
