"""Made-up devices and engines: they behave in time, say that they are made up, and touch nothing real."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from core.clock import ManualClock
from gpupool.agent.engine import LaunchRefused
from gpupool.agent.isolation.launcher import NO_ISOLATION
from gpupool.agent.node import NodeAgent, NodeSettings
from gpupool.agent.probe import Answer, ask
from gpupool.discovery.base import LinkType, Noticed
from gpupool.engines.base import GivenDevice, WireRequest
from gpupool.engines.registry import get_engine
from gpupool.simulation.devices import XIDS, SimulatedDevices
from gpupool.simulation.double import EngineDouble
from gpupool.simulation.fleet import Fleet, FleetSettings, SimulatedNode, node_names, ports_of_a_node
from gpupool.simulation.kinds import KINDS
from gpupool.simulation.launcher import SimulatedLauncher, SimulatedProcess
from gpupool.simulation.traffic import Traffic
from gpupool.stream.messages import Desired, DesiredInstance, DeviceAction
from tests.gpupool.processes import free_port

GIB = 1 << 30


async def until(condition: Callable[[], bool], what: str, *, seconds: float = 30.0) -> None:
    """Fails with `what` when it has not become so in time."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  (what is waited for tells nobody)
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"not in time: {what}")


def devices_of(kind: str = "h100", *, xids: float = 0.0, clock: ManualClock | None = None) -> SimulatedDevices:
    now = clock or ManualClock()
    return SimulatedDevices(
        node="sim-1", kind=KINDS[kind], count=4, running=list, chance=random.Random(7), xids_an_hour=xids,
        monotonic=now.monotonic, wall=lambda: 5.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "vendor", "tag", "link"),
    [
        ("h100", "nvidia", "H100-80GB", LinkType.NVSWITCH), ("a100-40", "nvidia", "A100-40GB", LinkType.NVSWITCH),
        ("a100-80", "nvidia", "A100-80GB", LinkType.NVSWITCH), ("b200", "nvidia", "B200-180GB", LinkType.NVSWITCH),
        ("l4", "nvidia", "L4-24GB", LinkType.NUMA), ("mi300x", "amd", "MI300X-192GB", LinkType.XGMI),
    ],
)  # fmt: skip
async def test_kinds_look_like_their_servers(kind: str, vendor: str, tag: str, link: LinkType) -> None:
    host, *gpus = (await devices_of(kind).probe()).devices
    assert (host.kind, len(gpus)) == ("cpu", 4)
    first = gpus[0]
    assert (first.vendor, first.tags[0], first.links[0].kind, first.health) == (vendor, tag, link, "ok")
    assert first.capability.peak_tflops is not None
    assert "fp16" in first.capability.precisions
    assert {device.facts["simulated"] for device in (host, *gpus)} == {"true"}
    again = (await devices_of(kind).probe()).devices
    assert [device.stable_id for device in again] == [host.stable_id, *(gpu.stable_id for gpu in gpus)]


async def test_errors_come_at_their_rate_and_say_that_they_are_made_up() -> None:
    clock = ManualClock()
    source = devices_of(xids=60.0, clock=clock)
    events: list[Noticed] = []
    for _ in range(3600):
        events += (await source.probe()).noticed
        clock.advance(1)
    assert 170 < len(events) < 310  # four GPUs, sixty each
    assert {event.code for event in events} == set(XIDS)
    assert all(event.data["simulated"] == "true" and "(simulated)" in event.text for event in events)
    assert (await devices_of(clock=clock).probe()).noticed == ()


async def test_a_gpu_that_fell_off_the_bus_is_failed_for_a_while() -> None:
    clock = ManualClock()
    source = devices_of(xids=60.0, clock=clock)
    lost = ""
    while not lost:
        clock.advance(1)
        inventory = await source.probe()
        lost = next((event.stable_id for event in inventory.noticed if event.code == 79), "")
    (device,) = (each for each in inventory.devices if each.stable_id == lost)
    assert (device.health, device.recovery_action, device.memory_used_bytes) == ("failed", "reset", None)


