"""What health probes of an engine mean for its state. Pure.

Two breakers: an engine that refuses or answers with an error is out after three probes in a row, one that is too
slow after five. One good probe brings it back. Silence is slowness to its agent, which sees that its process is
there, and a failure to the controller. Probes cost nothing and wake nobody: they ask for health, the list of models
and metrics, never for a token.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gpupool.policies.instance import State

SLOW_SECONDS: Final = 3.0
"""A health answer that takes longer is too slow."""

FAILURES_TO_EJECT: Final = 3
SLOW_TO_EJECT: Final = 5


class ProbeResult(Enum):
    """How one probe went."""

    GOOD = auto()
    SLOW = auto()
    FAILED = auto()


def slow_or(result: ProbeResult, *, seconds: float, slow_seconds: float = SLOW_SECONDS) -> ProbeResult:
    """SLOW where the answer, or giving it up, took more than `slow_seconds`; else `result`."""
    return ProbeResult.SLOW if seconds > slow_seconds else result


@dataclass(frozen=True, slots=True)
class Health:
    """What is remembered of an engine's probes since the last good one."""

    bad: int = 0  # not good, in a row
    failed: int = 0  # of these, the failed ones at the end

    @property
    def ejected(self) -> bool:
        """Whether so many were bad that it is to get no requests."""
        return self.failed >= FAILURES_TO_EJECT or self.bad >= SLOW_TO_EJECT


def after_probe(health: Health, result: ProbeResult) -> Health:
    """The health with one more probe."""
    match result:
        case ProbeResult.GOOD:
            return Health()
        case ProbeResult.SLOW:
            return Health(health.bad + 1)
        case ProbeResult.FAILED:
            return Health(health.bad + 1, health.failed + 1)


def probed_state(state: State, result: ProbeResult, health: Health) -> State | None:
    """The state of an attached engine after a probe; None for no change. `health` includes that probe.

    One good answer brings an engine (back) in; it takes several others to take a serving one out.
    """
    if result is ProbeResult.GOOD:
        return None if state == State.READY else State.READY
    if state == State.READY:
        return State.FAILED if health.ejected else None
    return None if state == State.FAILED else State.FAILED
