"""The agent stream: who may speak, what is told, and that losing it stops nothing."""

import asyncio
import json
from collections.abc import Callable

import pytest
from asgiref.sync import sync_to_async

from gpupool import services
from gpupool.leases.default import shared_store
from gpupool.leases.liveness import list_live_nodes
from gpupool.models import Device, Instance, InstanceState
from gpupool.stream.messages import EventFact, Observed, Refused, Welcome
from tenants.actor import SYSTEM
from tests.gpupool.leases.contract import eventually
from tests.gpupool.pool import a_device, a_hello, a_version, place_one, seen
from tests.gpupool.stream.agents import Agent, Connect, begin, session_of, the_node

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("token", ["", "wrong", "gn-wrong", "gn-" + "x" * 500])
async def test_a_wrong_token_is_refused_before_the_stream_opens(token: str) -> None:
    assert not await Agent(token).connect()


async def test_a_revoked_token_opens_nothing_and_ends_what_it_opened(connect: Connect, token: str) -> None:
    agent = await connect(token)
    first = await begin(agent)
    await sync_to_async(services.revoke_node_token)((await the_node()).pk, actor=SYSTEM)
    assert isinstance(await agent.hear_other_than(first), Refused)
    assert await agent.hear_close() == 4409
    assert not await Agent(token).connect()


@pytest.mark.parametrize("change", [services.revoke_node_token, services.rotate_node_token])
async def test_a_stream_that_was_opened_before_its_token_was_void_may_not_begin(
    connect: Connect, token: str, change: Callable[..., object]
) -> None:
    agent = await connect(token)  # held back: the hello comes when the token is void
    await sync_to_async(change)((await the_node()).pk, actor=SYSTEM)
    await agent.say(a_hello("node-1", a_device("gpu-0")))
    assert isinstance(await agent.hear(), Refused)
    assert await agent.hear_close() == 4409
    node = await the_node()
    assert (node.state, node.session_id) == ("expected", None)


async def test_a_hello_registers_devices_and_brings_the_node_online(connect: Connect, token: str) -> None:
    desired = await begin(await connect(token))
    assert desired.instances == []
    node = await the_node()
    assert (node.state, node.address, node.boot_id) == ("online", "127.0.0.1", "first")
    device = await Device.objects.aget()
    assert (device.stable_id, device.present, device.memory_used_bytes) == ("gpu-0", True, None)

    async def alive() -> bool:
        return node.pk in await list_live_nodes(shared_store())

    await eventually(alive)


async def test_a_placed_instance_reaches_the_agent_within_a_second(connect: Connect, token: str) -> None:
    agent, loop = await connect(token), asyncio.get_running_loop()
    last = await begin(agent)
    version = await sync_to_async(a_version)("m", memory_bytes=5)
    took: list[float] = []
    while len(took) < 3 and min(took, default=1.0) >= 1.0:  # this process may stand still just then
        instance = await sync_to_async(place_one)(version, await the_node())
        placed_at = loop.time()
        desired = await agent.hear_other_than(last)
        took.append(loop.time() - placed_at)
        assert desired.revision > last.revision
        (row,) = [one for one in desired.instances if one not in last.instances]
        assert (row.instance_id, row.state, row.device_ids, row.memory_bytes) == (instance.pk, "running", ["gpu-0"], 5)
        assert (row.lease_id, row.fencing_token) == (instance.lease_id, instance.fencing_token)
        last = desired
    assert min(took) < 1.0


async def test_what_the_agent_sees_is_written_down(connect: Connect, token: str) -> None:
    agent = await connect(token)
    await begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await the_node())
    await agent.say(await sync_to_async(seen)(instance, "ready", pid=77, port=21000))

    async def ready() -> bool:
        row = await Instance.objects.aget(pk=instance.pk)
        return (row.state, row.pid, row.port, row.host) == (InstanceState.READY, 77, 21000, "127.0.0.1")

    await eventually(ready)


async def test_events_are_acknowledged_at_once(connect: Connect, token: str) -> None:
    agent, loop = await connect(token), asyncio.get_running_loop()
    first = await begin(agent)
    assert first.event_sequence == 0
    took: list[float] = []
    while len(took) < 3 and min(took, default=2.0) >= 2.0:  # this process may stand still just then
        number = 4 + len(took)
        event = EventFact(sequence=number, source="kernel_log", kind="xid", at=1.0, stable_id="gpu-0", code=79)
        told_at = loop.time()
        await agent.say(Observed(sequence=number, devices=[a_device("gpu-0")], instances=[], events=[event]))
        while (await agent.hear()).event_sequence != number:
            pass
        took.append(loop.time() - told_at)
    assert min(took) < 2.0


async def test_the_newest_stream_speaks_for_the_node(connect: Connect, token: str) -> None:
    old, new = await connect(token), await connect(token)
    first = await begin(old)
    await begin(new)
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
    first = await begin(agent)
    node_id = (await the_node()).pk
    await sync_to_async(services.mark_node_unreachable)(node_id, reason="silent", actor=SYSTEM)
    await sync_to_async(services.declare_node_lost)(node_id, actor=SYSTEM)
    await agent.say(Observed(sequence=1, devices=[a_device("gpu-0")], instances=[]))
    assert await agent.hear_close(first) == 1013  # not refused, which would end the agent with its engines still there
    assert (await the_node()).state == "expected"
    await begin(await connect(token))
    assert (await the_node()).state == "online"


async def test_a_lease_store_that_does_not_answer_keeps_no_report_waiting(
    connect: Connect, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("gpupool.leases.liveness.NodeLiveness.heard", never)
    agent = await connect(token)
    await begin(agent)
    async with asyncio.timeout(15.0):
        for number in range(100):  # half a second each would be fifty
            health = "failed" if number == 99 else "ok"
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
    await begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await the_node())
    await sync_to_async(services.apply_observed)(
        (await the_node()).pk,
        session_of(await the_node()),
        await sync_to_async(seen)(instance, "ready", pid=7, port=21000),
    )
    await agent.leave()
    row = await Instance.objects.aget(pk=instance.pk)
    assert (row.state, row.desire) == (InstanceState.READY, "running")


@pytest.mark.shows("P8")
async def test_an_engine_that_was_stopped_while_its_node_was_away_is_told_to_stop(connect: Connect, token: str) -> None:
    first = await connect(token)
    await begin(first)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await the_node())
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
    await begin(agent)
    instance = await sync_to_async(place_one)(await sync_to_async(a_version)("m"), await the_node())
    orphan = await sync_to_async(seen)(instance, "ready", pid=7, port=21000)
    await sync_to_async(Instance.objects.filter(pk=instance.pk).delete)()
    await agent.say(orphan)

    async def told() -> bool:
        rows = (await agent.hear()).instances
        return [(row.instance_id, row.state) for row in rows] == [(instance.pk, "stopped")]

    await eventually(told)
