"""What a client is told whose request does not fit under a limit. Pure."""

import math
from typing import Final, NamedTuple

from core.errors import GatehouseError, QuotaExceeded, RateLimited
from gateway.relay.limiting.accounts import Account
from gateway.relay.limiting.layout import CALENDAR
from gateway.relay.rows import LimitRow

_METRICS: Final = {
    "requests": "requests",
    "tokens": "tokens",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "money": "money",
    "concurrency": "requests at once",
    "held_requests": "requests held",
}
_WINDOWS: Final = {"minute": " per minute", "bucket": " (bucket)", "day": " per day", "month": " per month"}
_MICROS: Final = 1_000_000


class Refused(NamedTuple):
    """A counter that a request did not fit under. `reset_seconds` is 0 where waiting does not help."""

    account: Account
    need: int
    left: int
    used: int
    held: int
    reset_seconds: float
    hope: int
    """2: other processes hold enough that may lie idle; 1: they hold something; 0: it is no use to ask them."""


def retry_seconds(refused: Refused) -> int:
    """When it may fit, in whole seconds: soon, where only what running requests have reserved is in the way."""
    if refused.account.kind == CALENDAR and refused.used + refused.need <= refused.account.amount:
        return 1
    return max(1, math.ceil(refused.reset_seconds))


def refusal(refused: list[Refused], headers: list[tuple[bytes, bytes]]) -> GatehouseError:
    """The error for a request that all of these refused: it cites the one that takes longest."""
    worst = max(refused, key=lambda one: (one.need > one.account.amount, retry_seconds(one)))
    limit, amount = worst.account.limit, worst.account.amount
    subject = f"{_METRICS[limit.metric]}{_WINDOWS.get(limit.window, '')} {scope_of(limit)}"
    counts = f"limit {_told(limit, amount)}, used {_told(limit, worst.used)}, reserved {_told(limit, worst.held)}"
    lacking = worst.need - max(0, worst.left)
    if worst.need > amount:
        message = f"The request is too large for {subject}: {counts}, requested {_told(limit, worst.need)}."
        return _error(limit, message, None, headers, lacking)
    verb = "The budget is used up" if worst.account.kind == CALENDAR else "Rate limit reached"
    reset = max(1, math.ceil(worst.reset_seconds))
    message = f"{verb} for {subject}: {counts}, requested {_told(limit, worst.need)}, reset in {reset} s."
    return _error(limit, message, retry_seconds(worst), headers, lacking)


def _error(
    limit: LimitRow, message: str, retry_after_seconds: float | None, headers: list[tuple[bytes, bytes]], lacking: int
) -> GatehouseError:
    kind = QuotaExceeded if limit.window in ("day", "month") else RateLimited
    error = kind(message, retry_after_seconds=retry_after_seconds, headers=tuple(headers))
    error.metric, error.window, error.lacking = limit.metric, limit.window, lacking
    return error


def scope_of(limit: LimitRow) -> str:
    """Whose use a limit counts, in the words for those whom it holds: a tenant with its departments is told to them."""
    if limit.key_id is not None:
        scope = "of this key"
    elif limit.tenant_id is None:
        scope = "of this installation"
    else:
        scope = f"of tenant {limit.tenant_slug}" + (" with its departments" if limit.subtree else "")
    return f"{scope} for model '{limit.model}'" if limit.model else scope


def _told(limit: LimitRow, units: int) -> str:
    if limit.metric != "money":
        return str(units)
    return f"{units / _MICROS:.6f}".rstrip("0").rstrip(".")
