"""An agent against a scripted web process, with real llama.cpp and a tiny model."""

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.doubles.node_web import FakeWeb, row
from tests.gpupool.agent.conftest import TINY_URI, agent_process, kill_hard, running_agent


def complete(port: int | None) -> str:
    """One greedy token from an engine."""
    body = json.dumps({"model": "tiny", "prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["object"])


async def test_a_desired_row_becomes_a_ready_engine(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        fact = await web.until_state(wish.instance_id, "ready")
        assert fact.slots == 2
        assert fact.fencing_token == wish.fencing_token
        assert fact.lease_id == wish.lease_id
        assert fact.process_started_at is not None
        assert await asyncio.to_thread(complete, fact.port) == "text_completion"
        await web.until(lambda: any(load.running == 0 for load in web.observed[-1].load))


async def test_an_engine_killed_by_hand_comes_back(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir):
        first = await web.until_state(wish.instance_id, "ready")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await web.until(lambda: (fact := web.fact(wish.instance_id)) is not None and fact.state == "staging")
        down = web.fact(wish.instance_id)
        assert down is not None
        assert "SIGKILL" in down.reason
        second = await web.until_state(wish.instance_id, "ready")
        assert second.pid != first.pid
        assert second.restarts == first.restarts + 1
        assert second.reason == ""
        assert await asyncio.to_thread(complete, second.port) == "text_completion"


@pytest.mark.shows("P7")
async def test_an_agent_killed_and_started_again_adopts_its_engine(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(row_on_this_host := wish)
    first_agent = await agent_process(web, var_dir)
    await web.until(lambda: bool(web.hellos))
    device = web.hellos[0].devices[0]
    row_on_this_host = row(devices=[device.stable_id], artefact_uri=TINY_URI)
    await web.desire(row_on_this_host)
    before = await web.until_state(row_on_this_host.instance_id, "ready")
    await kill_hard(first_agent)
    assert await asyncio.to_thread(complete, before.port) == "text_completion"  # nobody looks after it, it serves
    web.forget()
    second_agent = await agent_process(web, var_dir)
    try:
        await web.until(lambda: bool(web.hellos))
        hello = {fact.instance_id: fact for fact in web.hellos[0].instances}
        after = hello[row_on_this_host.instance_id]
        assert (after.state, after.pid, after.port) == ("ready", before.pid, before.port)
        assert after.process_started_at == before.process_started_at
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)  # an adopted engine is watched like a child
        again = await web.until_state(row_on_this_host.instance_id, "staging", "loading")
        assert again.restarts == before.restarts + 1
        await web.until_state(row_on_this_host.instance_id, "ready")
    finally:
        second_agent.send_signal(signal.SIGTERM)
        await second_agent.communicate()
    assert second_agent.returncode == 0


async def test_a_refused_token_ends_the_agent_with_a_sentence(web: FakeWeb, var_dir: Path) -> None:
    web.token, told = "another", web.token
    web_with_old_token = web
    agent = await agent_process(web_with_old_token, var_dir)
    web.token = told
    _, stderr = await asyncio.wait_for(agent.communicate(), 20)
    assert agent.returncode == 1
    assert b"does not accept this node's token" in stderr
