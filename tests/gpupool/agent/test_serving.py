"""When an engine that shall sleep is idle enough to."""

from types import SimpleNamespace
from typing import Any

import pytest

from core.clock import ManualClock
from gpupool.agent.serving import Serving
from gpupool.engines.base import EngineLoad
from gpupool.policies.node_reconcile import Phase

BUSY, QUIET, UNTOLD = EngineLoad(running=1, waiting=0), EngineLoad(running=0, waiting=0), EngineLoad()


def told_to_rest(clock: ManualClock) -> Serving:
    """One that serves, has 10 s to finish its requests and relays 1 s to hear of it."""
    record = SimpleNamespace(port=1, row=SimpleNamespace(drain_seconds=10.0))
    owner: Any = SimpleNamespace(record=record, load=UNTOLD, phase=Phase.READY)
    shop: Any = SimpleNamespace(clock=clock, timings=SimpleNamespace(drain_notice=1.0), on_change=lambda: None)
    nothing: Any = None
    serving = Serving(owner, shop, nothing, nothing, begun=0.0)
    serving.rest(True)
    return serving


def test_a_busy_engine_that_answers_late_once_is_not_idle() -> None:
    clock = ManualClock()
    serving = told_to_rest(clock)
    serving.note_load(BUSY)
    clock.advance(11.0)
    assert not serving.idle
    serving.note_load(UNTOLD)  # its metrics did not come in time
    assert not serving.idle
    serving.note_load(BUSY)
    clock.advance(1.0)
    assert not serving.idle
    for load in (QUIET, UNTOLD, QUIET):
        assert not serving.idle
        serving.note_load(load)
    assert serving.idle


@pytest.mark.parametrize("told_before", [False, True])
def test_one_that_does_not_tell_is_given_its_time_from_then_on(told_before: bool) -> None:
    clock = ManualClock()
    serving = told_to_rest(clock)
    if told_before:
        serving.note_load(BUSY)
        clock.advance(11.0)
    serving.note_load(UNTOLD)
    clock.advance(9.0)
    serving.note_load(UNTOLD)
    assert not serving.idle
    clock.advance(1.0)
    assert serving.idle
