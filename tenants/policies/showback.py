"""Who an instance's time in an hour is charged to: to those who used it, in proportion.

The time in which it answered (busy) is shared by the length of each tenant's requests; the time in which it waited
(idle) or came up (warm-up) was spent for the same tenants and is shared alike. An instance that nobody used in the
hour is its owner's, where its model is one tenant's private one, and the platform's (None) else. Time is in whole
milliseconds, money in millionths, and shares always add up to what was shared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

Payer = UUID | None


@dataclass(frozen=True, slots=True)
class Share:
    """One payer's part of an instance's hour."""

    busy_ms: int = 0
    idle_ms: int = 0
    warm_ms: int = 0
    cost_micros: int = 0


def share_hour(
    *, warm_ms: int, ready_ms: int, busy_ms: int, uses: Mapping[UUID, int], owner: Payer, cost_micros: int
) -> dict[Payer, Share]:
    """Parts of one instance's hour by payer.

    `busy_ms` is how long it answered anyone (at most `ready_ms` counts), `uses` each tenant's requests' lengths
    together (they overlap), `cost_micros` what the whole is priced at.
    """
    busy_ms = min(max(busy_ms, 0), ready_ms)
    weights: dict[Payer, int] = {tenant: max(length, 1) for tenant, length in uses.items()} or {owner: 1}
    busy = apportion(busy_ms, weights)
    idle = apportion(ready_ms - busy_ms, weights)
    warm = apportion(warm_ms, weights)
    cost = apportion(cost_micros, weights)
    return {payer: Share(busy[payer], idle[payer], warm[payer], cost[payer]) for payer in weights}


def apportion(total: int, weights: Mapping[Payer, int]) -> dict[Payer, int]:
    """`total` in whole parts by weight (largest remainders first; ties by id). They add up to it.

    Raises ValueError for a negative total, or without a positive weight.
    """
    whole = sum(weights.values())
    if total < 0 or whole <= 0 or min(weights.values()) < 0:
        raise ValueError("nothing to share, or nobody to share it among")
    parts = {payer: total * weight // whole for payer, weight in weights.items()}
    left = total - sum(parts.values())
    by_remainder = sorted(weights, key=lambda payer: (-(total * weights[payer] % whole), str(payer)))
    for payer in by_remainder[:left]:
        parts[payer] += 1
    return parts


def gpu_cost_micros(gpu_second_micros: int, *, gpus: int, time_ms: int) -> int:
    """What `gpus` devices cost for so long, rounded up once."""
    return -(-gpu_second_micros * gpus * time_ms // 1000)
