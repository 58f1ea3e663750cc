"""From rounds to one result: medians, ratios within a round, bars, a table, a JSON file."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.bars import added, bars, paired, rounded
from bench.measure import Memory, Round, SlowStreams, median
from bench.plan import Plan, plan_facts

_BESIDE: Final = {"nginx": "nginx", "vllm_router": "vllm-router"}
"""Whose costs all others' are divided by, by the word in the result."""
_COSTS: Final = {
    "request": "request_us",
    "saturated": "saturated_us",
    "event": "event_us",
    "burst_event": "burst_event_us",
}


def _entry(
    rounds: Sequence[Round], all_rounds: Mapping[str, Sequence[Round]], slow: SlowStreams | None, version: str
) -> dict[str, Any]:
    direct = all_rounds.get("direct", ())
    helpers = sorted({name for each in rounds for name in each.helper_request_us})
    entry: dict[str, Any] = {"version": version} if version else {}
    entry["rate"] = rounded(median([r.rate for r in rounds]), 0)
    for word, cost in _COSTS.items():
        entry[cost] = rounded(median([getattr(r, cost) for r in rounds]))
        for suffix, name in _BESIDE.items():
            ratio = paired(rounds, [all_rounds[name]], cost) if name in all_rounds else None
            entry[f"{word}_vs_{suffix}"] = rounded(ratio)
    entry |= {f"{cost}_rounds": [rounded(getattr(r, cost)) for r in rounds] for cost in _COSTS.values()}
    entry |= {
        "events_per_read": rounded(median([r.events_per_read for r in rounds]), 3),
        "requests_per_second": rounded(median([r.requests_per_second for r in rounds]), 0),
        "ttft_added_p50_ms": rounded(added(rounds, direct, "ttft_ms", "p50"), 3),
        "ttft_added_p99_ms": rounded(added(rounds, direct, "ttft_ms", "p99"), 3),
        "half_load_added_p50_ms": rounded(added(rounds, direct, "half_load_ms", "p50"), 3),
        "half_load_added_p99_ms": rounded(added(rounds, direct, "half_load_ms", "p99"), 3),
    }
    for name in helpers:
        entry[f"{name}_us"] = rounded(median([r.helper_request_us.get(name) for r in rounds]))
    if slow is not None:
        entry["slow_streams"] = {
            "count": slow.count,
            "failed": slow.failed,
            "seconds": rounded(slow.seconds),
            "longest_gap_ms": rounded(slow.longest_gap_ms, 1),
            "kib_per_stream": rounded(slow.kib_per_stream, 1),
        }
    return entry


