"""From rounds to one result: medians, ratios to nginx, the bar, a table, a JSON file."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.measure import Plan, Round, SlowStreams, median, plan_facts

REQUEST_BAR: Final = 5.0
"""Most CPU per request beside nginx's, key without a limit (issue: "The door opens")."""

ROUNDS_TO_JUDGE: Final = 3
REQUESTS_TO_JUDGE: Final = 1_000  # 10 ms ticks: fewer say nothing


def _rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _paired(rounds: Sequence[Round], beside: Sequence[Round], field: str) -> float | None:
    """Median over the rounds of one proxy's cost beside another's in the same round."""
    return median([_ratio(getattr(a, field), getattr(b, field)) for a, b in zip(rounds, beside, strict=False)])


def _added(rounds: Sequence[Round], direct: Sequence[Round], field: str, percentile: str) -> float | None:
    """Median over the rounds of what a proxy adds to a percentile of no proxy at all, ms."""
    pairs = [(getattr(a, field), getattr(b, field)) for a, b in zip(rounds, direct, strict=False)]
    return median([getattr(a, percentile) - getattr(b, percentile) for a, b in pairs if a and b])


def _entry(
    rounds: Sequence[Round], direct: Sequence[Round], nginx: Sequence[Round], slow: SlowStreams | None
) -> dict[str, Any]:
    helpers = sorted({name for each in rounds for name in each.helper_request_us})
    entry: dict[str, Any] = {
        "request_us": _rounded(median([r.request_us for r in rounds])),
        "event_us": _rounded(median([r.event_us for r in rounds])),
        "request_vs_nginx": _rounded(_paired(rounds, nginx, "request_us")),
        "event_vs_nginx": _rounded(_paired(rounds, nginx, "event_us")),
        "saturated_us": _rounded(median([r.saturated_us for r in rounds])),
        "saturated_vs_nginx": _rounded(_paired(rounds, nginx, "saturated_us")),
        "request_us_rounds": [_rounded(r.request_us) for r in rounds],
        "event_us_rounds": [_rounded(r.event_us) for r in rounds],
        "events_per_read": _rounded(median([r.events_per_read for r in rounds]), 3),
        "requests_per_second": _rounded(median([r.requests_per_second for r in rounds]), 0),
        "ttft_added_p50_ms": _rounded(_added(rounds, direct, "ttft_ms", "p50"), 3),
        "ttft_added_p99_ms": _rounded(_added(rounds, direct, "ttft_ms", "p99"), 3),
        "half_load_added_p50_ms": _rounded(_added(rounds, direct, "half_load_ms", "p50"), 3),
        "half_load_added_p99_ms": _rounded(_added(rounds, direct, "half_load_ms", "p99"), 3),
    }
    for name in helpers:
        entry[f"{name}_us"] = _rounded(median([r.helper_request_us.get(name) for r in rounds]))
    if slow is not None:
        entry["slow_streams"] = {
            "count": slow.count,
            "failed": slow.failed,
            "seconds": _rounded(slow.seconds),
            "longest_gap_ms": _rounded(slow.longest_gap_ms, 1),
            "kib_per_stream": _rounded(slow.kib_per_stream, 1),
        }
    return entry


def summarise(
    rounds: Mapping[str, Sequence[Round]],
    slow: Mapping[str, SlowStreams],
    plan: Plan,
    *,
    rate: float,
    proxy_cpu: int | None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole result as it is written down; `rounds` by proxy name, "direct" among them."""
    direct, nginx = rounds.get("direct", ()), rounds.get("nginx", ())
    complaints = [line for each in rounds.values() for r in each for line in r.complaints]
    complaints += [each.complaint for each in slow.values() if each.complaint]
    proxies = {name: _entry(each, direct, nginx, slow.get(name)) for name, each in rounds.items() if name != "direct"}
    ratio = proxies.get("gatehouse", {}).get("request_vs_nginx")
    enough = plan.rounds >= ROUNDS_TO_JUDGE and plan.requests >= REQUESTS_TO_JUDGE
    met = ratio <= REQUEST_BAR if enough and ratio is not None else None
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "proxy_cpu": proxy_cpu,
            "load_average": [round(value, 2) for value in os.getloadavg()],
        },
        "plan": plan_facts(plan) | {"rate": round(rate)},
        "proxies": proxies,
        "direct": {
            "requests_per_second": _rounded(median([r.requests_per_second for r in direct]), 0),
            "ttft_p50_ms": _rounded(median([r.ttft_ms.p50 for r in direct if r.ttft_ms]), 3),
            "ttft_p99_ms": _rounded(median([r.ttft_ms.p99 for r in direct if r.ttft_ms]), 3),
        },
        "bars": {"request_vs_nginx": {"value": ratio, "at_most": REQUEST_BAR, "met": met}},
        "failures": complaints,
        "notes": list(notes),
    }


_COLUMNS: Final = (
    ("request_us", "us/request"),
    ("request_vs_nginx", "x nginx"),
    ("saturated_us", "us saturated"),
    ("saturated_vs_nginx", "x nginx"),
    ("event_us", "us/event"),
    ("event_vs_nginx", "x nginx"),
    ("requests_per_second", "requests/s"),
    ("ttft_added_p50_ms", "TTFT +p50 ms"),
    ("ttft_added_p99_ms", "TTFT +p99 ms"),
    ("half_load_added_p99_ms", "+p99 ms"),
)


def table(result: Mapping[str, Any]) -> str:
    """The result as text, one line a proxy, then what has no column."""
    rate = result["plan"]["rate"]
    lines = [f"CPU of each proxy at {rate} requests/s, then saturated; medians of {result['plan']['rounds']} rounds"]
    lines += ["".join([f"{'proxy':<20}", *(f"{title:>17}" for _, title in _COLUMNS)])]
    for name, entry in result["proxies"].items():
        cells = ["-" if entry[key] is None else f"{entry[key]:,}" for key, _ in _COLUMNS]
        lines.append("".join([f"{name:<20}", *(f"{cell:>17}" for cell in cells)]))
    for name, entry in result["proxies"].items():
        slow = entry.get("slow_streams")
        if slow:
            memory = "" if slow["kib_per_stream"] is None else f", {slow['kib_per_stream']} KiB each"
            outcome = f"{slow['failed']} failed, longest gap {slow['longest_gap_ms']} ms{memory}"
            lines.append(f"{name}: {slow['count']} slow streams, {outcome}")
        costs = [key for key in entry if key.endswith("_us") and key not in ("request_us", "saturated_us", "event_us")]
        helpers = [f"{key.removesuffix('_us')} {entry[key]} us" for key in costs]
        if helpers:
            lines.append(f"{name}: beside it, per request: {', '.join(helpers)}")
        if entry["events_per_read"] > 1.1:
            lines.append(
                f"{name}: {entry['events_per_read']} events a read: it fell behind, which flatters its us/event"
            )
    bar = result["bars"]["request_vs_nginx"]
    verdict = {True: "met", False: "MISSED", None: "not judged"}[bar["met"]]
    lines.append(f"bar: gatehouse at most {bar['at_most']} x nginx CPU per request: {bar['value']} ({verdict})")
    lines += [f"note: {note}" for note in result["notes"]]
    lines += [f"FAILED: {failure}" for failure in result["failures"]]
    return "\n".join(lines)


def write(result: Mapping[str, Any], path: Path) -> None:
    """Replace the file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result, indent=2) + "\n")
    draft.replace(path)
