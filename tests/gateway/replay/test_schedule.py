"""What is sent and when: recorded times divided by the speed, lengths bounded."""

import pytest

from gateway.replay.schedule import plan, prompt_of
from gateway.replay.trace import TraceRequest

TRACE = [TraceRequest(0.0, 4808, 10), TraceRequest(10.0, 3, 200), TraceRequest(12.5, 0, 0)]


def test_divides_times_by_the_speed_and_bounds_tokens() -> None:
    planned = plan(TRACE, speed=5, max_tokens=8, max_prompt_tokens=128)
    assert [p.due_seconds for p in planned] == [0.0, 2.0, 2.5]
    assert [p.max_tokens for p in planned] == [8, 8, 1]
    assert [len(p.prompt.split()) for p in planned] == [128, 3, 1]


def test_prompts_are_repeatable_and_begin_differently() -> None:
    assert prompt_of(7, 40) == prompt_of(7, 40)
    beginnings = {prompt_of(number, 8) for number in range(500)}
    assert len(beginnings) == 500


@pytest.mark.parametrize("wrong", [{"speed": 0}, {"speed": -1}, {"max_tokens": 0}, {"max_prompt_tokens": 0}])
def test_refuses_bounds_that_are_not_positive(wrong: dict[str, float]) -> None:
    bounds = {"speed": 1.0, "max_tokens": 1, "max_prompt_tokens": 1} | wrong
    with pytest.raises(ValueError, match="positive"):
        plan(
            TRACE,
            speed=bounds["speed"],
            max_tokens=int(bounds["max_tokens"]),
            max_prompt_tokens=int(bounds["max_prompt_tokens"]),
        )
