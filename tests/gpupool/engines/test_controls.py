"""What running engines can be asked besides answers."""

import json

import pytest

from gpupool.engines.base import EngineControl, WireRequest
from gpupool.engines.registry import get_engine


def control(engine: str) -> EngineControl:
    found = get_engine(engine).control
    assert found is not None
    return found


def said(request: WireRequest | None) -> tuple[str, str, object] | None:
    if request is None:
        return None
    return request.method, request.path, json.loads(request.body) if request.body else None


def test_vllm_sleeps_at_two_levels_and_wakes() -> None:
    vllm = control("vllm")
    assert said(vllm.sleep(1)) == ("POST", "/sleep?level=1", None)
    assert said(vllm.sleep(2)) == ("POST", "/sleep?level=2", None)
    assert said(vllm.wake()) == ("POST", "/wake_up", None)
    assert said(vllm.is_sleeping()) == ("GET", "/is_sleeping", None)
    assert vllm.parse_sleeping(b'{"is_sleeping": true}') is True
    assert vllm.parse_sleeping(b'{"is_sleeping": false}') is False


def test_sglang_gives_memory_back_only_where_it_keeps_the_weights() -> None:
    sglang = control("sglang")
    assert said(sglang.sleep(1)) == ("POST", "/release_memory_occupation", {})
    assert sglang.sleep(2) is None
    assert said(sglang.wake()) == ("POST", "/resume_memory_occupation", {})
    assert sglang.is_sleeping() is None


@pytest.mark.parametrize(("engine", "base"), [("vllm", "/v1"), ("sglang", "")])
def test_adapters_are_loaded_and_unloaded_by_name(engine: str, base: str) -> None:
    adapters = control(engine)
    loaded = {"lora_name": "a", "lora_path": "/x"}
    assert said(adapters.load_adapter("a", "/x")) == ("POST", f"{base}/load_lora_adapter", loaded)
    assert said(adapters.unload_adapter("a")) == ("POST", f"{base}/unload_lora_adapter", {"lora_name": "a"})
    assert said(adapters.list_adapters()) == ("GET", "/v1/models", None)
    listed = b'{"data":[{"id":"base","parent":null},{"id":"a","parent":"base"},{"id":"other"}]}'
    assert adapters.parse_adapters(listed) == ("a",)


def test_llamacpp_lists_what_requests_may_choose() -> None:
    llamacpp = control("llamacpp")
    assert (llamacpp.sleep(1), llamacpp.wake(), llamacpp.load_adapter("a", "/x")) == (None, None, None)
    assert said(llamacpp.list_adapters()) == ("GET", "/lora-adapters", None)
    listed = b'[{"id":1,"path":"/b.gguf","scale":0.0},{"id":0,"path":"/a.gguf","scale":0.0}]'
    assert llamacpp.parse_adapters(listed) == ("/a.gguf", "/b.gguf")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b'{"is_sleeping": "yes"}', b'[{"id": "x"}]'])
def test_other_shapes_are_value_errors(engine: str, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        control(engine).parse_sleeping(body)
    with pytest.raises(ValueError, match=r"."):
        control(engine).parse_adapters(body)
