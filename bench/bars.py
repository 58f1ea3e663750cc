"""What the relay's cost is held to, beside its peers measured in the same rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.measure import Memory, Round, SlowStreams, median
from bench.plan import Plan

OURS: Final = "gatehouse"
LIMITED: Final = "gatehouse_limited"
"""Ours with a key under every kind of limit, all far away."""

RUST_ROUTERS: Final = ("vllm-router", "sglang-router")

ROUNDS_TO_JUDGE: Final = 3
REQUESTS_TO_JUDGE: Final = 1_000  # 10 ms ticks: fewer say nothing
STREAMS_TO_JUDGE: Final = 2_000
MEMORY_TO_JUDGE: Final = 200_000


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar and how it fared; `met` is None when it was not judged."""

    title: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None
    tolerance: float = 1.0
    """What the ratio of two noisy numbers may exceed the bar by, as a factor."""
    judged: bool = True

    @property
    def met(self) -> bool | None:
        if self.value is None or not self.judged:
            return None
        if self.at_most is not None:
            return self.value <= round(self.at_most * self.tolerance, 6)
        return self.at_least is not None and self.value * self.tolerance >= self.at_least

    def facts(self) -> dict[str, Any]:
        """As it is written down."""
        limit = {"at_most": self.at_most} if self.at_most is not None else {"at_least": self.at_least}
        slack = {"tolerance": self.tolerance} if self.tolerance != 1.0 else {}
        return {"title": self.title, "value": self.value, **limit, **slack, "met": self.met}


def paired(rounds: Sequence[Round], beside: Sequence[Sequence[Round]], field: str) -> float | None:
    """Median over the rounds of a cost beside the median of some others' in the same round.

    A machine that is slow in one round slows all, and the ratio stays.
    """
    ratios: list[float | None] = []
    for number, mine in enumerate(rounds):
        theirs = median([getattr(each[number], field) for each in beside if number < len(each)])
        own = getattr(mine, field)
        ratios.append(own / theirs if own is not None and theirs else None)
    return median(ratios)


def added(rounds: Sequence[Round], direct: Sequence[Round], field: str, percentile: str) -> float | None:
    """Median over the rounds of what a proxy adds to a percentile of no proxy at all, ms.

    Where a proxy has a rate of its own, no proxy's latency at the common one stands for it: it hardly depends on it.
    """
    pairs = [(getattr(a, field), getattr(b, field)) for a, b in zip(rounds, direct, strict=False)]
    return median([getattr(a, percentile) - getattr(b, percentile) for a, b in pairs if a and b])


def rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def bars(
    rounds: Mapping[str, Sequence[Round]], slow: Mapping[str, SlowStreams], memory: Memory | None, plan: Plan
) -> dict[str, Bar]:
    """Every bar by its key, those without a value too: what was left out is not judged."""
    ours = rounds.get(OURS, ())
    enough = plan.rounds >= ROUNDS_TO_JUDGE and plan.requests >= REQUESTS_TO_JUDGE

    def beside(names: Sequence[str], field: str) -> float | None:
        return rounded(paired(ours, [rounds[name] for name in names if name in rounds], field))

    def ratio(title: str, names: Sequence[str], field: str, at_most: float, tolerance: float = 1.0) -> Bar:
        return Bar(title, beside(names, field), at_most=at_most, tolerance=tolerance, judged=enough)

    litellm = paired(rounds.get("litellm", ()), [ours], "request_us") if ours else None
    limited = paired(rounds.get(LIMITED, ()), [ours], "request_us") if ours else None
    latency = rounded(added(ours, rounds.get("direct", ()), "half_load_ms", "p99"), 3)
    made = {
        "request_vs_vllm_router": ratio("CPU per request, x vllm-router", ("vllm-router",), "request_us", 1.0),
        "request_vs_nginx": ratio("CPU per request, x nginx", ("nginx",), "request_us", 4.0),
        "event_vs_rust_routers": ratio("CPU per event, x median Rust router", RUST_ROUTERS, "event_us", 1.3),
        "event_vs_nginx": ratio("CPU per event, x nginx", ("nginx",), "event_us", 2.3),
        "burst_event_vs_nginx": ratio("CPU per event of a burst, x nginx", ("nginx",), "burst_event_us", 3.0, 1.15),
        "litellm_vs_request": Bar("LiteLLM's CPU per request, x ours", rounded(litellm), at_least=15.0, judged=enough),
        "limits_vs_none": Bar("CPU per request, all limits on, x off", rounded(limited), at_most=1.2, judged=enough),
        "half_load_added_p99_ms": Bar("p99 added at half load, ms", latency, at_most=2.0, judged=enough),
    }
    many = slow.get(OURS)
    judged = many is not None and many.count >= STREAMS_TO_JUDGE
    gap = many.longest_gap_ms * 1_000 / plan.slow_pace_us if many else None
    made["slow_streams_failed"] = Bar("slow streams failed", many.failed if many else None, at_most=0, judged=judged)
    made["slow_streams_gap"] = Bar("slow streams' longest gap, x pace", rounded(gap), at_most=3.0, judged=judged)
    each = rounded(many.kib_per_stream, 1) if many else None
    made["slow_streams_kib"] = Bar("KiB a slow stream", each, at_most=40.0, judged=judged)
    growth = rounded(memory.growth * 100) if memory else None
    judged = memory is not None and memory.requests >= MEMORY_TO_JUDGE
    made["memory_growth_percent"] = Bar("memory growth, %", growth, at_most=5.0, judged=judged)
    return made
