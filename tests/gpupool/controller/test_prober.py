"""How the controller's probes of engines are judged, and what they ask for."""

import time
from dataclasses import replace
from uuid import uuid4

import pytest

from gpupool.controller import prober
from gpupool.controller.prober import Target, Verdict, probe, probe_all
from gpupool.engines.base import WireRequest
from gpupool.engines.registry import get_engine
from gpupool.policies.probe import ProbeResult
from tests.gpupool.engine_stub import EngineStub

_FREE = {"/health", "/v1/models"}


class SlowStub(EngineStub):
    """Takes a while over its health."""

    def answer(self, path: str, authorization: str) -> tuple[int, bytes]:
        if path == "/health":
            time.sleep(0.3)
        return super().answer(path, authorization)


def target(engine: EngineStub) -> Target:
    port = int(engine.url.rpartition(":")[2])
    return Target(uuid4(), "vllm", "127.0.0.1", port, "", "llama", None)


async def test_how_long_health_takes_is_measured() -> None:
    with SlowStub("llama") as engine:
        begun = time.monotonic()
        verdict = await probe(target(engine), deadline_seconds=30.0)
        took = time.monotonic() - begun
    assert verdict.answered
    assert 0.3 <= verdict.health_seconds <= took


@pytest.mark.parametrize(
    ("verdict", "result"),
    [
        (Verdict(True, "", health_seconds=0.1), ProbeResult.GOOD),
        (Verdict(True, "", health_seconds=3.5), ProbeResult.SLOW),
        (Verdict(False, "It does not answer.", health_seconds=0.0), ProbeResult.FAILED),
    ],
)
def test_an_answer_that_takes_over_three_seconds_is_slow(verdict: Verdict, result: ProbeResult) -> None:
    assert verdict.result is result


async def test_a_probe_pays_for_nothing_and_wakes_nobody() -> None:
    """A sleeping vLLM answers these without being woken; only /wake_up and requests for tokens wake it."""
    with EngineStub("llama") as engine:
        await probe(target(engine))
        assert set(engine.asked) == _FREE


class OddWire:
    """A plugin's, made for an engine that answered in another shape."""

    def health(self) -> WireRequest:
        return WireRequest("GET", "/health")

    def models(self) -> WireRequest:
        return WireRequest("GET", "/v1/models")

    def parse_models(self, body: bytes) -> tuple[str, ...]:
        raise KeyError("models")


async def test_a_defect_of_one_engines_room_is_told_of_it_and_ends_no_other_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = replace(get_engine("vllm"), name="odd", wire=OddWire())  # type: ignore[arg-type]
    monkeypatch.setattr(prober, "get_engine", lambda name: odd if name == "odd" else get_engine(name))
    with EngineStub("llama") as engine:
        broken, sound = replace(target(engine), engine="odd"), target(engine)
        verdicts = await probe_all([broken, sound])
    assert verdicts[sound.instance_id].answered
    assert verdicts[broken.instance_id] == Verdict(False, "Our part for odd cannot ask it: KeyError: 'models'.")
