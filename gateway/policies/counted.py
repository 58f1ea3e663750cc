"""What an engine's counters say of the time between two readings."""

from dataclasses import dataclass
from typing import Final

_SAME_START_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment, in tokens; None where the engine does not say."""

    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    process_started: float | None


@dataclass(frozen=True, slots=True)
class Growth:
    """Tokens in between. After a restart only what came since it: at least so many."""

    restarted: bool
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


def growth(before: Reading, after: Reading) -> Growth:
    """A counter that went back, or a process that began at another time, is a restart."""
    pairs = (
        (before.input_tokens, after.input_tokens),
        (before.output_tokens, after.output_tokens),
        (before.cached_tokens, after.cached_tokens),
    )
    restarted = _is_another(before.process_started, after.process_started) or any(
        old is not None and new is not None and new < old for old, new in pairs
    )
    grown = [new if restarted or old is None or new is None else new - old for old, new in pairs]
    return Growth(restarted, *grown)


def _is_another(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) > _SAME_START_SECONDS
