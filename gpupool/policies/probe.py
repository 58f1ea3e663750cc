"""What health probes of an engine mean for its state. Pure."""

from typing import Final

from gpupool.policies.instance import State

FAILURES_TO_EJECT: Final = 3


def probed_state(state: State, *, answered: bool, failures: int) -> State | None:
    """The state after one more probe; None for no change. `failures` counts unanswered ones in a row, this included.

    One answer brings an engine (back) in; it takes several silences to take a serving one out.
    """
    if answered:
        return None if state == State.READY else State.READY
    if state == State.READY:
        return State.FAILED if failures >= FAILURES_TO_EJECT else None
    return None if state == State.FAILED else State.FAILED
