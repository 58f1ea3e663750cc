"""The report: refusals apart from failures, percentiles only of what was measured."""

import pytest

from gateway.replay.summary import (
    Answered,
    Failed,
    Limited,
    Result,
    Unavailable,
    percentile,
    summarise,
    table,
    tpot_seconds,
)


def test_counts_refusals_apart_from_failures() -> None:
    results: list[Result] = [
        Answered(0.1, 0.5, 20, 5),
        Answered(0.3, 0.3, 10, 1),
        Answered(None, 0.2, None, None),
        Limited("rate_limit_exceeded"),
        Limited("rate_limit_exceeded"),
        Unavailable("no_ready_instance"),
        Failed("connection lost"),
    ]
    summary = summarise(results, seconds=2.0, latest_start_seconds=0.05)
    assert (summary.sent, summary.succeeded, summary.limited_429) == (7, 3, 2)
    assert (summary.unavailable_503, summary.failed) == (1, 1)
    assert (summary.input_tokens, summary.output_tokens, summary.uncounted) == (30, 6, 1)
    assert summary.reasons == {"429 rate_limit_exceeded": 2, "503 no_ready_instance": 1, "connection lost": 1}
    assert summary.ttft_p50_ms == pytest.approx(100)
    assert summary.ttft_p99_ms == pytest.approx(300)
    assert summary.tpot_p50_ms == summary.tpot_p99_ms == pytest.approx(100)
    text = table(summary)
    assert "429 (limits)          2" in text
    assert "2 x 429 rate_limit_exceeded" in text


def test_nothing_measured_is_not_zero() -> None:
    summary = summarise([Failed("401 invalid_api_key")], seconds=0.0, latest_start_seconds=0.0)
    assert summary.ttft_p50_ms is None
    assert summary.tpot_p99_ms is None
    assert "TTFT p50 / p99        - / -" in table(summary)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answered(0.2, 1.2, 5, 11), 0.1),
        (Answered(0.2, 0.2, 5, 1), None),
        (Answered(None, 1.0, 5, 9), None),
        (Answered(0.1, 1.0, 5, None), None),
    ],
)
def test_time_per_output_token(answer: Answered, expected: float | None) -> None:
    assert tpot_seconds(answer) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.99, 3.0), (1.0, 3.0)])
def test_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    assert percentile([3.0, 1.0, 2.0], share) == expected
