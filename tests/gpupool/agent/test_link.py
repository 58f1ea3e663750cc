"""The stream to the web process: refusals, breaks, and what is said on it."""

import asyncio
from dataclasses import fields
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from config.pool_settings import PoolSettings
from core.tls import web_context
from gpupool.agent.link import (
    LONGEST_WAIT_SECONDS,
    NodeRefused,
    stream_url,
    wait_before_attempt,
)
from gpupool.agent.node import bind_host
from gpupool.discovery.base import Device, Inventory
from gpupool.stream.messages import PROTOCOL
from tests.doubles.authority import Authority
from tests.doubles.node_web import FakeWeb, row
from tests.gpupool.agent.conftest import TINY_URI, agent_process, running_agent
from tests.gpupool.leases.contract import eventually


@pytest.mark.parametrize(
    ("web_url", "expected"),
    [
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/agent/v1/stream"),
        ("https://gate.example/", "wss://gate.example/agent/v1/stream"),
        ("https://gate.example/base/", "wss://gate.example/base/agent/v1/stream"),
    ],
)
def test_the_streams_address_follows_from_the_webs(web_url: str, expected: str) -> None:
    assert stream_url(web_url) == expected


@pytest.mark.parametrize("web_url", ["", "gate.example:8000", "ftp://gate.example", "http://"])
def test_an_address_that_is_none_is_refused_with_its_setting(web_url: str) -> None:
    with pytest.raises(NodeRefused, match="GATEHOUSE_WEB_URL"):
        stream_url(web_url)


def test_attempts_are_spread_and_their_distance_has_a_bound() -> None:
    assert wait_before_attempt(0, 0.0) == 0.125
    assert wait_before_attempt(0, 1.0) == 0.25
    assert [wait_before_attempt(n, 1.0) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert wait_before_attempt(10_000, 1.0) == LONGEST_WAIT_SECONDS


async def test_a_hello_says_who_and_what(web: FakeWeb, var_dir: Path) -> None:
    async with running_agent(web, var_dir):
        await web.until(lambda: bool(web.hellos))
        hello = web.hellos[0]
        assert (hello.protocol, hello.node, hello.instances) == (PROTOCOL, "test", [])
        assert hello.boot_id
        assert {"os", "kernel", "cpu"} <= set(hello.facts)
        assert [device.stable_id for device in hello.devices] == ["cpu-test"]


async def test_heartbeats_count_up_without_any_news(web: FakeWeb, var_dir: Path) -> None:
    async with running_agent(web, var_dir):
        await web.until(lambda: len(web.observed) >= 3)
        sequences = [report.sequence for report in web.observed]
        assert sequences == sorted(set(sequences))


async def test_a_broken_stream_is_made_again(web: FakeWeb, var_dir: Path) -> None:
    async with running_agent(web, var_dir) as agent:
        for _ in range(2):
            await web.until(lambda: bool(web.hellos))
            web.forget()
            await web.stop()
            await web.start()
        await web.until(lambda: bool(web.hellos))
        assert not agent.done()


async def test_a_web_process_that_starts_later_is_found(web: FakeWeb, var_dir: Path) -> None:
    await web.stop()
    async with running_agent(web, var_dir) as agent:
        await asyncio.sleep(0)
        await web.start()
        await web.until(lambda: bool(web.hellos))
        assert not agent.done()


async def test_a_refused_token_ends_the_agent_with_a_sentence(web: FakeWeb, var_dir: Path) -> None:
    agent = await agent_process(web, var_dir, token="wrong")
    _, stderr = await asyncio.wait_for(agent.communicate(), 60)
    assert agent.returncode == 1
    assert b"does not accept this node's token (GATEHOUSE_NODE_TOKEN)" in stderr
    assert b"Traceback" not in stderr


async def test_a_missing_token_is_named(web: FakeWeb, var_dir: Path) -> None:
    agent = await agent_process(web, var_dir, token="")
    _, stderr = await asyncio.wait_for(agent.communicate(), 60)
    assert agent.returncode == 1
    assert b"GATEHOUSE_NODE_TOKEN is not set" in stderr


async def test_a_refusal_on_the_stream_ends_the_agent_with_its_reason(web: FakeWeb, var_dir: Path) -> None:
    web.refuse = "It speaks protocol 7."
    async with running_agent(web, var_dir) as agent:
        with pytest.raises(NodeRefused, match=r"It speaks protocol 7\."):
            await asyncio.wait_for(asyncio.shield(agent), 60)


async def test_a_web_process_behind_https_is_verified(tmp_path: Path, var_dir: Path) -> None:
    authority = Authority(tmp_path)
    async with FakeWeb(tls=authority.server("IP:127.0.0.1")) as web:
        async with running_agent(web, var_dir, tls=web_context(authority.ca_file)):
            await web.until(lambda: bool(web.hellos))
        web.forget()
        async with running_agent(web, var_dir, tls=web_context(None)) as agent:
            with capture_logs() as logs:

                async def told() -> bool:
                    return any("certificate is not accepted" in str(one.get("reason")) for one in logs)

                await eventually(told)
            assert not web.hellos
            assert not agent.done()


@pytest.mark.parametrize(
    ("address", "listens_on"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("10.0.0.7", "0.0.0.0"),
        ("gpu-7.example", "0.0.0.0"),
        ("fd00::7", "::"),
    ],
)
def test_engines_listen_where_they_are_looked_for(address: str, listens_on: str) -> None:
    assert bind_host(address) == listens_on


@pytest.mark.parametrize("address", ["127.0.0.2", "::1"])
def test_an_address_that_nobody_reaches_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="GATEHOUSE_NODE_ADDRESS"):
        bind_host(address)


