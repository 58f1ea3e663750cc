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