def test_imagined_work_wanders_grows_and_goes_quiet() -> None:
    clock = ManualClock()
    traffic = Traffic(0.5, random.Random(3), clock=clock.monotonic)
    levels = []
    for _ in range(600):
        clock.advance(1)
        levels.append(traffic.now())
    assert max(levels) > 0.4
    assert 0.0 in levels[60:]  # it goes quiet
    assert all(0 <= level <= 1 for level in levels)
    assert Traffic(0.0, random.Random(3), clock=clock.monotonic).now() == 0.0


@pytest.fixture
async def double() -> AsyncIterator[tuple[EngineDouble, int]]:
    made, port = EngineDouble(served_name="llama", memory_bytes=10 * GIB, speed=2.0), free_port()
    made.start("127.0.0.1", port)
    yield made, port
    made.end(0)


async def asked(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
    request = WireRequest(method, path, msgspec.json.encode(body) if body is not None else b"")
    return await ask(port, request, deadline_seconds=30.0)


async def test_an_engine_loads_answers_sleeps_and_wakes(double: tuple[EngineDouble, int]) -> None:
    made, port = double
    room = get_engine("vllm")
    made._load_seconds *= 1000  # it still loads when it is asked, however late that is
    assert (await asked(port, "GET", "/health")).status == 503
    early = made.device_bytes
    made._load_seconds /= 1000
    await until(lambda: made.loaded, "it is loaded")
    assert (await asked(port, "GET", "/health")).status == 200
    assert made.device_bytes > early
    for engine in ("vllm", "sglang", "llamacpp"):  # whichever it stands for
        measured = get_engine(engine).measured
        assert measured is not None
        told = measured("", made.log)
        assert told.weights_bytes == 6 * GIB
        assert told.kv_bytes == pytest.approx(3.3 * GIB, rel=0.001)
    messages = [{"role": "user", "content": "one two three"}]
    answer = msgspec.json.decode(
        (await asked(port, "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 5})).body
    )
    assert answer["choices"][0]["message"]["content"] == "This answer was made up"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    metrics = (await asked(port, "GET", "/metrics")).body.decode()
    load = room.wire.parse_load(metrics)
    assert (load.running, load.waiting, load.kv_used) == (0, 0, 0.0)
    assert room.counters is not None
    assert room.counters(metrics).output_tokens == 5
    assert (await asked(port, "POST", "/sleep?level=1")).status == 200
    assert room.control is not None
    assert room.control.parse_sleeping((await asked(port, "GET", "/is_sleeping")).body) is True
    assert made.device_bytes < GIB
    assert (await asked(port, "POST", "/v1/completions", {"prompt": "a"})).status == 503
    await asked(port, "POST", "/wake_up")
    assert (await asked(port, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})).status == 200
    assert (await asked(port, "GET", "/nothing")).status == 404


async def test_the_cache_fills_while_a_request_runs_and_empties_when_its_client_leaves(
    double: tuple[EngineDouble, int],
) -> None:
    made, port = double
    await until(lambda: made.loaded, "it is loaded")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = msgspec.json.encode({"prompt": "word " * 1000, "max_tokens": 60, "stream": True})
    writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readuntil(b"data: ")
    assert made.kv_used > 0.004
    assert made.busy == 0.25
    writer.transport.abort()
    await until(lambda: made.kv_used == 0.0 and made.busy == 0.0, "it has let go of it")


def a_row(artefact: str = "file:///simulated/llama", **members: Any) -> DesiredInstance:
    given: dict[str, Any] = {
        "instance_id": uuid4(), "state": "running", "lease_id": 1, "fencing_token": 1, "device_ids": ["GPU-1"],
        "memory_bytes": GIB, "engine": "vllm", "served_name": "llama", "artefact_uri": artefact, "engine_args": {},
    }  # fmt: skip
    return DesiredInstance(**(given | members))


GIVEN = {"GPU-1": GivenDevice("GPU-1", "gpu", "nvidia", 80 * GIB)}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (a_row("file:///models/real.gguf"), "runs versions of file:///simulated/ and no others"),
        (a_row(engine="nobody"), "nobody"),
        (a_row(engine_args={"wrong": 1}), "wrong"),
        (a_row(device_ids=["GPU-9"]), "no device GPU-9"),
        (a_row(engine="ollama"), "cannot be started"),
    ],
)
def test_a_simulated_node_runs_simulated_versions_and_no_others(row: DesiredInstance, words: str) -> None:
    with pytest.raises(LaunchRefused, match=words):
        SimulatedLauncher().prepare(row, GIVEN)