def summarise(
    rounds: Mapping[str, Sequence[Round]],
    slow: Mapping[str, SlowStreams],
    plan: Plan,
    *,
    rate: float,
    proxy_cpu: int | None,
    memory: Memory | None = None,
    versions: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole result as it is written down; `rounds` by proxy name, "direct" among them."""
    direct, versions = rounds.get("direct", ()), versions or {}
    complaints = [line for each in rounds.values() for r in each for line in r.complaints]
    complaints += [each.complaint for each in slow.values() if each.complaint]
    complaints += memory.complaints if memory else ()
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
        "proxies": {
            name: _entry(each, rounds, slow.get(name), versions.get(name, ""))
            for name, each in rounds.items()
            if name != "direct"
        },
        "direct": {
            "requests_per_second": rounded(median([r.requests_per_second for r in direct]), 0),
            "ttft_p50_ms": rounded(median([r.ttft_ms.p50 for r in direct if r.ttft_ms]), 3),
            "ttft_p99_ms": rounded(median([r.ttft_ms.p99 for r in direct if r.ttft_ms]), 3),
        },
        "memory": None if memory is None else _memory(memory),
        "bars": {key: bar.facts() for key, bar in bars(rounds, slow, memory, plan).items()},
        "failures": complaints,
        "notes": list(notes),
    }


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "first_requests": memory.first_requests,
        "requests": memory.requests,
        "first_mib": rounded(memory.first_mib, 1),
        "last_mib": rounded(memory.last_mib, 1),
        "growth_percent": rounded(memory.growth * 100),
    }


_COLUMNS: Final = (
    ("request_us", "us/request"),
    ("request_vs_nginx", "x nginx"),
    ("request_vs_vllm_router", "x vllm-r."),
    ("saturated_us", "saturated"),
    ("saturated_vs_nginx", "x nginx"),
    ("event_us", "us/event"),
    ("event_vs_nginx", "x nginx"),
    ("burst_event_us", "us/burst ev."),
    ("burst_event_vs_nginx", "x nginx"),
    ("requests_per_second", "requests/s"),
    ("ttft_added_p50_ms", "TTFT +p50"),
    ("ttft_added_p99_ms", "TTFT +p99"),
    ("half_load_added_p50_ms", "half +p50"),
    ("half_load_added_p99_ms", "half +p99"),
)
_VERDICTS: Final = {True: "met", False: "MISSED", None: "not judged"}


def table(result: Mapping[str, Any]) -> str:
    """The result as text, one line a proxy, then what has no column, then the bars."""
    rate = result["plan"]["rate"]
    lines = [
        f"CPU of each proxy at {rate} requests/s, then saturated; medians of {result['plan']['rounds']} rounds; ms"
    ]
    lines += ["".join([f"{'proxy':<18}", *(f"{title:>13}" for _, title in _COLUMNS)])]
    for name, entry in result["proxies"].items():
        cells = ["-" if entry[key] is None else f"{entry[key]:,}" for key, _ in _COLUMNS]
        lines.append("".join([f"{name:<18}", *(f"{cell:>13}" for cell in cells)]))
    for name, entry in result["proxies"].items():
        lines += [f"{name}: {remark}" for remark in _remarks(entry, rate)]
    if memory := result["memory"]:
        lines.append(
            f"memory: {memory['first_mib']} MiB after {memory['first_requests']:,} requests, "
            f"{memory['last_mib']} MiB after {memory['requests']:,}"
        )
    for bar in result["bars"].values():
        limit = f"at most {bar['at_most']}" if "at_most" in bar else f"at least {bar['at_least']}"
        slack = f" (tolerance {bar['tolerance']})" if "tolerance" in bar else ""
        value = "-" if bar["value"] is None else bar["value"]
        lines.append(f"bar: {bar['title']}: {value}, {limit}{slack}: {_VERDICTS[bar['met']]}")
    lines += [f"note: {note}" for note in result["notes"]]
    lines += [f"FAILED: {failure}" for failure in result["failures"]]
    return "\n".join(lines)


def _remarks(entry: Mapping[str, Any], rate: float) -> list[str]:
    """What has no column."""
    remarks = []
    if entry["rate"] < rate * 0.99:
        remarks.append(f"measured at its own lower rate of {entry['rate']:,.0f} requests/s, the rest in proportion")
    if slow := entry.get("slow_streams"):
        memory = "" if slow["kib_per_stream"] is None else f", {slow['kib_per_stream']} KiB each"
        outcome = f"{slow['failed']} failed, longest gap {slow['longest_gap_ms']} ms{memory}"
        remarks.append(f"{slow['count']} slow streams, {outcome}")
    helpers = [
        f"{key.removesuffix('_us')} {value} us"
        for key, value in entry.items()
        if key.endswith("_us") and key not in _COSTS.values()
    ]
    if helpers:
        remarks.append(f"beside it, per request: {', '.join(helpers)}")
    if entry["events_per_read"] > 1.1:
        remarks.append(f"{entry['events_per_read']} events a read: it fell behind, which flatters its us/event")
    return remarks


def write(result: Mapping[str, Any], path: Path) -> None:
    """Replace the file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(result, indent=2) + "\n")
    draft.replace(path)
