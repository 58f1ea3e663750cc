"""Log lines that a request's sender could make as many of as they like, held to one a while."""


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
