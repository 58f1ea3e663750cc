"""What engines told of their memory once they ran (each by its room), and an estimate corrected by it."""

import math
from dataclasses import dataclass, replace

from gpupool.policies.estimate.estimate import Estimate, Part


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes; None where the engine did not tell. Peaks are the agent's own look."""

    weights: int | None = None  # on each device, as the next two
    kv_cache: int | None = None  # on all devices together
    compute: int | None = None
    peak: int | None = None


def correct(made: Estimate, measured: Measured) -> Estimate:
    """What was told goes before what was reckoned, part by part; a peak above the sum goes to the compute buffers.

    An engine that takes all of its lease for the cache (vLLM) tells more than the least that serves: that is what it
    holds now, not what it needs, so a told cache only counts where it is the smaller one.
    """
    if measured == Measured():
        return made
    parts = made.cards or (made.host,)
    told = measured.kv_cache
    reckoned = sum(part.kv_cache for part in parts)
    share = 1.0 if told is None or not reckoned else min(1.0, told / reckoned)
    each = None if told is None else told // len(parts)
    if not made.cards:
        return replace(made, host=_corrected(made.host, measured, share, each), measured=True)
    cards = tuple(_corrected(card, measured, share, each) for card in made.cards)
    return replace(made, cards=cards, measured=True)


def _corrected(part: Part, measured: Measured, share: float, cache: int | None) -> Part:
    """`share` of the reckoned cache counts; `cache` is what a device holds of it now."""
    told = replace(
        part,
        weights=part.weights if measured.weights is None else measured.weights,
        kv_cache=math.ceil(part.kv_cache * share),
        compute=part.compute if measured.compute is None else measured.compute,
    )
    held = told.total - told.kv_cache + (cache or told.kv_cache)
    if measured.peak is not None and measured.peak > held:
        told = replace(told, compute=told.compute + measured.peak - held)
    return told
