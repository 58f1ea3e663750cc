"""A slow proxy is asked for less, not left out and not measured for an hour."""

from bench.plan import QUICK, Plan, scaled


def test_who_carries_the_rate_gets_the_whole_plan() -> None:
    assert scaled(Plan(), 1.0) is not None
    assert scaled(Plan(), 1.7) == Plan()


def test_a_slow_one_gets_its_share_and_a_floor() -> None:
    plan = scaled(Plan(), 0.05)
    assert plan.requests == 400
    assert plan.saturating_requests == 500
    assert (plan.streams, plan.stream_concurrency) == (8, 4)
    assert plan.slow_streams == 100
    assert plan.ttft_rate == 5.0
    assert (plan.stream_events, plan.stream_pace_us, plan.rounds) == (200, 10_000, 3)


def test_the_floor_is_never_above_the_plan() -> None:
    assert scaled(QUICK, 0.001).requests == QUICK.requests
    assert scaled(QUICK, 0.001).slow_streams == QUICK.slow_streams
