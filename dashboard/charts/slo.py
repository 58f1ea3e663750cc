"""Figures of an objective: budget over the window, burn rates, and where requests lie between the histogram's bounds.

Times are written without a zone: plotly shows them as they are, and they are the page's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import log10
from typing import Any, Final

from django.utils import timezone

from core.telemetry.buckets import quantile
from dashboard.slo_words import seconds_text, window_text
from gateway.models import Objective
from gateway.policies.slo import (
    BOUNDS,
    HOUR,
    MINUTE,
    MOST_WINDOW_DAYS,
    PAIRS,
    Counted,
    Kind,
    burn_down,
    place_of,
    rolling_burn,
)
from gateway.reads import slo
from gateway.reads.slo import Standing

MOST_POINTS: Final = 360


@dataclass(frozen=True, slots=True)
class Span:
    """What charts show: from when until when, how wide the heatmap's columns are, and which burn rates are drawn.

    `by_hour`: out of hours, on whole ones; else out of minutes, which are not kept for long.
    """

    since: datetime
    until: datetime
    column: timedelta
    burns: tuple[int, ...]
    by_hour: bool
    cut: bool = False  # the running hour was asked for, too: it is in no row by the hour


SPANS: Final = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(hours=24),
    "30d": timedelta(days=30),
}
"""What the range picker offers."""
DEFAULT_SPAN: Final = "6h"
LONGEST_SPAN: Final = timedelta(days=MOST_WINDOW_DAYS)
_MOST_BY_MINUTE: Final = timedelta(hours=24)
_BURNS_BY_MINUTE: Final = (5 * MINUTE, HOUR, 6 * HOUR)
_BURNS_BY_HOUR: Final = (HOUR, 6 * HOUR, 72 * HOUR)
_COLUMNS: Final = tuple(timedelta(minutes=minutes) for minutes in (1, 5, 20))
_HOUR_COLUMNS: Final = tuple(timedelta(hours=hours) for hours in (1, 6, 24))
_MOST_COLUMNS: Final = 120


def span_of(name: str, *, as_of: datetime) -> Span:
    """The newest of a choice of the range picker."""
    length = SPANS[name]
    by_hour = length > _MOST_BY_MINUTE
    until = slo.whole_hour(as_of) if by_hour else as_of
    return _span(until - length, until, by_hour=by_hour, cut=until < as_of)


def span_between(since: datetime, until: datetime, *, as_of: datetime) -> Span:
    """One of somebody's own dates: out of minutes where these are kept, else out of the hours that it touches."""
    until = min(until, as_of)
    kept_from = as_of - slo.MINUTES_KEPT + timedelta(seconds=max(_BURNS_BY_MINUTE))
    if since >= kept_from and until - since <= _MOST_BY_MINUTE:
        return _span(_minute(since), max(_minute(since), _minute(until)), by_hour=False)
    last = slo.whole_hour(until)
    if last < until:
        last += timedelta(hours=1)
    last, first = min(last, slo.whole_hour(as_of)), slo.whole_hour(since)
    return _span(first, max(first, last), by_hour=True, cut=last < until)


def _span(since: datetime, until: datetime, *, by_hour: bool, cut: bool = False) -> Span:
    widths = _HOUR_COLUMNS if by_hour else _COLUMNS
    column = next((width for width in widths if (until - since) / width <= _MOST_COLUMNS), widths[-1])
    return Span(since, until, column, _BURNS_BY_HOUR if by_hour else _BURNS_BY_MINUTE, by_hour, cut)


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def local(moment: datetime) -> str:
    return timezone.localtime(moment).replace(tzinfo=None).isoformat(timespec="minutes")


def percent_of(share: float | None) -> float | None:
    return None if share is None else round(share * 100, 3)


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """The budget at the end of one day of the window."""

    at: datetime
    counted: Counted
    remaining: float | None


