"""Ends trainers that workers of this machine left running; for `up` and `down`, where no worker runs. No Django."""

import time
from pathlib import Path
from typing import Final

from gpupool.training.process import ask_to_end, kill_leftovers, runner_pid

_POLL_SECONDS: Final = 0.05


def end_trainers(root: Path, *, grace_seconds: float = 5.0) -> int:
    """End every trainer under the training folder `root`; returns how many there were.

    A runner gives its trainer the time that is configured for that; after `grace_seconds` both are killed. Their jobs
    have failed then, as the next worker will say.
    """
    running = [(folder, found) for folder in (root / "jobs").glob("*") if (found := runner_pid(folder)) is not None]
    for _, found in running:
        ask_to_end(*found)
    deadline = time.monotonic() + grace_seconds
    while any(runner_pid(folder) for folder, _ in running) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for folder, _ in running:
        kill_leftovers(folder)  # the runner is among them: it has the same environment
    return len(running)
