"""Real llama.cpp, started as the pool starts it, behind the relay."""

import asyncio
import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from gpupool.engines.base import EngineArgs, GivenDevice, LaunchRequest, WireRequest
from gpupool.engines.llamacpp.room import ROOM
from tests.gateway.relay.door.house import free_port
from tests.gpupool.agent.conftest import ROOT, TINY
from tests.gpupool.engines.conformance import live
from tests.gpupool.engines.conformance.exchange import SERVED
from tests.gpupool.engines.conformance.test_through_the_relay import door

ADAPTERS = [ROOT.parent / "shared" / "data" / "models" / f"tiny512-lora{number}.gguf" for number in (1, 2)]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@contextlib.contextmanager
def llamacpp(engine_args: EngineArgs) -> Iterator[int]:
    """Its port, once it is healthy."""
    assert ROOM.launch is not None
    base: EngineArgs = {"n_ctx": 1024, "n_parallel": 2, "n_threads": 1}
    plan = ROOM.launch.plan(
        LaunchRequest(
            python=sys.executable,
            model_path=TINY,
            served_name=SERVED,
            port=free_port(),
            devices=(GivenDevice("cpu-1", "cpu", "host"),),
            memory_bytes=1 << 30,
            engine_args={**base, **engine_args},
        )
    )
    with subprocess.Popen(plan.argv, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 90
            while not healthy(plan.port):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield plan.port
        finally:
            process.terminate()


def healthy(port: int) -> bool:
    with contextlib.suppress(OSError):
        return get(port, ROOM.wire.health()) is not None
    return False


def get(port: int, request: WireRequest | None) -> bytes:
    assert request is not None
    assert request.method == "GET"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{request.path}", timeout=30) as answer:
        body: bytes = answer.read()
        return body


@pytest.fixture(scope="module")
def plain() -> Iterator[int]:
    with llamacpp({}) as port:
        yield port


async def test_chat_completions_and_counts(plain: int, tmp_path: Path) -> None:
    async with door(tmp_path, "llamacpp", plain) as house:
        await live.chat_and_its_stream_agree(house)
        await live.completion_and_its_stream_agree(house)
        await live.messages_are_counted_as_they_are_charged(house)
        await live.anthropics_counts_are_what_is_charged(house)


async def test_several_answers_tools_and_grammars_pass_untouched(plain: int, tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    body = {"model": "alias", "messages": live.MESSAGES, "max_tokens": 8, "response_format": form, "logprobs": True}
    async with door(tmp_path, "llamacpp", plain) as house:
        answer = await house.ask(body)
        assert answer.status == 200
        choice = answer.json["choices"][0]
        assert choice["message"]["content"].lstrip("-").isdigit()
        assert choice["logprobs"]["content"]


def test_it_tells_its_models_and_its_load(plain: int) -> None:
    assert ROOM.wire.parse_models(get(plain, ROOM.wire.models())) == (SERVED,)
    load = ROOM.wire.parse_load(get(plain, ROOM.wire.metrics()).decode())
    assert (load.running, load.waiting) == (0, 0)


async def test_what_it_was_not_started_for_is_refused(plain: int, tmp_path: Path) -> None:
    async with door(tmp_path, "llamacpp", plain) as house:
        answer = await house.ask({"model": "alias", "input": "a"}, path="/v1/embeddings")
        assert answer.status == 501
        assert "Start it with" in answer.error["message"]


async def test_embeddings_by_one_that_was_started_for_them(tmp_path: Path) -> None:
    with llamacpp({"embeddings": True, "pooling": "mean"}) as port:
        async with door(tmp_path, "llamacpp", port) as house:
            await live.embeddings_are_vectors(house)
            await live.chat_and_its_stream_agree(house)


async def test_ranks_by_one_that_was_started_for_them(tmp_path: Path) -> None:
    with llamacpp({"reranking": True}) as port:
        async with door(tmp_path, "llamacpp", port) as house:
            await live.documents_are_ranked(house)


@pytest.mark.skipif(not all(path.exists() for path in ADAPTERS), reason="the tiny adapters are not on this machine")
async def test_each_request_chooses_its_adapter(plain: int, tmp_path: Path) -> None:
    with llamacpp({"lora_adapters": ",".join(str(path) for path in ADAPTERS)}) as port:
        assert ROOM.control is not None
        listed = ROOM.control.parse_adapters(get(port, ROOM.control.list_adapters()))
        assert listed == tuple(str(path) for path in ADAPTERS)
        async with door(tmp_path / "a", "llamacpp", port) as house:
            texts = [
                await live.completion_and_its_stream_agree(house, **more)
                for more in ({}, {"lora": [{"id": 0, "scale": 1.0}]}, {"lora": [{"id": 1, "scale": 1.0}]}, {})
            ]
    async with door(tmp_path / "b", "llamacpp", plain) as house:
        alone = await live.completion_and_its_stream_agree(house)
    assert texts[0] == texts[3] == alone
    assert len(set(texts)) == 3
