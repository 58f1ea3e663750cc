"""From rounds to the result: medians, ratios within a round, failures told."""

import json
from pathlib import Path
from typing import Any

from bench.measure import Memory, Round, SlowStreams
from bench.plan import QUICK, Plan
from bench.report import summarise, table, write
from bench.tools import Spread


def spread(p50: float, p99: float) -> Spread:
    return Spread(count=10, mean=p50, p50=p50, p90=p50, p99=p99, max=p99)


def rounds(*request_us: float, ttft: float = 1.0, complaint: str | None = None) -> list[Round]:
    return [
        Round(
            request_us=us,
            requests_per_second=1e6 / us,
            saturated_us=us / 2,
            rate=1234.4,
            event_us=us / 2,
            burst_event_us=us / 10,
            events_per_read=1.0,
            ttft_ms=spread(ttft, ttft * 2),
            half_load_ms=spread(ttft, ttft * 3),
            helper_request_us={"drain": 30.0},
            complaints=[complaint] if complaint else [],
        )
        for us in request_us
    ]


DIRECT = [Round(ttft_ms=spread(0.5, 1.0), half_load_ms=spread(0.5, 1.0), requests_per_second=9e4) for _ in range(3)]
SLOW = {"gatehouse": SlowStreams(500, 0, 10.0, 260.0, 12.34, None)}


def result(gatehouse: list[Round], nginx: list[Round] | None) -> dict[str, Any]:
    seen = {"direct": DIRECT, "gatehouse": gatehouse} | ({"nginx": nginx} if nginx else {})
    return summarise(seen, SLOW, Plan(), rate=1234.4, proxy_cpu=1)


def test_the_ratio_is_the_median_of_ratios_within_a_round() -> None:
    # A machine that was slow in one round slows both: the ratio does not move.
    made = result(rounds(160, 320, 170), rounds(40, 80, 40))
    assert made["proxies"]["gatehouse"]["request_us"] == 170
    assert made["bars"]["request_vs_nginx"]["value"] == 4.0
    assert made["bars"]["request_vs_nginx"]["met"] is True
    assert made["proxies"]["gatehouse"]["ttft_added_p50_ms"] == 0.5
    assert made["proxies"]["gatehouse"]["half_load_added_p99_ms"] == 2.0
    assert made["proxies"]["gatehouse"]["drain_us"] == 30.0
    assert "direct" not in made["proxies"]


def test_a_missed_bar_is_said() -> None:
    made = result(rounds(250, 250, 250), rounds(40, 40, 40))
    assert made["bars"]["request_vs_nginx"]["met"] is False
    assert "CPU per request, x nginx: 6.25, at most 4.0: MISSED" in table(made)


def test_without_nginx_there_is_no_ratio_and_no_verdict() -> None:
    made = result(rounds(250), None)
    assert made["bars"]["request_vs_nginx"]["value"] is None
    assert made["bars"]["request_vs_nginx"]["met"] is None
    assert "not judged" in table(made)


def test_a_quick_look_is_not_judged() -> None:
    seen = {"direct": DIRECT, "nginx": rounds(40, 40, 40), "gatehouse": rounds(400, 400, 400)}
    made = summarise(seen, {}, QUICK, rate=10, proxy_cpu=None)
    assert made["bars"]["request_vs_nginx"]["met"] is None
    assert "x nginx: 10.0, at most 4.0: not judged" in table(made)


def test_failures_are_in_the_result_and_in_the_table() -> None:
    made = result(rounds(100, complaint="gatehouse, requests: 3 of 10 requests failed"), rounds(40))
    assert made["failures"] == ["gatehouse, requests: 3 of 10 requests failed"]
    assert "FAILED: gatehouse, requests" in table(made)


def test_a_proxy_that_fell_behind_is_not_praised_for_it() -> None:
    slow = rounds(100)
    slow[0].events_per_read = 3.0
    assert "it fell behind" in table(result(slow, rounds(40)))


def test_a_lower_rate_is_told() -> None:
    slow = rounds(8000, 8000, 8000)
    for each in slow:
        each.rate = 99.0
    seen = {"direct": DIRECT, "gatehouse": rounds(100, 100, 100), "litellm": slow}
    made = summarise(seen, SLOW, Plan(), rate=1234.4, proxy_cpu=1)
    assert made["proxies"]["litellm"]["rate"] == 99
    assert "litellm: measured at its own lower rate of 99 requests/s" in table(made)


def test_memory_is_in_the_result_and_in_the_table() -> None:
    memory = Memory(20_000, 200_000, 80.0, 81.0, ("gatehouse, memory: 1 failed",))
    seen = {"direct": DIRECT, "gatehouse": rounds(100)}
    made = summarise(seen, SLOW, Plan(), rate=1234.4, proxy_cpu=1, memory=memory)
    assert made["memory"]["growth_percent"] == 1.25
    assert "80.0 MiB after 20,000 requests, 81.0 MiB after 200,000" in table(made)
    assert made["failures"] == ["gatehouse, memory: 1 failed"]


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    write(result(rounds(100), None), path)
    write(result(rounds(200), None), path)
    assert json.loads(path.read_text())["proxies"]["gatehouse"]["request_us"] == 200
    assert [entry.name for entry in path.parent.iterdir()] == ["latest.json"]
