"""How fast this machine is now, for tests that hold processor time against a bar."""

from time import process_time
from typing import Final

_QUIET_SECONDS: Final = 0.0045
"""What `_work` takes where the bars were measured, on a core of its own."""


def pace() -> float:
    """How many times as long as there work takes here and now, at least 1.

    Processor time hangs on what else the machine does: cores share caches, and two threads of one core its units.
    """
    return max(1.0, min(_work() for _ in range(3)) / _QUIET_SECONDS)


def _work() -> float:
    """Seconds of processor time of what interpreted code mostly does: calls, small objects, dictionaries."""
    began = process_time()
    kept: dict[int, tuple[int, str]] = {}
    for number in range(30_000):
        kept[number % 1_000] = _made(number, kept)
    return process_time() - began


def _made(number: int, kept: dict[int, tuple[int, str]]) -> tuple[int, str]:
    before = kept.get(number // 2)
    return (number, "made") if before is None else (number + before[0] % 7, before[1])
