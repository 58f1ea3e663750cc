"""What every engine's room offers, and how metrics of other engines are read."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from gpupool.engines.base import Capability, WireRequest
from gpupool.engines.ollama.wire import OllamaWire
from gpupool.engines.prometheus import gauge_max, gauge_sum, samples
from gpupool.engines.registry import UnknownEngine, engines, get_engine
from gpupool.engines.sglang.wire import SglangWire
from gpupool.engines.tgi.wire import TgiWire
from gpupool.engines.vllm.wire import VllmWire

SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "data" / "gpu-samples"


OPENAI_LIST = b'{"object":"list","data":[{"id":"m","object":"model","x":1},{"id":"n"}]}'
OLLAMA_LIST = b'{"models":[{"name":"m","model":"m","size":1},{"name":"n"}]}'
LISTS = {
    "ollama": (OLLAMA_LIST, ("m", "n")),
    "tgi": (b'{"model_id":"m","model_sha":null,"max_input_tokens":4095}', ("m",)),
    "tgi-generate": (b'{"model_id":"m"}', ("m",)),
    "vllm-generate": None,
    "kserve": None,
}


@pytest.mark.parametrize("name", list(engines()))
def test_every_room_speaks_of_health_models_and_a_warm_up_token(name: str) -> None:
    room = get_engine(name)
    wire = room.wire
    assert wire.health().method == "GET"
    listing = LISTS.get(name, (OPENAI_LIST, ("m", "n")))
    if listing is None:
        assert wire.models() is None
    else:
        models = wire.models()
        assert models is not None
        assert models.method == "GET"
        assert wire.parse_models(listing[0]) == listing[1]
        for answer in (b"", b"[]", b'{"data":[{}]}', b"<html>"):
            with pytest.raises(ValueError, match="list of models"):
                wire.parse_models(answer)
    warm_up = wire.warm_up("m")
    if Capability.INFER in room.capabilities:  # tensors: there are no tokens
        assert warm_up == WireRequest("GET", "/v2/models/m/ready")
    else:
        assert list(find(msgspec.json.decode(warm_up.body), "max_tokens", "num_predict", "max_new_tokens")) == [1]
    load = wire.parse_load("nothing of note\n")
    assert (load.running, load.waiting, load.kv_used) == (None, None, None)


def find(value: object, *names: str) -> Iterator[object]:
    """Values of the members called so, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in names:
                yield inner
            yield from find(inner, *names)


@pytest.mark.parametrize("name", list(engines()))
def test_a_room_says_only_what_it_can_do(name: str) -> None:
    room = get_engine(name)
    assert room.translates <= room.capabilities
    assert (room.wire.metrics() is not None) == (Capability.LOAD in room.capabilities)
    assert (room.launch is not None) == (Capability.LAUNCH in room.capabilities)
    control = room.control
    assert (Capability.SLEEP in room.capabilities) == (control is not None and control.sleep(1) is not None)
    loads = control is not None and control.load_adapter("name", "/path") is not None
    assert (Capability.ADAPTERS in room.capabilities) == loads
    for engine_version in ("1.0.0", "99.1"):
        assert isinstance(SpecifierSet(room.versions).contains(engine_version), bool)


def test_an_unknown_engine_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnknownEngine, match="no engine 'warp'; known are vllm, "):
        get_engine("warp")


def test_the_pool_can_start_engines_that_are_given_a_file() -> None:
    launched = {engine.name for engine in engines().values() if engine.launch is not None}
    assert launched >= {"llamacpp", "vllm", "sglang", "tgi"}
    assert not launched & {"ollama", "openai", "kserve", "vllm-generate", "sglang-generate", "tgi-generate"}


@pytest.mark.parametrize(
    ("file", "running", "waiting", "kv_used"),
    [
        # Read in the files by eye.
        ("aibrix__runtime_doc_vllm_metrics.txt", 0, 0, 0.0),
        ("chimeraforge__vllm_metrics.txt", 14, 3, None),
        ("llmprobe__vllm_metrics_live.txt", 2, 0, 0.314),
    ],
)
def test_vllm_metrics_as_seen_in_the_wild(
    file: str, running: int | None, waiting: int | None, kv_used: float | None
) -> None:
    load = VllmWire().parse_load(sample(f"vllm-metrics/{file}").decode())
    assert (load.running, load.waiting, load.kv_used) == (running, waiting, kv_used)


@pytest.mark.parametrize(
    ("file", "running", "waiting", "kv_used"),
    [
        ("chimeraforge__sglang_metrics.txt", 22, 5, None),
        ("sglang__production_metrics_doc.txt", 162, 2826, 0.28),
    ],
)
def test_sglang_metrics_as_seen_in_the_wild(file: str, running: int, waiting: int, kv_used: float | None) -> None:
    load = SglangWire().parse_load(sample(f"sglang-metrics/{file}").decode())
    assert (load.running, load.waiting, load.kv_used) == (running, waiting, kv_used)


def test_tgi_metrics() -> None:
    load = TgiWire().parse_load("# TYPE tgi_queue_size gauge\ntgi_queue_size 3\ntgi_batch_current_size 2\n")
    assert (load.running, load.waiting, load.kv_used) == (2, 3, None)


def test_ollamas_names_may_be_said_without_latest() -> None:
    assert OllamaWire().parse_models(b'{"models":[{"name":"a:latest"},{"name":"b:7b"}]}') == ("a:latest", "a", "b:7b")


def sample(path: str) -> bytes:
    if not (SAMPLES / path).exists():
        pytest.skip(f"the sample {path} is not on this machine")
    return (SAMPLES / path).read_bytes()


def test_replicas_are_added_up_and_the_fullest_cache_counts() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a}b"} 3.0\n'
        'vllm:num_requests_running{engine="1"} 4.0 1700000\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.7\n'
        "vllm:num_requests_waiting NaN\n"
    )
    load = VllmWire().parse_load(text)
    assert (load.running, load.waiting, load.kv_used) == (7, None, 0.7)


def test_values_that_mean_nothing_are_unknown() -> None:
    load = VllmWire().parse_load("vllm:num_requests_running -1\nvllm:kv_cache_usage_perc 31.4\n")
    assert (load.running, load.kv_used) == (None, None)


@given(st.text(max_size=200), st.sampled_from(["a", "vllm:num_requests_running", "b.c"]))
def test_any_text_is_read_without_an_error(text: str, name: str) -> None:
    values = list(samples(text, name))
    assert gauge_sum(text, name) == (sum(values) if values else None)
    assert gauge_max(text, name) == (max(values) if values else None)
