"""What a tenant's SLA tier means: how urgent its requests are by default, and what is aimed at for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class TrafficClass(StrEnum):
    """How urgent a request is: p0 goes before p1, p1 before p2."""

    REALTIME = "p0"
    STANDARD = "p1"
    BACKGROUND = "p2"


@dataclass(frozen=True, slots=True)
class Objectives:
    """What is aimed at for a tier's requests; nothing is refused for missing it.

    `ttft_p99_seconds` and `latency_p99_seconds` are what 99 of 100 requests stay within: until the first token of a
    streamed answer, and until the end of any. `availability` is the share of requests that do not fail for our reasons,
    over 30 days.
    """

    traffic_class: TrafficClass
    ttft_p99_seconds: float
    latency_p99_seconds: float
    availability: float


OBJECTIVES: Final[Mapping[str, Objectives]] = {
    "gold": Objectives(TrafficClass.REALTIME, 1.0, 15.0, 0.999),
    "silver": Objectives(TrafficClass.STANDARD, 2.5, 30.0, 0.995),
    "bronze": Objectives(TrafficClass.BACKGROUND, 10.0, 120.0, 0.99),
}
"""By the value of `tenants.models.SlaTier`, the most urgent first."""

_LEAST: Final = OBJECTIVES["bronze"]


def objectives_of(tier: str) -> Objectives:
    """A tier's objectives; those of the least one for a tier that this version does not know."""
    return OBJECTIVES.get(tier, _LEAST)