def budget_figure(objective: Objective, standing: Standing, *, now: datetime) -> tuple[dict[str, Any], list[BudgetRow]]:
    """The share of the budget that was left after each hour, and the even pace; the table's rows by the day."""
    since, series = slo.hour_series(objective, now=now)
    left = burn_down(series, objective.target, share=standing.share or 1.0)
    ends = [min(since + timedelta(hours=place + 1), standing.as_of) for place in range(len(series))]
    begun = next((place for place, one in enumerate(series) if one.total), None)
    step = max(1, len(series) // MOST_POINTS)
    places = sorted({*range(0, len(series), step), len(series) - 1})
    figure: dict[str, Any] = {
        "x": [local(ends[place]) for place in places],
        "y": [percent_of(left[place]) for place in places],
        "from": local(since),
        "to": local(standing.as_of),
        "pace": None,
    }
    if begun is not None and standing.budget.even_pace is not None:
        start = since + timedelta(hours=begun)
        figure["pace"] = {
            "x": [local(start), local(standing.as_of)],
            "y": [100, percent_of(standing.budget.even_pace)],
        }
        # The line begins where the budget was whole.
        figure["x"], figure["y"] = [local(start), *figure["x"]], [100, *figure["y"]]
        kept = [(x, y) for x, y in zip(figure["x"], figure["y"], strict=True) if y is not None]
        figure["x"], figure["y"] = [x for x, _ in kept], [y for _, y in kept]
    rows = []
    for place in range(len(series) - 1, -1, -24):
        day = series[max(0, place - 23) : place + 1]
        rows.append(BudgetRow(ends[place], sum(day, Counted()), left[place]))
    return figure, rows


@dataclass(frozen=True, slots=True)
class BurnRow:
    at: datetime
    burns: Sequence[float | None]


def burn_figure(objective: Objective, span: Span) -> tuple[dict[str, Any], list[BurnRow]]:
    """Burn rates over the span, each over its own window, with the thresholds of the pairs."""
    unit = timedelta(hours=1) if span.by_hour else timedelta(minutes=1)
    reach = timedelta(seconds=max(span.burns))
    counted = slo.hour_counts if span.by_hour else slo.minute_series
    series = counted(objective, since=span.since - reach, until=span.until)
    skipped = int(reach / unit)
    lines = {
        seconds: rolling_burn(series, int(timedelta(seconds=seconds) / unit), objective.target)[skipped:]
        for seconds in span.burns
    }
    count = len(series) - skipped
    step = max(1, count // MOST_POINTS)
    places = range(step - 1, count, step)
    times = [span.since + unit * (place + 1) for place in places]
    figure = {
        "x": [local(moment) for moment in times],
        "lines": [
            {"name": window_text(seconds), "y": [_rounded(line[place]) for place in places]}
            for seconds, line in lines.items()
        ],
        "thresholds": [
            {"burn": pair.burn, "severity": pair.severity.value} for pair in sorted(PAIRS, key=lambda one: -one.burn)
        ],
    }
    few = max(1, len(times) // 24)
    rows = [BurnRow(times[at], [line[places[at]] for line in lines.values()]) for at in range(len(times) - 1, -1, -few)]
    return figure, rows


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One column of the heatmap; p50 and p99 in seconds."""

    at: datetime
    requests: int
    p50: float | None
    p99: float | None
    slow: int | None


def heat_figure(objective: Objective, span: Span) -> tuple[dict[str, Any] | None, list[HeatRow]]:
    """Requests by bucket and time. y counts buckets from the first that is shown: each is as high as another.

    None where the span has no requests.
    """
    kind, bounds = Kind(objective.kind), BOUNDS[Kind(objective.kind)]
    columns = slo.bucket_series(objective, since=span.since, until=span.until, step=span.column, by_hour=span.by_hour)
    sums = [sum(counts) for counts in zip(*(one for one in columns if one), strict=True)]
    filled = [place for place, count in enumerate(sums) if count]
    if not filled:
        return None, []
    place = None
    if objective.threshold_seconds is not None:
        place = place_of(kind, objective.threshold_seconds)
    first = max(0, min(filled[0], (place or filled[0] + 1) - 1) - 1)
    last = min(len(bounds), max(filled[-1], place or 0) + 1)
    rows = []
    for at, counts in enumerate(columns):
        total = sum(counts) if counts else 0
        rows.append(
            HeatRow(
                span.since + span.column * at,
                total,
                quantile(bounds, counts, 0.5) if counts else None,
                quantile(bounds, counts, 0.99) if counts else None,
                sum(counts[place:]) if counts and place is not None else None,
            )
        )
    figure = {
        "x": [local(row.at + span.column / 2) for row in rows],
        "z": [
            [(column[bucket] or None) if column else None for column in columns] for bucket in range(first, last + 1)
        ],
        "buckets": [_bucket_text(bounds, bucket) for bucket in range(first, last + 1)],
        "ticks": [
            {"at": bucket - first + 1, "text": seconds_text(bounds[bucket])}
            for bucket in range(first, min(last, len(bounds)))
        ],
        "p50": [_height(bounds, row.p50, first) for row in rows],
        "p99": [_height(bounds, row.p99, first) for row in rows],
        "p50_text": [None if row.p50 is None else seconds_text(_short(row.p50)) for row in rows],
        "p99_text": [None if row.p99 is None else seconds_text(_short(row.p99)) for row in rows],
        "threshold": None if place is None else place - first,
        "from": local(span.since),
        "to": local(span.until),
        "indicator": kind.value,
        "days": span.until - span.since > _MOST_BY_MINUTE,  # a time of day alone would not say which
    }
    return figure, list(reversed(rows))


def _rounded(burn: float | None) -> float | None:
    return None if burn is None else round(burn, 3)


def _short(seconds: float) -> float:
    """To three digits."""
    return float(f"{seconds:.3g}")


def _bucket_text(bounds: Sequence[float], bucket: int) -> str:
    if bucket >= len(bounds):
        return f"> {seconds_text(bounds[-1])}"
    if bucket == 0:
        return f"≤ {seconds_text(bounds[0])}"
    return f"{seconds_text(bounds[bucket - 1])} – {seconds_text(bounds[bucket])}"


def _height(bounds: Sequence[float], seconds: float | None, first: int) -> float | None:
    """Where a time stands on an axis on which every bucket is one high."""
    if seconds is None:
        return None
    low = 0.0
    for bucket, bound in enumerate(bounds):
        if seconds <= bound:
            return round(max(0.0, bucket - first + (seconds - low) / (bound - low)), 3)
        low = bound
    return float(len(bounds) - first)


def sparkline(values: Sequence[float | None], *, width: int = 66, height: int = 18) -> str:
    """A line as one SVG path, on a logarithmic scale from 0.1 to 30; gaps where nothing is known."""
    if len(values) < 2:
        return ""
    step, path, drawing = width / (len(values) - 1), "", False
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        share = (log10(min(30.0, max(0.1, value))) + 1) / (log10(30.0) + 1)
        path += f"{'L' if drawing else 'M'}{place * step:.1f} {1 + (height - 2) * (1 - share):.1f}"
        drawing = True
    return path
