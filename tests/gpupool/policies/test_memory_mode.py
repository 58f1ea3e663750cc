"""Three modes by how full the KV cache is, with hysteresis; the CPU's only where one is ready."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpupool.policies.memory_mode import Mode, Rules, decide, mode_for

RULES = Rules()


@pytest.mark.shows("R80")
@pytest.mark.parametrize(
    ("kv_used", "mode", "cap"),
    [(0.0, Mode.FULL, 8), (0.699, Mode.FULL, 8), (0.7, Mode.MIXED, 4), (0.9, Mode.MIXED, 4), (0.901, Mode.CPU, 0)],
)
def test_the_mode_follows_the_use_of_the_kv_cache(kv_used: float, mode: Mode, cap: int) -> None:
    verdict = decide(Mode.FULL, kv_used, cpu_ready=True, rules=RULES)
    assert verdict is not None
    assert (verdict.mode, verdict.cap) == (mode, cap)


@pytest.mark.shows("R80")
def test_without_a_ready_instance_on_a_cpu_somebody_still_answers() -> None:
    verdict = decide(Mode.FULL, 0.95, cpu_ready=False, rules=RULES)
    assert verdict is not None
    assert (verdict.mode, verdict.cap) == (Mode.MIXED, 4)
    assert "no instance" in verdict.reason


def test_an_engine_that_does_not_say_how_full_its_cache_is_has_no_mode() -> None:
    for unknown in (None, -0.1, 1.2):
        assert decide(Mode.FULL, unknown, cpu_ready=True, rules=RULES) is None


@pytest.mark.parametrize(
    ("path", "modes"),
    [
        ([0.69, 0.71, 0.69, 0.66, 0.64], ["full", "mixed", "mixed", "mixed", "full"]),
        ([0.91, 0.89, 0.86, 0.84, 0.64], ["cpu", "cpu", "cpu", "mixed", "full"]),
        ([0.95, 0.3], ["cpu", "full"]),
    ],
)
def test_the_way_back_is_a_little_below_the_way_there(path: list[float], modes: list[str]) -> None:
    mode, seen = Mode.FULL, []
    for kv_used in path:
        mode = mode_for(mode, kv_used, RULES)
        seen.append(mode.value)
    assert seen == modes


@given(mode=st.sampled_from(list(Mode)), kv_used=st.floats(0, 1))
def test_asked_twice_at_the_same_use_the_mode_stays(mode: Mode, kv_used: float) -> None:
    once = mode_for(mode, kv_used, RULES)
    assert mode_for(once, kv_used, RULES) is once
