"""How many requests an instance may have at once, by how full its KV cache is. Pure.

Below 70 % all that the GPU mode allows, up to 90 % fewer, above that new work goes to an instance of the model on a
CPU where one is ready; where none is, the mixed mode's few stay, since somebody has to answer.
"""

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """The words of Instance.memory_mode."""

    FULL = "full"
    MIXED = "mixed"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Rules:
    """Shares of the KV cache, and requests at once in each mode."""

    mixed_from: float = 0.7
    cpu_from: float = 0.9
    slack: float = 0.05  # below a line by so much before the way back: else it goes to and fro
    full_cap: int = 8
    mixed_cap: int = 4
    cpu_cap: int = 12


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cap` None: no cap of ours. `cpu_cap` is what an instance of the model on a CPU may have meanwhile."""

    mode: Mode
    cap: int | None
    reason: str


_RANK = {Mode.FULL: 0, Mode.MIXED: 1, Mode.CPU: 2}


def mode_for(current: Mode, kv_used: float, rules: Rules) -> Mode:
    """The mode at a use of the KV cache from 0 to 1, with the way back a little below the way there."""
    risen = Mode.CPU if kv_used > rules.cpu_from else Mode.MIXED if kv_used >= rules.mixed_from else Mode.FULL
    if _RANK[risen] >= _RANK[current]:
        return risen
    leave_at = (rules.cpu_from if current is Mode.CPU else rules.mixed_from) - rules.slack
    if kv_used >= leave_at:
        return current
    # From CPU straight to full only where the cache is below the lower line, too.
    if current is Mode.CPU and kv_used >= rules.mixed_from - rules.slack:
        return Mode.MIXED
    return risen


def decide(current: Mode, kv_used: float | None, *, cpu_ready: bool, rules: Rules) -> Verdict | None:
    """The mode of an instance on a GPU now; None where its engine does not say how full its cache is.

    `cpu_ready`: an instance of the same model is ready on a CPU.
    """
    if kv_used is None or not 0.0 <= kv_used <= 1.0:
        return None
    mode = mode_for(current, kv_used, rules)
    said = f"{kv_used:.0%} of its KV cache is in use"
    match mode:
        case Mode.FULL:
            return Verdict(mode, rules.full_cap, f"{said}.")
        case Mode.MIXED:
            return Verdict(mode, rules.mixed_cap, f"{said}: it gets fewer requests at once.")
        case Mode.CPU if cpu_ready:
            return Verdict(mode, 0, f"{said}: new requests go to the model's instance on a CPU.")
        case Mode.CPU:
            why = "no instance of the model is ready on a CPU, so that it goes on with few"
            return Verdict(Mode.MIXED, rules.mixed_cap, f"{said}; {why}.")
