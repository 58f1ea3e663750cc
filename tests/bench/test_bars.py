"""What ours is held to: each bar, its edge, and when it is not judged."""

import pytest

from bench.bars import Bar, added, bars, paired
from bench.measure import Memory, Round, SlowStreams
from bench.plan import QUICK, Plan
from bench.tools import Spread


def spread(p99: float) -> Spread:
    return Spread(count=10, mean=1, p50=1, p90=1, p99=p99, max=p99)


def costs(request: float, event: float = 10.0, burst: float = 1.0, p99: float = 1.0) -> list[Round]:
    one = Round(request_us=request, event_us=event, burst_event_us=burst, half_load_ms=spread(p99))
    return [one] * 3


ALL = {
    "direct": costs(0, p99=0.5),
    "nginx": costs(50, event=10.0, burst=1.0),
    "vllm-router": costs(200, event=15.0),
    "sglang-router": costs(250, event=25.0),
    "litellm": costs(3000),
    "gatehouse": costs(200, event=20.0, burst=3.4, p99=2.4),
    "gatehouse_limited": costs(240),
}
SLOW = {"gatehouse": SlowStreams(2_000, 0, 12.0, 750.0, 40.0, None)}
MEMORY = Memory(20_000, 200_000, 100.0, 104.0, ())


def test_all_bars_can_be_met() -> None:
    made = bars(ALL, SLOW, MEMORY, Plan())
    assert {key: bar.met for key, bar in made.items()} == dict.fromkeys(made, True)
    assert made["request_vs_vllm_router"].value == 1.0
    assert made["event_vs_rust_routers"].value == 1.0  # 20 beside the median of 15 and 25
    assert made["litellm_vs_request"].value == 15.0
    assert made["limits_vs_none"].value == 1.2
    assert made["slow_streams_gap"].value == 3.0


@pytest.mark.parametrize(
    ("ours", "missed"),
    [
        (costs(200.9 + 5), {"request_vs_vllm_router", "request_vs_nginx", "litellm_vs_request"}),
        (costs(200, event=26.1), {"event_vs_rust_routers", "event_vs_nginx"}),
        (costs(200, burst=3.46), {"burst_event_vs_nginx"}),
        (costs(200, p99=2.51), {"half_load_added_p99_ms"}),
    ],
)
def test_a_cost_over_its_bar_is_missed(ours: list[Round], missed: set[str]) -> None:
    made = bars(ALL | {"gatehouse": ours}, SLOW, MEMORY, Plan())
    assert {key for key, bar in made.items() if bar.met is False} == missed


@pytest.mark.parametrize(
    ("slow", "missed"),
    [
        (SlowStreams(2_000, 1, 12.0, 300.0, 10.0, "told"), {"slow_streams_failed"}),
        (SlowStreams(2_000, 0, 12.0, 760.0, 10.0, None), {"slow_streams_gap"}),
        (SlowStreams(2_000, 0, 12.0, 300.0, 40.1, None), {"slow_streams_kib"}),
        (SlowStreams(500, 1, 12.0, 9e3, 99.0, None), set()),  # too few to say
    ],
)
def test_slow_streams_are_held_to_pace_and_memory(slow: SlowStreams, missed: set[str]) -> None:
    made = bars(ALL, {"gatehouse": slow}, MEMORY, Plan())
    assert {key for key, bar in made.items() if bar.met is False} == missed


def test_memory_that_grows_is_missed_and_few_requests_are_not_judged() -> None:
    grown = Memory(20_000, 200_000, 100.0, 105.2, ())
    assert bars(ALL, SLOW, grown, Plan())["memory_growth_percent"].met is False
    few = Memory(200, 2_000, 100.0, 150.0, ())
    assert bars(ALL, SLOW, few, Plan())["memory_growth_percent"].met is None


def test_what_was_left_out_is_not_judged() -> None:
    made = bars({"gatehouse": costs(200)}, {}, None, Plan())
    assert {bar.met for bar in made.values()} == {None}
    assert bars({"nginx": costs(50)}, {}, None, Plan())["request_vs_nginx"].value is None


def test_a_quick_look_is_not_judged() -> None:
    assert {bar.met for bar in bars(ALL, {}, None, QUICK).values()} == {None}


def test_one_rust_router_stands_for_both() -> None:
    without = {name: each for name, each in ALL.items() if name != "sglang-router"}
    assert bars(without, {}, None, Plan())["event_vs_rust_routers"].value == 1.33


def test_tolerance_is_on_the_bar_not_on_the_value() -> None:
    assert Bar("x", 3.45, at_most=3.0, tolerance=1.15).facts() == {
        "title": "x",
        "value": 3.45,
        "at_most": 3.0,
        "tolerance": 1.15,
        "met": True,
    }
    assert Bar("x", 14.9, at_least=15.0).met is False


def test_a_round_without_its_pair_does_not_count() -> None:
    assert paired(costs(100), [costs(50)[:1]], "request_us") == 2.0
    assert paired([], [costs(50)], "request_us") is None
    assert added(costs(1, p99=3.0), [Round()], "half_load_ms", "p99") is None
