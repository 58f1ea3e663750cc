"""How near the devices of one node are to each other, from the links that each of them tells. Pure."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final, Protocol

LEVELS: Final[Mapping[str, float]] = {
    "nvswitch": 1.0,  # every pair at full rate
    "nvlink": 0.95,
    "c2c": 0.95,
    "xgmi": 0.9,
    "xelink": 0.85,
    "pcie_switch": 0.6,
    "pcie_host": 0.4,
    "numa": 0.3,
    "system": 0.1,
}
"""Kinds of discovery.base.LinkType, the nearest first, as a score from 0 to 1."""

UNKNOWN: Final = 0.05
"""Of a pair of which nobody says how it is connected: less than the farthest that is known."""

DOMAIN: Final = LEVELS["pcie_switch"]
"""From here on two devices are one domain: traffic between them does not pass through the host."""

_HUBS: Final = frozenset({"nvswitch", "xgmi", "xelink", "pcie_switch"})
"""Kinds by which two devices that name the same third reach each other."""
_MOST_SETS: Final = 500


class Linked(Protocol):
    """A device as far as its links go."""

    @property
    def stable_id(self) -> str: ...
    @property
    def links(self) -> Mapping[str, str]:
        """Kind of link by the peer's stable id, or by the name of a switch."""


def pair_score(first: Linked, second: Linked) -> float:
    """The best way between two devices, 0 to 1; the worst score that there is where none is told."""
    direct = first.links.get(second.stable_id) or second.links.get(first.stable_id)
    best = LEVELS.get(direct, UNKNOWN) if direct else UNKNOWN
    if best < 1.0:
        for peer, kind in first.links.items():
            if kind in _HUBS and second.links.get(peer) == kind:
                best = max(best, LEVELS[kind])
    return best


def set_score(devices: Sequence[Linked]) -> float:
    """A set is as near as its farthest pair; one device alone is as near as can be."""
    if len(devices) > 1 and _one_switch(devices):
        return 1.0
    return min((pair_score(first, second) for first, second in combinations(devices, 2)), default=1.0)


def _one_switch(devices: Sequence[Linked]) -> bool:
    """Whether all are at one switch that joins every pair at full rate: no pair needs to be looked at."""
    return any(
        LEVELS.get(kind) == 1.0 and all(one.links.get(peer) == kind for one in devices)
        for peer, kind in devices[0].links.items()
    )


def nearest_set(devices: Sequence[Linked], count: int) -> tuple[int, ...] | None:
    """Positions of `count` devices that are as near to each other as may be; of equal ones, the first in order.

    None where there are not so many. With up to 500 sets of that size the answer is exact, else a good one.
    """
    size = len(devices)
    if count > size:
        return None
    if count <= 1 or count == size or _one_switch(devices):
        return tuple(range(count))
    pairs = [[1.0] * size for _ in range(size)]
    for first, second in combinations(range(size), 2):
        pairs[first][second] = pairs[second][first] = pair_score(devices[first], devices[second])
    for level in sorted({score for row in pairs for score in row}, reverse=True):
        found = _clique(pairs, count, level)
        if found is not None:
            return found
    return None  # not reached: at the lowest level every set is one


def _clique(pairs: Sequence[Sequence[float]], count: int, level: float) -> tuple[int, ...] | None:
    size = len(pairs)
    for seed in range(size):
        chosen = [seed]
        for other in range(size):
            if len(chosen) == count:
                break
            if other != seed and all(pairs[other][one] >= level for one in chosen):
                chosen.append(other)
        if len(chosen) == count:
            return tuple(sorted(chosen))
    if comb(size, count) > _MOST_SETS:
        return None
    for members in combinations(range(size), count):
        if all(pairs[first][second] >= level for first, second in combinations(members, 2)):
            return members
    return None


def describe(score: float) -> str:
    """A score in words, for a reason: over NVLink."""
    for kind, level in LEVELS.items():
        if score >= level:
            return _WORDS[kind]
    return "in a way that nobody tells"


_WORDS: Final = {
    "nvswitch": "over NVSwitch",
    "nvlink": "over NVLink",
    "c2c": "over NVLink-C2C",
    "xgmi": "over XGMI",
    "xelink": "over Xe Link",
    "pcie_switch": "over one PCIe switch",
    "pcie_host": "over a PCIe host bridge",
    "numa": "within one NUMA node",
    "system": "across the sockets",
}
