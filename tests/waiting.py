"""Waiting for something real to happen, with a deadline."""

import time
from collections.abc import Callable

import psutil

DEADLINE_SECONDS = 10.0
_POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], what: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Ask again and again until it is so; fails the test with `what` when time is up."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(_POLL_SECONDS)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
