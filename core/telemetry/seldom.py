"""Log lines that a request's sender could make as many of as they like, held to one a while."""

import logging
import time
from collections.abc import Callable
from typing import Final

_LONGEST: Final = 300


class Seldom:
    """Says when a line is due, at most once each `seconds`, and how many were held back since the last one."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._told_at = float("-inf")
        self._held_back = 0

    def due(self, now: float) -> int | None:
        """How many lines were held back before this one; None where this one is too. `now` is monotonic seconds."""
        if now - self._told_at < self._seconds:
            self._held_back += 1
            return None
        held_back, self._told_at, self._held_back = self._held_back, now, 0
        return held_back


class SeldomFilter(logging.Filter):
    """For a logger of the standard library: short lines without tracebacks, at most one each `seconds`."""

    def __init__(self, seconds: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seldom = Seldom(seconds)
        self._now = now

    def filter(self, record: logging.LogRecord) -> bool:
        held_back = self._seldom.due(self._now())
        if held_back is None:
            return False
        message = record.getMessage()[:_LONGEST]
        record.msg, record.args = (f"{message} ({held_back} more)" if held_back else message), ()
        record.exc_info = record.exc_text = None
        return True
