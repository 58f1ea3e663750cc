"""Readings of different moments may add up to more than a device has: what gives way then, and in which order."""

from collections.abc import Sequence
from typing import Final

from gpupool.policies.memory_parts import Part

_IDLE: Final = ("unused", "unknown", "other")
_GIVES_WAY: Final = ("unused", "unknown", "kv_free", "activations", "lora", "kv_used", "weights")
"""Where readings of different moments add up to more than the device has: in this order."""


def fit(filled: list[list[Part]], claimed: Sequence[int], beside: list[Part], size: int | None) -> None:
    """Cut what adds up to more than the device has: what is not in use, then what goes beyond its own claim.

    All claims together are within the device, so no instance that keeps to its own is ever cut for others.
    """
    over = 0 if size is None else sum(part[1] for parts in (*filled, beside) for part in parts) - size
    if over <= 0:
        return
    for name in _IDLE:
        for parts in (*filled, beside):
            over -= _cut(parts, name, over)
    for parts, most in zip(filled, claimed, strict=True):
        for name in _GIVES_WAY:
            beyond = sum(part[1] for part in parts) - most
            over -= _cut(parts, name, min(over, beyond))
    for parts in filled:  # an error took memory out under claims that stand
        for name in _GIVES_WAY:
            over -= _cut(parts, name, over)


def _cut(parts: list[Part], name: str, most: int) -> int:
    """Take up to `most` MiB of the segments called `name`; how much it was."""
    taken = 0
    for at, (segment, mib, of) in enumerate(parts):
        if segment == name and taken < most:
            cut = min(most - taken, mib)
            parts[at] = (segment, mib - cut, of)
            taken += cut
    return taken


def fit_sums(sums: dict[str, int], size: int | None) -> None:
    """The same for sums by segment, of which it is not known whose they are."""
    over = 0 if size is None else sum(sums.values()) - size
    for name in (*_IDLE, *_GIVES_WAY):
        if over > 0 and name in sums:
            cut = min(over, sums[name])
            sums[name] -= cut
            over -= cut
