"""The usage chart: which buckets a range has, and the figure that plotly.js draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final
from zoneinfo import ZoneInfo

import plotly.graph_objects as go

from tenants.reads.usage import UsagePoint

MAX_SERIES: Final = 6
"""Models drawn by name; the rest is one grey series, so that colours stay distinguishable."""

NAME_LENGTH: Final = 48
"""Most characters of a model's name that the chart shows under the pointer; the legend has it whole."""


@dataclass(frozen=True, slots=True)
class Range:
    """A choice of the range selector; `step` is a bucket's width, None for calendar days."""

    name: str
    buckets: int
    step: timedelta | None


RANGES: Final[Mapping[str, Range]] = {
    "1h": Range("1h", 60, timedelta(minutes=1)),
    "24h": Range("24h", 48, timedelta(minutes=30)),
    "7d": Range("7d", 56, timedelta(hours=3)),
    "30d": Range("30d", 30, None),
    "90d": Range("90d", 90, None),
}
DEFAULT_RANGE: Final = "24h"


def bucket_starts(chosen: Range, *, now: datetime, zone: ZoneInfo) -> list[datetime]:
    """Starts of the buckets up to the one that holds `now`, aware, in `zone`, on round local times."""
    local = now.astimezone(zone)
    if chosen.step is None:
        midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return [midnight - timedelta(days=back) for back in range(chosen.buckets - 1, -1, -1)]
    # Wall-clock arithmetic within one zone would repeat or skip an hour when summer time changes.
    offset = local.utcoffset() or timedelta(0)
    seconds = (now.timestamp() + offset.total_seconds()) // chosen.step.total_seconds() * chosen.step.total_seconds()
    last = datetime.fromtimestamp(seconds - offset.total_seconds(), tz=zone)
    return [
        datetime.fromtimestamp(last.timestamp() - back * chosen.step.total_seconds(), tz=zone)
        for back in range(chosen.buckets - 1, -1, -1)
    ]


_STEPS: Final = (
    (timedelta(hours=2), timedelta(minutes=1)),
    (timedelta(hours=12), timedelta(minutes=10)),
    (timedelta(days=2), timedelta(minutes=30)),
    (timedelta(days=8), timedelta(hours=3)),
)
"""Of a span of one's own: up to so long, buckets so wide; calendar days beyond."""

MAX_BUCKETS: Final = 400


def buckets_between(since: datetime, until: datetime, *, zone: ZoneInfo) -> list[datetime]:
    """Starts of buckets that fill [since, until): the first begins with it, the others on round local times."""
    since, until = since.astimezone(UTC), until.astimezone(UTC)  # what a zone's clocks show goes back once a year
    step = next((step for longest, step in _STEPS if until - since <= longest), None)
    end = until - timedelta(seconds=1)
    if step is None:
        days = (end.astimezone(zone).date() - since.astimezone(zone).date()).days + 1
        starts = bucket_starts(Range("", min(days, MAX_BUCKETS), None), now=end, zone=zone)
    else:
        number = int((until - since) / step) + 2
        starts = bucket_starts(Range("", number, step), now=end, zone=zone)
    return [since.astimezone(zone), *(start for start in starts if since < start < until)]


def step_of(starts: Sequence[datetime]) -> timedelta:
    """How wide its buckets are, as most of them."""
    return timedelta(seconds=starts[-1].timestamp() - starts[-2].timestamp()) if len(starts) > 1 else timedelta(days=1)


def models_by_tokens(points: Sequence[UsagePoint]) -> list[str]:
    """Models, most tokens first; names break ties so that colours do not jump."""
    totals: dict[str, int] = {}
    for point in points:
        totals[point.model] = totals.get(point.model, 0) + point.input_tokens + point.output_tokens
    return sorted(totals, key=lambda model: (-totals[model], model))


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of the chart; `slot` is the number of its colour token."""

    name: str
    slot: int
    tokens: Sequence[int]


def token_series(points: Sequence[UsagePoint], *, buckets: int, other: str) -> list[Series]:
    """Tokens by model and bucket; models beyond MAX_SERIES are summed as `other`."""
    models = models_by_tokens(points)
    named = models[:MAX_SERIES]
    names = named if len(models) == len(named) else [*named, other]
    sums: dict[str, list[int]] = {name: [0] * buckets for name in names}
    for point in points:
        series = sums[point.model if point.model in named else other]
        series[point.bucket] += point.input_tokens + point.output_tokens
    return [Series(name, slot, tokens) for slot, (name, tokens) in enumerate(sums.items(), start=1)]


def _shortened(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def token_figure(series: Sequence[Series], starts: Sequence[datetime], *, money: bool = False) -> dict[str, Any]:
    """A stacked bar figure for plotly. Colours are slots of the theme, filled in by the page's script.

    `money`: values are millionths, drawn in whole units.

    Times are written without a zone: plotly shows them as they are, and they are the tenant's.
    """
    times = [start.replace(tzinfo=None).isoformat() for start in starts]
    figure = go.Figure(
        data=[
            go.Bar(
                name=escape(_shortened(one.name), quote=False),  # plotly reads names as markup
                x=times,
                y=[value / 1_000_000 for value in one.tokens] if money else list(one.tokens),
                hovertemplate=f"%{{y:{',.4f' if money else ','}}} · %{{fullData.name}}<extra></extra>",
                meta={"slot": one.slot},
            )
            for one in series
        ],
        # The page's script brings the theme; plotly's own template would be most of the bytes.
        layout=go.Layout(barmode="stack", bargap=0.24, hovermode="x unified", showlegend=False, template={}),
    )
    described: dict[str, Any] = figure.to_plotly_json()
    return described


def sparkline(values: Sequence[int], *, width: int = 92, height: int = 18) -> str:
    """A bar sparkline as one SVG path in user units; a non-zero value is never invisible.

    One path, because a template that writes thousands of rectangles takes longer than the queries.
    """
    if not values:
        return ""
    top = max(values) or 1
    step = width / len(values)
    return "".join(
        f"M{number * step:.2f} {height}h{step * 0.72:.2f}v{-max(1.5, height * value / top):.2f}h{-step * 0.72:.2f}z"
        for number, value in enumerate(values)
        if value > 0
    )
