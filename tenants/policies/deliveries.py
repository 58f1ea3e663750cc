"""How a notice's delivery goes on: its states, when it is tried again, and when a webhook is given up."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


ALLOWED: Final[Mapping[DeliveryState, frozenset[DeliveryState]]] = {
    DeliveryState.PENDING: frozenset({DeliveryState.DELIVERED, DeliveryState.FAILED}),
    DeliveryState.DELIVERED: frozenset(),
    DeliveryState.FAILED: frozenset(),
}

FIRST_RETRY_SECONDS: Final = 10.0
LONGEST_RETRY_SECONDS: Final = 2 * 3600.0
GIVE_UP_SECONDS: Final = 24 * 3600.0
DISABLE_SECONDS: Final = 5 * 86_400.0
"""A webhook at which nothing has succeeded for so long is disabled."""

OVERLAP_SECONDS: Final = 24 * 3600.0
"""So long after a rotation the secret before it signs too."""


def may_become(before: DeliveryState, after: DeliveryState) -> bool:
    return after in ALLOWED[before]


def retry_delay(attempts: int, *, jitter: float) -> float:
    """Seconds until the next attempt after `attempts` that failed: doubling, capped, spread by half.

    `jitter` is in [0, 1): many deliveries that failed together must not come back together.
    """
    doubled = FIRST_RETRY_SECONDS * 2.0 ** min(attempts - 1, 16)
    return min(doubled, LONGEST_RETRY_SECONDS) * (0.5 + jitter / 2)


def next_attempt(attempts: int, *, created_at: float, now: float, jitter: float) -> float | None:
    """When to try again (seconds since the epoch), None when it is given up: a day after it was made."""
    at = now + retry_delay(attempts, jitter=jitter)
    return at if at <= created_at + GIVE_UP_SECONDS else None


def is_to_be_disabled(failing_since: float, now: float) -> bool:
    """Whether a webhook whose attempts all failed since then is disabled."""
    return now - failing_since >= DISABLE_SECONDS


def signing_versions(version: int, *, rotated_at: float | None, now: float) -> tuple[int, ...]:
    """Which versions of the secret sign, newest first: the one before too, while receivers change over."""
    if rotated_at is not None and version > 1 and now < rotated_at + OVERLAP_SECONDS:
        return version, version - 1
    return (version,)
