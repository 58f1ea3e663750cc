"""One attempt that came to nothing: what the client is told of it, and what it says about the endpoint."""

from typing import Final

from core.errors import GatehouseError, NotSupported
from gateway.policies.breaker import AttemptOutcome
from gateway.relay.engine_errors import error_of_answer, error_of_event

_BACK_PRESSURE: Final = frozenset({429, 503})
_RETRIED: Final = frozenset({401, 403, 407, 429, 500, 502, 503, 504})


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


def failure_of_answer(
    status: int, body: bytes, *, retry_after: bytes | None, served_name: str, client_model: str
) -> AttemptFailed:
    """The failure that an error answer amounts to."""
    error = error_of_answer(status, body, retry_after=retry_after, served_name=served_name, client_model=client_model)
    retry = status in _RETRIED or isinstance(error, NotSupported)  # the model's other engines may be started for it
    return AttemptFailed(error, retry=retry, outcome=_outcome_of(status, error))


def failure_of_event(data: bytes, *, served_name: str, client_model: str) -> AttemptFailed:
    """The failure that an engine's error under a good status amounts to."""
    error = error_of_event(data, served_name=served_name, client_model=client_model)
    retry = error.status >= 500 or error.status in _RETRIED
    return AttemptFailed(error, retry=retry, outcome=_outcome_of(error.status, error))


def _outcome_of(status: int, error: GatehouseError) -> AttemptOutcome:
    """What an engine's error says about the engine: a client's 4xx nothing. `status`: the engine's own."""
    if status in _BACK_PRESSURE:
        return AttemptOutcome.BACK_PRESSURE
    return AttemptOutcome.FAILED if error.status >= 500 else AttemptOutcome.NEUTRAL
