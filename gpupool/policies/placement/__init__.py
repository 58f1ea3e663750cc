"""Where an instance can run: filters that give reasons, scorers, the best devices; who has to go first. Pure."""

from gpupool.policies.placement.pick import judge, judge_all, place
from gpupool.policies.placement.rounds import Round
from gpupool.policies.placement.views import (
    DEFAULT_MEM_LIMIT_MB,
    ClaimView,
    DeviceView,
    Fits,
    Need,
    NodeFacts,
    Placed,
    Placement,
    Preempt,
    QuotaView,
    RegionView,
    ReservationView,
    Unfit,
    Unplaced,
)

__all__ = [
    "DEFAULT_MEM_LIMIT_MB",
    "ClaimView",
    "DeviceView",
    "Fits",
    "Need",
    "NodeFacts",
    "Placed",
    "Placement",
    "Preempt",
    "QuotaView",
    "RegionView",
    "ReservationView",
    "Round",
    "Unfit",
    "Unplaced",
    "judge",
    "judge_all",
    "place",
]
