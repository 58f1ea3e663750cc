"""How much is sent, and how much of it to a proxy that cannot carry as much."""

from dataclasses import asdict, dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything is bounded: a full run takes about twenty seconds a round and proxy."""

    rounds: int = 3
    first_requests: int = 3_000
    """Before anything is measured: LiteLLM is slower for its first thousands."""
    warm_up_requests: int = 2_000
    """Before each round."""
    requests: int = 8_000
    saturating_requests: int = 10_000
    saturating_concurrency: int = 16
    streams: int = 96
    stream_concurrency: int = 32
    stream_events: int = 200
    stream_pace_us: int = 10_000
    burst_streams: int = 128
    burst_events: int = 1_000
    burst_size: int = 50
    """Events in one write of the upstream."""
    burst_pace_us: int = 10_000
    """Between two bursts of a stream."""
    ttft_streams: int = 400
    ttft_rate: float = 100.0
    slow_streams: int = 2_000
    slow_rate: float = 1_000.0
    """Slow streams begun a second."""
    slow_events: int = 48
    slow_pace_us: int = 250_000
    memory_requests: int = 200_000
    memory_first: int = 20_000
    """After so many requests memory should no longer grow."""


QUICK: Final = Plan(
    rounds=1,
    first_requests=50,
    warm_up_requests=50,
    requests=200,
    saturating_requests=100,
    streams=4,
    stream_concurrency=4,
    stream_events=20,
    burst_streams=4,
    burst_events=100,
    ttft_streams=20,
    slow_streams=20,
    slow_events=4,
    slow_pace_us=50_000,
    memory_requests=2_000,
    memory_first=200,
)


def scaled(plan: Plan, share: float) -> Plan:
    """The plan for a proxy that carries `share` (0 to 1) of the common rate: as long, with less in it.

    Counts keep a floor that still means something, but never rise above the plan's.
    """
    if share >= 1.0:
        return plan

    def part(count: int, floor: int) -> int:
        return min(count, max(floor, round(count * share)))

    return replace(
        plan,
        warm_up_requests=part(plan.warm_up_requests, 50),
        requests=part(plan.requests, 300),
        saturating_requests=part(plan.saturating_requests, 300),
        streams=part(plan.streams, 8),
        stream_concurrency=part(plan.stream_concurrency, 4),
        burst_streams=part(plan.burst_streams, 4),
        ttft_streams=part(plan.ttft_streams, 30),
        ttft_rate=min(plan.ttft_rate, max(5.0, plan.ttft_rate * share)),
        slow_streams=part(plan.slow_streams, 50),
        slow_rate=min(plan.slow_rate, max(20.0, plan.slow_rate * share)),
    )


def plan_facts(plan: Plan) -> dict[str, float]:
    """As it is written down."""
    return asdict(plan)