async def test_what_the_agent_takes_for_a_process_is_none(tmp_path: Path) -> None:
    launcher = SimulatedLauncher(speed=50.0)
    prepared = launcher.prepare(a_row(), GIVEN)
    plan, process = launcher.launch(
        prepared, port=free_port(), mark="m", log_path=tmp_path / "log" / "engine.log", host="127.0.0.1",
        isolator=NO_ISOLATION, cache={},
    )  # fmt: skip
    assert plan.slots == 64
    assert isinstance(process, SimulatedProcess)
    assert process.alive()
    assert process.members() == [process.pid]
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)  # no signal of ours can ever reach a real process
    assert launcher.running == [process]
    process.signal(signal.SIGTERM)
    assert (await process.ended()).exit_code == 0
    assert launcher.running == []
    assert "Nothing is computed" in (tmp_path / "log" / "engine.log").read_text()


async def test_nodes_lose_their_power_and_come_back(tmp_path: Path) -> None:
    fleet = FleetSettings(
        kind="l4", gpus=1, web_url=f"http://127.0.0.1:{free_port()}", var_dir=tmp_path, port_first=free_port(),
        losses_an_hour=3600.0, outage_seconds=0.05,
    )  # fmt: skip
    node = SimulatedNode("sim-l4-01", "token", 0, fleet)
    running = asyncio.create_task(node.run())
    await until(lambda: node.losses >= 2, "it was lost twice")
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_no_action_on_made_up_devices_ever_reaches_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reboot of a simulated node would be one of the machine that it runs on."""

    async def refuse(*arguments: object, **options: object) -> str:
        raise AssertionError("a simulated node has run a command")

    monkeypatch.setattr("gpupool.agent.actions.run_tool", refuse)
    settings = NodeSettings(
        node="sim-1", token="t", web_url=f"http://127.0.0.1:{free_port()}", var_dir=tmp_path,
        port_first=free_port(), port_count=8, simulated=True, boot_id="one",
    )  # fmt: skip
    agent = NodeAgent(settings, [devices_of()], launcher=SimulatedLauncher())
    assert set(agent._hello().facts.values()) == {"simulated"}  # no word of this machine's processor either
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    reboot = DeviceAction(action_id=uuid4(), action="reboot", stable_id="", dry_run=False)
    agent._on_desired(Desired(revision=1, instances=[], actions=[reboot]))
    await until(lambda: [fact.state for fact in agent._actions.facts()] == ["dry_run"], "it is only said")
    stop.set()
    await running


def test_a_fleet_is_checked_before_it_starts(tmp_path: Path) -> None:
    settings = FleetSettings(kind="h100", gpus=8, web_url="http://127.0.0.1:1", var_dir=tmp_path, port_first=65_000)
    with pytest.raises(ValueError, match="need 64 ports each"):
        Fleet(settings, dict.fromkeys(node_names("h100", 9), "t"))
    with pytest.raises(ValueError, match="no simulated kind"):
        Fleet(FleetSettings(kind="k80", gpus=1, web_url="", var_dir=tmp_path, port_first=1), {})
    assert node_names("h100", 2) == ["sim-h100-01", "sim-h100-02"]
    assert node_names("l4", 125)[0] == "sim-l4-001"


@pytest.mark.parametrize(("first", "nodes", "ports"), [(30_000, 8, 640), (30_000, 125, 284), (30_000, 555, 64)])
def test_nodes_share_the_ports_that_there_are(first: int, nodes: int, ports: int) -> None:
    assert ports_of_a_node(first, nodes) == ports


def test_too_many_nodes_for_the_ports_are_refused() -> None:
    with pytest.raises(ValueError, match="need 64 ports each"):
        ports_of_a_node(30_000, 556)
