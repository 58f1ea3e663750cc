"""One attempt that came to nothing: what the client is told of it, and what it says about the endpoint."""

from typing import Final

from core.errors import GatehouseError
from gateway.policies.breaker import AttemptOutcome

_BACK_PRESSURE: Final = frozenset({429, 503})


class AttemptFailed(Exception):
    """One attempt is over; `retry`: another endpoint may be asked if no content was told yet."""

    def __init__(
        self,
        error: GatehouseError,
        *,
        retry: bool,
        outcome: AttemptOutcome = AttemptOutcome.NEUTRAL,
        reason: str = "",
    ) -> None:
        self.error = error
        self.retry = retry
        self.outcome = outcome
        self.reason = reason or f"{error.status} {error.code}"  # for the log
        super().__init__(error.message)


def outcome_of(status: int, error: GatehouseError) -> AttemptOutcome:
    """What an engine's error says about the engine: a client's 4xx nothing. `status`: the engine's own."""
    if status in _BACK_PRESSURE:
        return AttemptOutcome.BACK_PRESSURE
    return AttemptOutcome.FAILED if error.status >= 500 else AttemptOutcome.NEUTRAL
