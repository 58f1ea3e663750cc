"""How much of a limit a process keeps for itself, so that requests far from the limit wait for nobody. Pure.

What is granted is bound again by the script that grants it, which alone knows what is left at that moment.
"""

from typing import Final

SLICE_SHARE: Final = 0.05
"""Of what is left, all slices of all processes together."""

NEAR_RESERVATIONS: Final = 20
"""With less left than so many times the largest recent reservation there are no slices."""

_FADING: Final = 10


def is_near(left: int, largest: int) -> bool:
    """Whether so little is left that nobody may hold slices and every request asks."""
    return left < NEAR_RESERVATIONS * largest


def wished(*, recent: int, asked: int) -> int:
    """Units to ask for beside a request's own: what the last second took, or what this one has taken so far."""
    return max(recent, asked)


def kept(free: int, *, asked: int, left: int, largest: int, live: int) -> int:
    """Units of a slice that a process keeps at a rotation: none near the limit or when it was idle, else what a
    second takes, and no more than its part of what is left."""
    if free <= 0 or asked == 0 or is_near(left, largest):
        return 0
    return min(free, asked, int((left + free) * SLICE_SHARE / max(1, live)))


def largest_after(largest: int) -> int:
    """The largest recent reservation a rotation later: a tenth less, unless there is another as large."""
    return max(1, largest - max(1, largest // _FADING))


def alone_share(amount: int, live: int) -> int:
    """Requests at once that a process admits by itself when nobody can be asked."""
    return min(amount, max(1, amount // max(1, live)))