async def test_a_node_with_an_address_serves_there(web: FakeWeb, var_dir: Path) -> None:
    wish = row(devices=["cpu-test"], artefact_uri=TINY_URI)
    await web.desire(wish)
    async with running_agent(web, var_dir, address="node-7.example"):
        fact = await web.until_state(wish.instance_id, "ready")
        assert web.hellos[-1].address == "node-7.example"
        assert fact.pid is not None
        own = [c for c in psutil.Process(fact.pid).net_connections("tcp") if c.laddr.port == fact.port]
        (listening,) = [c for c in own if c.status == psutil.CONN_LISTEN]  # beside it, the agent may be asking just now
        assert listening.laddr.ip == "0.0.0.0"


class Busy:
    """A GPU whose load is another at every look."""

    def __init__(self) -> None:
        self.looks = 0

    async def probe(self) -> Inventory:
        self.looks += 1
        return Inventory(
            (Device(stable_id="GPU-1", kind="gpu", vendor="nvidia", name="GPU", utilization=self.looks / 1000),)
        )

    async def close(self) -> None:
        return None


@pytest.mark.shows("R29")
async def test_readings_are_told_every_second_and_silence_is_measured_in_half_a_minute(var_dir: Path) -> None:
    async with FakeWeb(heartbeat_seconds=2.0) as web, running_agent(web, var_dir, sources=[Busy()]):
        await web.until(lambda: bool(web.observed))

        def told() -> set[float | None]:
            return {device.utilization for one in web.observed for device in one.devices if device.vendor == "nvidia"}

        before, heard_at = len(told()), list[float]()  # when each of those after that was heard

        def quick() -> bool:
            if len(told()) > before + len(heard_at):
                heard_at.append(asyncio.get_running_loop().time())
            return any(third - first < 3.5 for first, third in zip(heard_at, heard_at[2:], strict=False))

        # Three within two seconds of readings, and not of heartbeats, once this process does not stand still.
        await web.until(quick)
    defaults = {field.name: field.default for field in fields(PoolSettings)}
    assert defaults["node_unreachable_seconds"] == 30.0
