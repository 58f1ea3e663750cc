"""Waiting for something real to happen, with a deadline."""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import psutil

DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.02


def wait_until(condition: Callable[[], bool], what: str, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Ask again and again until it is so; fails the test with `what` when time is up."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def killed_when_silent(process: "subprocess.Popen[Any]", *, seconds: float = 60.0) -> Iterator[None]:
    """Whoever reads what a child says meets its end, not silence for ever."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def stay_within_a_day(zone: tzinfo = UTC, *, seconds: float = 90.0) -> None:
    """For a test that counts by days: when it would meet midnight, begin after it."""
    now = datetime.now(zone)
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    left = midnight.timestamp() - now.timestamp()
    if left < seconds:
        time.sleep(left + 1)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
