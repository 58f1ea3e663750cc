"""Requests for more: their states."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RequestState(StrEnum):
    OPEN = "open"
    APPROVED = "approved"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"  # nobody decided in time, or what was granted for a time is over


ALLOWED: Final[Mapping[RequestState, frozenset[RequestState]]] = {
    RequestState.OPEN: frozenset(
        {RequestState.APPROVED, RequestState.DECLINED, RequestState.WITHDRAWN, RequestState.EXPIRED}
    ),
    RequestState.APPROVED: frozenset({RequestState.EXPIRED}),
    RequestState.DECLINED: frozenset(),
    RequestState.WITHDRAWN: frozenset(),
    RequestState.EXPIRED: frozenset(),
}

OPEN_SECONDS: Final = 90 * 86_400.0
"""So long a request waits for a decision."""


def may_become(before: RequestState, after: RequestState) -> bool:
    return after in ALLOWED[before]


def is_over(state: RequestState, *, created_at: float, until: float | None, now: float) -> bool:
    """Whether a request has expired: what it asked for, or was granted, ended, or nobody decided for long."""
    if not may_become(state, RequestState.EXPIRED):
        return False
    if until is not None and until <= now:
        return True
    return state == RequestState.OPEN and now - created_at >= OPEN_SECONDS
