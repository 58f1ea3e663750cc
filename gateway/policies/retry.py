"""How many further attempts this process allows itself, so that an outage does not multiply the load. Pure."""

from collections import deque
from typing import Final

WINDOW_SECONDS: Final = 10
FLOOR: Final = 10
"""Retries that a window always has room for: a quiet process shall not refuse the only one it is asked for."""


class RetryBudget:
    """Retries of one process: at most `share` of the requests of the last ten seconds, and a small floor.

    Requests are not told one by one, which would cost each of them: the caller hands in how many there were since
    the start. `now` is monotonic seconds and must not go back.
    """

    __slots__ = ("_per_second", "_seen", "_share")

    def __init__(self, share: float) -> None:
        self._share = share
        self._seen = 0  # requests that are in `_per_second`, or were
        self._per_second: deque[tuple[int, int, int]] = deque()  # second, requests, retries

    def observe(self, *, now: float, requests: int) -> None:
        """Take note of the requests since the last call; at least once in a second for the window to be right."""
        self._add(int(now), requests - self._seen, 0)
        self._seen = requests

    def spend(self, *, now: float, requests: int) -> bool:
        """Whether one more attempt may be made; it is counted when it may. `requests`: all since the start."""
        self.observe(now=now, requests=requests)
        recent = sum(count for _, count, _ in self._per_second)
        spent = sum(retries for _, _, retries in self._per_second)
        if spent >= max(FLOOR, self._share * recent):
            return False
        self._add(int(now), 0, 1)
        return True

    def _add(self, second: int, requests: int, retries: int) -> None:
        rows = self._per_second
        if rows and rows[-1][0] >= second:
            last, requests_before, retries_before = rows[-1]
            rows[-1] = (last, requests_before + requests, retries_before + retries)
        else:
            rows.append((second, requests, retries))
        while rows[0][0] <= second - WINDOW_SECONDS:
            rows.popleft()
