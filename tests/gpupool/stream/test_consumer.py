"""The agent stream: who may speak, what is told, and that losing it stops nothing."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import msgspec
import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from django.db import OperationalError
from structlog.testing import capture_logs

from gpupool import services
from gpupool.leases.default import close_shared_store, shared_store
from gpupool.leases.liveness import NodeLiveness, list_live_nodes
from gpupool.models import Device, DeviceEvent, Instance, InstanceState, Node
from gpupool.stream import consumer
from gpupool.stream.messages import STREAM_PATH, Desired, EventFact, Observed, Refused, ServerMessage, Welcome
from gpupool.stream.routing import websocket_urlpatterns
from tenants.actor import SYSTEM
from tests.gpupool.leases.contract import eventually
from tests.gpupool.pool import a_device, a_hello, a_version, place_one, seen

pytestmark = pytest.mark.django_db(transaction=True)

_application = URLRouter(websocket_urlpatterns)  # type: ignore[arg-type]  # plain path() is what Channels documents
_decoder = msgspec.json.Decoder(ServerMessage)


class Agent:
    """Speaks the protocol over one stream."""

    def __init__(self, token: str) -> None:
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        scope = {"type": "websocket", "path": STREAM_PATH, "query_string": b"", "headers": headers, "subprotocols": []}
        self._socket: Any = ApplicationCommunicator(_application, scope)  # type: ignore[no-untyped-call]  # asgiref's tests have no types

    async def connect(self) -> bool:
        await self._socket.send_input({"type": "websocket.connect"})
        answer = await self._socket.receive_output(5)
        return bool(answer["type"] == "websocket.accept")

    async def say(self, message: Any) -> None:
        await self.say_text(msgspec.json.encode(message).decode())

    async def say_text(self, text: str) -> None:
        await self._socket.send_input({"type": "websocket.receive", "text": text})

    async def hear(self) -> Any:
        output = await self._socket.receive_output(5)
        assert output["type"] == "websocket.send"
        return _decoder.decode(output["text"])

    async def hear_other_than(self, *told: Desired) -> Any:
        """The next message that is none of these over again: a desired state may be repeated at any time."""
        while True:
            message = await self.hear()
            if message not in told:
                return message

    async def hear_close(self) -> int:
        output = await self._socket.receive_output(5)
        assert output["type"] == "websocket.close"
        return int(output["code"])

    async def all_heard(self) -> None:
        """Whatever was said has been taken."""

        async def empty() -> bool:
            return bool(self._socket.input_queue.empty())

        await eventually(empty)

    async def leave(self) -> None:
        await self._socket.send_input({"type": "websocket.disconnect", "code": 1005})
        await self._socket.wait(5)


Connect = Callable[[str], Awaitable[Agent]]


@pytest.fixture
async def connect(transactional_db: None) -> AsyncIterator[Connect]:
    agents: list[Agent] = []

    async def connected(token: str) -> Agent:
        agent = Agent(token)
        assert await agent.connect()
        agents.append(agent)
        return agent

    yield connected
    for agent in agents:
        await agent.leave()
    await close_shared_store()


@pytest.fixture
async def token(transactional_db: None) -> str:
    return (await sync_to_async(services.create_node)("node-1", actor=SYSTEM)).token


async def _node() -> Node:
    return await Node.objects.aget(name="node-1")


async def _begin(agent: Agent) -> Desired:
    await agent.say(a_hello("node-1", a_device("gpu-0")))
    assert isinstance(await agent.hear(), Welcome)
    desired = await agent.hear()
    assert isinstance(desired, Desired)
    return desired


@pytest.mark.parametrize("token", ["", "wrong", "gn-wrong", "gn-" + "x" * 500])
async def test_a_wrong_token_is_refused_before_the_stream_opens(token: str) -> None:
    assert not await Agent(token).connect()


async def test_a_revoked_token_opens_nothing_and_ends_what_it_opened(connect: Connect, token: str) -> None:
    agent = await connect(token)
    first = await _begin(agent)
    await sync_to_async(services.revoke_node_token)((await _node()).pk, actor=SYSTEM)
    assert isinstance(await agent.hear_other_than(first), Refused)
    assert await agent.hear_close() == 4409
    assert not await Agent(token).connect()


@pytest.mark.parametrize("change", [services.revoke_node_token, services.rotate_node_token])
async def test_a_stream_that_was_opened_before_its_token_was_void_may_not_begin(
    connect: Connect, token: str, change: Callable[..., object]
) -> None:
    agent = await connect(token)  # held back: the hello comes when the token is void
    await sync_to_async(change)((await _node()).pk, actor=SYSTEM)
    await agent.say(a_hello("node-1", a_device("gpu-0")))
    assert isinstance(await agent.hear(), Refused)
    assert await agent.hear_close() == 4409
    node = await _node()
    assert (node.state, node.session_id) == ("expected", None)


async def test_a_hello_registers_devices_and_brings_the_node_online(connect: Connect, token: str) -> None:
    desired = await _begin(await connect(token))
    assert desired.instances == []
    node = await _node()
    assert (node.state, node.address, node.boot_id) == ("online", "127.0.0.1", "first")
    device = await Device.objects.aget()
    assert (device.stable_id, device.present, device.memory_used_bytes) == ("gpu-0", True, None)

    async def alive() -> bool:
        return node.pk in await list_live_nodes(shared_store())

    await eventually(alive)


async def test_a_placed_instance_reaches_the_agent_within_a_second(connect: Connect, token: str) -> None:
    agent = await connect(token)
    first = await _begin(agent)
    version = await sync_to_async(a_version)("m", memory_bytes=5)
    instance = await sync_to_async(place_one)(version, await _node())
    async with asyncio.timeout(1.0):
        desired = await agent.hear_other_than(first)
    assert desired.revision > first.revision
    (row,) = desired.instances
    assert (row.instance_id, row.state, row.device_ids, row.memory_bytes) == (instance.pk, "running", ["gpu-0"], 5)
    assert (row.lease_id, row.fencing_token) == (instance.lease_id, instance.fencing_token)


async def test_what_the_agent_sees_is_written_down(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await _begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await _node())
    await agent.say(await sync_to_async(seen)(instance, "ready", pid=77, port=21000))

    async def ready() -> bool:
        row = await Instance.objects.aget(pk=instance.pk)
        return (row.state, row.pid, row.port, row.host) == (InstanceState.READY, 77, 21000, "127.0.0.1")

    await eventually(ready)


async def test_events_are_acknowledged_at_once(connect: Connect, token: str) -> None:
    agent = await connect(token)
    first = await _begin(agent)
    assert first.event_sequence == 0
    event = EventFact(sequence=4, source="kernel_log", kind="xid", at=1.0, stable_id="gpu-0", code=79)
    await agent.say(Observed(sequence=1, devices=[a_device("gpu-0")], instances=[], events=[event]))
    async with asyncio.timeout(2.0):
        while (await agent.hear()).event_sequence != 4:
            pass


async def test_the_newest_stream_speaks_for_the_node(connect: Connect, token: str) -> None:
    old, new = await connect(token), await connect(token)
    first = await _begin(old)
    await _begin(new)
    await old.say(Observed(sequence=1, devices=[], instances=[]))
    assert isinstance(await old.hear_other_than(first), Refused)
    assert await old.hear_close() == 4409
    assert (await Device.objects.aget()).present  # the old one's empty list of devices was not believed
    await new.say(Observed(sequence=1, devices=[a_device("gpu-0", health="failed")], instances=[]))

    async def written() -> bool:
        return (await Device.objects.aget()).health == "failed"

    await eventually(written)


@pytest.mark.shows("P8")
async def test_a_node_that_was_declared_lost_and_lives_is_asked_to_begin_anew(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await _begin(agent)
    node_id = (await _node()).pk
    await sync_to_async(services.mark_node_unreachable)(node_id, reason="silent", actor=SYSTEM)
    await sync_to_async(services.declare_node_lost)(node_id, actor=SYSTEM)
    await agent.say(Observed(sequence=1, devices=[a_device("gpu-0")], instances=[]))
    assert await agent.hear_close() == 1013  # not refused, which would end the agent with its engines still there
    assert (await _node()).state == "expected"
    await _begin(await connect(token))
    assert (await _node()).state == "online"


async def test_a_lease_store_that_does_not_answer_keeps_no_report_waiting(
    connect: Connect, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("gpupool.leases.liveness.NodeLiveness.heard", never)
    agent = await connect(token)
    await _begin(agent)
    async with asyncio.timeout(3.0):
        for number in range(20):  # half a second each would be ten
            health = "failed" if number == 19 else "ok"
            await agent.say(Observed(sequence=number, devices=[a_device("gpu-0", health=health)], instances=[]))

        async def written() -> bool:
            return (await Device.objects.aget()).health == "failed"

        await eventually(written)


@pytest.mark.parametrize(
    "text",
    ["not json", json.dumps({"type": "observed", "sequence": 1, "devices": [], "instances": []})],
    ids=["garbage", "no hello"],
)
async def test_an_agent_that_does_not_keep_to_the_protocol_is_told_why(connect: Connect, token: str, text: str) -> None:
    agent = await connect(token)
    await agent.say_text(text)
    assert isinstance(await agent.hear(), Refused)
    assert await agent.hear_close() == 4400


async def test_a_token_speaks_for_its_own_node_only(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await agent.say(a_hello("another"))
    refused = await agent.hear()
    assert "node-1's, not another's" in refused.reason


async def test_a_lost_stream_changes_no_instance(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await _begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await _node())
    await sync_to_async(services.apply_observed)(
        (await _node()).pk, _session(await _node()), await sync_to_async(seen)(instance, "ready", pid=7, port=21000)
    )
    await agent.leave()
    row = await Instance.objects.aget(pk=instance.pk)
    assert (row.state, row.desire) == (InstanceState.READY, "running")


@pytest.mark.shows("P8")
async def test_an_engine_that_was_stopped_while_its_node_was_away_is_told_to_stop(connect: Connect, token: str) -> None:
    first = await connect(token)
    await _begin(first)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await _node())
    running = await sync_to_async(seen)(instance, "ready", pid=7, port=21000)
    await first.leave()
    await sync_to_async(services.stop_instance)(instance.pk, actor=SYSTEM)
    second = await connect(token)
    await second.say(a_hello("node-1", a_device("gpu-0"), instances=tuple(running.instances)))
    assert isinstance(await second.hear(), Welcome)
    (row,) = (await second.hear()).instances
    assert (row.instance_id, row.state) == (instance.pk, "stopped")


@pytest.mark.shows("P8")
async def test_an_engine_of_no_instance_at_all_is_told_to_stop(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await _begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await _node())
    orphan = await sync_to_async(seen)(instance, "ready", pid=7, port=21000)
    await sync_to_async(Instance.objects.filter(pk=instance.pk).delete)()
    await agent.say(orphan)

    async def told() -> bool:
        rows = (await agent.hear()).instances
        return [(row.instance_id, row.state) for row in rows] == [(instance.pk, "stopped")]

    await eventually(told)


class SlowDatabase:
    """Holds back whatever is written of reports until it is let go on, and with it all else that needs its thread."""

    def __init__(self) -> None:
        self.written: list[Observed] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._apply = services.apply_observed

    def apply(self, node_id: UUID, session_id: UUID, report: Observed) -> services.Intake:
        self.written.append(report)
        self.begun.set()
        assert self.go_on.wait(10)
        return self._apply(node_id, session_id, report)

    async def hold(self, agent: Agent) -> None:
        """From here on a report of this agent is being written."""
        await agent.say(_report(1))
        assert await asyncio.to_thread(self.begun.wait, 5)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDatabase]:
    database = SlowDatabase()
    monkeypatch.setattr(services, "apply_observed", database.apply)
    yield database
    database.go_on.set()


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """As many as there were renewals of liveness."""
    made: list[None] = []
    renew = NodeLiveness.heard

    async def heard(liveness: NodeLiveness) -> None:
        await renew(liveness)
        made.append(None)

    monkeypatch.setattr(NodeLiveness, "heard", heard)
    return made


async def test_of_reports_that_wait_for_a_slow_database_the_newest_alone_is_written_with_all_that_was_told_once(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    agent = await connect(token)
    await _begin(agent)
    await slow.hold(agent)
    event = EventFact(sequence=1, source="kernel_log", kind="xid", at=1.0, stable_id="gpu-0", code=79)
    await agent.say(_report(2, events=[event], capabilities={"mps": {"available": False}}))
    for sequence in range(3, 40):
        await agent.say(_report(sequence))
    await agent.all_heard()
    slow.go_on.set()
    while (await agent.hear()).event_sequence != 1:
        pass
    assert [report.sequence for report in slow.written] == [1, 39]
    assert (await DeviceEvent.objects.aget()).code == 79
    assert (await _node()).capabilities == {"mps": {"available": False}}


async def test_a_slow_database_neither_ends_a_stream_nor_lets_its_node_seem_dead(
    connect: Connect, token: str, slow: SlowDatabase, renewals: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await connect(token)
    first = await _begin(agent)
    monkeypatch.setattr(consumer, "SILENCE_SECONDS", 0.2)
    await slow.hold(agent)
    before, until = len(renewals), asyncio.get_running_loop().time() + 0.6

    async def renewed() -> bool:
        await agent.say(_report(2))
        return len(renewals) > before + 5 and asyncio.get_running_loop().time() > until

    await eventually(renewed)
    assert len(slow.written) == 1
    slow.go_on.set()
    event = EventFact(sequence=1, source="kernel_log", kind="xid", at=1.0)
    await agent.say(_report(3, events=[event]))
    assert (await agent.hear_other_than(first)).event_sequence == 1


async def test_an_older_stream_is_refused_at_its_next_word_however_long_that_waited(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    old, new = await connect(token), await connect(token)
    first = await _begin(old)
    await slow.hold(old)
    await new.say(a_hello("node-1", a_device("gpu-0")))
    await new.all_heard()
    await old.say(Observed(sequence=2, devices=[], instances=[]))
    await old.all_heard()
    slow.go_on.set()
    assert isinstance(await new.hear(), Welcome)
    assert isinstance(await old.hear_other_than(first), Refused)
    assert await old.hear_close() == 4409
    assert (await Device.objects.aget()).present


async def test_a_hello_that_nobody_waits_for_any_more_is_not_written(
    connect: Connect, token: str, slow: SlowDatabase
) -> None:
    agent, given_up = await connect(token), await connect(token)
    await _begin(agent)
    session = _session(await _node())
    await slow.hold(agent)
    await given_up.say(a_hello("node-1", a_device("gpu-0")))
    await given_up.all_heard()
    with capture_logs() as logs:
        leaving = asyncio.create_task(given_up.leave())

        async def left() -> bool:
            return any(line["event"] == "agent_stream_closed" for line in logs)

        await eventually(left)
    slow.go_on.set()
    await leaving
    assert (await _node()).session_id == session


@pytest.mark.parametrize(("error", "code"), [(OperationalError("away"), 1013), (RuntimeError("a defect"), 1011)])
async def test_a_stream_whose_reports_cannot_be_written_is_closed(
    connect: Connect, token: str, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    agent = await connect(token)
    await _begin(agent)

    def fail(*_: object) -> services.Intake:
        raise error

    monkeypatch.setattr(services, "apply_observed", fail)
    await agent.say(_report(1))
    assert await agent.hear_close() == code


def _report(sequence: int, **more: Any) -> Observed:
    return Observed(sequence=sequence, devices=[a_device("gpu-0")], instances=[], **more)


def _session(node: Node) -> UUID:
    assert node.session_id is not None
    return node.session_id
