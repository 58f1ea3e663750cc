"""What a replay saw, as numbers and as a table. Pure: results in, report out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import assert_never


@dataclass(frozen=True, slots=True)
class Answered:
    """A stream that came whole, with `[DONE]`. Times in seconds."""

    ttft_seconds: float | None  # sent to first content; None when there was none
    duration_seconds: float
    input_tokens: int | None
    output_tokens: int | None  # as the engine counted


@dataclass(frozen=True, slots=True)
class Limited:
    """429: the caller's own limit."""

    code: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """503: nothing was ready to answer."""

    code: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Anything else; `reason` is short, so that equal ones can be counted."""

    reason: str


Result = Answered | Limited | Unavailable | Failed


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in milliseconds unless named otherwise; None where nothing was measured."""

    sent: int
    succeeded: int
    limited_429: int
    unavailable_503: int
    failed: int
    reasons: dict[str, int]
    input_tokens: int
    output_tokens: int
    uncounted: int  # answers whose engine reported no usage
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    seconds: float
    latest_start_ms: float  # how late the most delayed request was sent

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile; `share` from 0 to 1. None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]


def tpot_seconds(answer: Answered) -> float | None:
    """(duration - TTFT) / (output tokens - 1); None with fewer than two tokens or no first one."""
    if answer.ttft_seconds is None or answer.output_tokens is None or answer.output_tokens < 2:
        return None
    return (answer.duration_seconds - answer.ttft_seconds) / (answer.output_tokens - 1)


def summarise(results: Sequence[Result], *, seconds: float, latest_start_seconds: float) -> Summary:
    """Counts and percentiles of a whole replay that took `seconds`."""
    answers: list[Answered] = []
    limited = unavailable = failed = 0
    reasons: Counter[str] = Counter()
    for result in results:
        match result:
            case Answered():
                answers.append(result)
            case Limited(code=code):
                limited += 1
                reasons[f"429 {code}"] += 1
            case Unavailable(code=code):
                unavailable += 1
                reasons[f"503 {code}"] += 1
            case Failed(reason=reason):
                failed += 1
                reasons[reason] += 1
            case _:
                assert_never(result)
    ttfts = [a.ttft_seconds * 1000 for a in answers if a.ttft_seconds is not None]
    tpots = [tpot * 1000 for a in answers if (tpot := tpot_seconds(a)) is not None]
    return Summary(
        sent=len(results),
        succeeded=len(answers),
        limited_429=limited,
        unavailable_503=unavailable,
        failed=failed,
        reasons=dict(reasons.most_common()),
        input_tokens=sum(a.input_tokens or 0 for a in answers),
        output_tokens=sum(a.output_tokens or 0 for a in answers),
        uncounted=sum(a.output_tokens is None for a in answers),
        ttft_p50_ms=percentile(ttfts, 0.50),
        ttft_p99_ms=percentile(ttfts, 0.99),
        tpot_p50_ms=percentile(tpots, 0.50),
        tpot_p99_ms=percentile(tpots, 0.99),
        seconds=seconds,
        latest_start_ms=latest_start_seconds * 1000,
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def table(summary: Summary) -> str:
    """The summary for people."""
    tokens = f"{summary.input_tokens:,} in, {summary.output_tokens:,} out"
    if summary.uncounted:
        tokens += f" ({summary.uncounted} answers without a count)"
    rows = [
        ("requests sent", f"{summary.sent:,} in {summary.seconds:,.1f} s"),
        ("success", f"{summary.succeeded:,}"),
        ("429 (limits)", f"{summary.limited_429:,}"),
        ("503 (not ready)", f"{summary.unavailable_503:,}"),
        ("failures", f"{summary.failed:,}"),
        ("TTFT p50 / p99", f"{_ms(summary.ttft_p50_ms)} / {_ms(summary.ttft_p99_ms)}"),
        ("TPOT p50 / p99", f"{_ms(summary.tpot_p50_ms)} / {_ms(summary.tpot_p99_ms)}"),
        ("tokens", tokens),
        ("sent late by at most", _ms(summary.latest_start_ms)),
    ]
    lines = [f"{name:<22}{value}" for name, value in rows]
    lines += [f"  {count:,} x {reason}" for reason, count in summary.reasons.items()]
    return "\n".join(lines)
