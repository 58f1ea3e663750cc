"""How turns and conversations end before their time: taken back, left, not read, drained, idle."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.relay.deadlines import Deadlines
from gateway.relay.door import DoorLimits
from gateway.relay.memory import MemoryBudget
from gateway.relay.plan import Outcome, UsageSource
from gateway.relay.realtime.connection import RealtimeLimits
from gateway.relay.realtime.session import SessionLimits
from gateway.relay.server import ServerLimits
from tests.doubles.engine import EngineDouble, Received, Wire, chat_stream, chunk, stall, streams
from tests.gateway.relay.door.house import DoorHouse, until
from tests.gateway.relay.door.talk import Talk

OpenDoor = Callable[..., Awaitable[DoorHouse]]


async def prefill(_request: Received, wire: Wire) -> None:
    """A script: the head of a stream, its role, and then nothing."""
    await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
    await wire.chunk(chunk(role=True))
    await wire.stall()


SPEAKS = streams(chunk("Hel"), chunk("lo"), then=Wire.stall)
PHASES = pytest.mark.parametrize(
    ("script", "told"),
    [(stall, None), (prefill, None), (SPEAKS, "Hello")],
    ids=["before the head", "prefill", "stream"],
)


async def begun(house: DoorHouse, engine: EngineDouble, told: str | None) -> Talk:
    """A conversation whose response has come as far as the engine lets it."""
    talk = await Talk.begin(house.port)
    await talk.user()
    await talk.say("response.create", event_id="create")
    await talk.hear_until("response.created")
    await until(lambda: len(engine.received) == 1)
    if told is not None:
        heard = ""
        while heard != told:
            heard += (await talk.hear_until("response.output_text.delta"))["delta"]
    return talk


@PHASES
async def test_a_cancelled_response_lets_go_of_the_engine_within_a_second(
    open_door: OpenDoor, script: Any, told: str | None
) -> None:
    async with EngineDouble(script, streams(*chat_stream("Next"))) as engine:
        house = await open_door(engine.port)
        talk = await begun(house, engine, told)
        await talk.say("response.cancel")
        hearing = asyncio.create_task(talk.hear_until("response.done"))
        await until(lambda: hearing.done() and engine.open == 0, 1)
        response = (await hearing)["response"]
        assert response["status"] == "cancelled"
        assert response["status_details"]["reason"] == "client_cancelled"
        settlement = (await house.settled())[0]
        assert settlement.outcome is Outcome.CANCELLED
        if told is None:
            usage = settlement.usage
            assert (response["output"], response["usage"]["input_tokens"]) == ([], usage.input_tokens)
            assert (usage.source, usage.output_tokens) == (UsageSource.ESTIMATED, None)
        else:
            assert response["output"][0]["content"][0]["text"] == told
            assert response["output"][0]["status"] == "incomplete"
            assert settlement.usage.source is UsageSource.ESTIMATED
            assert response["usage"]["output_tokens"] == settlement.usage.output_tokens == 2
        assert (await talk.respond())["status"] == "completed"
        said = engine.received[1].json["messages"]
        assert [message["role"] for message in said] == (["user"] if told is None else ["user", "assistant"])
        await talk.end()


async def test_a_response_can_be_cancelled_while_it_is_decided_about(open_door: OpenDoor) -> None:
    house = await open_door()
    house.pipeline.hold = asyncio.Event()
    talk = await Talk.begin(house.port)
    await talk.user()
    await talk.say("response.create")
    await until(lambda: house.pipeline.prepared == 1)
    assert house.door.in_flight == 1
    await talk.say("response.cancel")
    assert (await talk.hear_until("response.done"))["response"]["status"] == "cancelled"
    assert (house.settlements, house.door.in_flight) == ([], 0)
    await talk.end()


async def test_a_response_that_another_event_names_is_not_cancelled(open_door: OpenDoor) -> None:
    async with EngineDouble(SPEAKS) as engine:
        house = await open_door(engine.port)
        talk = await begun(house, engine, "Hello")
        await talk.say("response.cancel", response_id="resp_other", event_id="e")
        assert (await talk.hear_until("error"))["error"]["code"] == "response_cancel_not_active"
        assert engine.open == 1
        await talk.end()


async def test_one_response_at_a_time(open_door: OpenDoor) -> None:
    async with EngineDouble(SPEAKS) as engine:
        house = await open_door(engine.port)
        talk = await begun(house, engine, "Hello")
        await talk.say("response.create", event_id="second")
        error = (await talk.hear_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "second")
        assert len(engine.received) == 1
        await talk.end()


@PHASES
@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_leaves_takes_its_response_with_it(
    open_door: OpenDoor, script: Any, told: str | None, politely: bool
) -> None:
    async with EngineDouble(script) as engine:
        house = await open_door(engine.port)
        talk = await begun(house, engine, told)
        if politely:
            await talk.end()
        else:
            talk.leave()
        await until(lambda: engine.open == 0, 1)
        assert await house.outcome() is Outcome.CANCELLED
        await until(lambda: not house.server.server_state.connections and house.door.in_flight == 0)
        assert house.pipeline.picker.in_flight == 0


async def test_a_client_that_does_not_read_is_given_up(open_door: OpenDoor) -> None:
    async def floods(_request: Received, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        with contextlib.suppress(OSError):
            while True:
                await wire.chunk(chunk("x" * 60_000))

    async with EngineDouble(floods) as engine:
        limits = RealtimeLimits(send_deadline_seconds=0.3, session=SessionLimits(conversation_bytes=1 << 30))
        house = await open_door(engine.port, realtime_limits=limits)
        talk = await Talk.begin(house.port, max_queue=1)
        await talk.user()
        talk.connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await talk.say("response.create")
        await until(lambda: len(house.settlements) == 1)
        assert await house.outcome() is Outcome.CANCELLED
        await until(lambda: engine.open == 0 and not house.server.server_state.connections)
        talk.leave()


async def test_an_answer_larger_than_the_conversation_may_be_is_broken_off(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("x" * 600), chunk("x" * 600), then=Wire.stall)) as engine:
        limits = RealtimeLimits(session=SessionLimits(conversation_bytes=1000))
        house = await open_door(engine.port, realtime_limits=limits)
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond()
        assert response["status"] == "failed"
        assert response["status_details"]["error"]["code"] == "answer_too_large"
        await until(lambda: engine.open == 0)
        assert (await house.settled())[0].error_code == "answer_too_large"
        await talk.end()


async def test_conversations_count_as_memory_and_give_it_back(open_door: OpenDoor) -> None:
    async with EngineDouble(SPEAKS) as engine:
        house = await open_door(engine.port)
        memory = MemoryBudget(2000)
        house.door._memory = memory
        talk = await begun(house, engine, "Hello")
        assert memory.held_bytes > 100
        large = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x" * 2000}]}
        await talk.say("conversation.item.create", item=large)
        assert (await talk.hear_until("error"))["error"]["code"] == "relay_memory_exhausted"
        assert await talk.closed() == 1013
        await until(lambda: memory.held_bytes == 0)
        assert await house.outcome() is Outcome.CANCELLED


async def test_who_asks_in_pings_and_does_not_read_is_cut_off(open_door: OpenDoor) -> None:
    house = await open_door()
    talk = await Talk.begin(house.port)
    transport = talk.connection.transport
    transport.pause_reading()
    raw = transport.get_extra_info("socket")
    ping = b"\x89\xfd\x00\x00\x00\x00" + b"x" * 125
    for _ in range(400):
        transport.write(ping * 500)
        await asyncio.sleep(0)
        if not house.server.server_state.connections:
            break
    await until(lambda: not house.server.server_state.connections)
    assert raw is not None
    talk.leave()


# The end of the process


async def test_draining_ends_idle_conversations_at_once(open_door: OpenDoor) -> None:
    house = await open_door()
    talk = await Talk.begin(house.port)
    house.signal()
    assert await talk.closed() == 1001
    assert house.task is not None
    await asyncio.wait_for(house.task, 5)


async def test_a_notice_comes_before_the_drain(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("Still"))) as engine:
        house = await open_door(engine.port, limits=ServerLimits(drain_notice_seconds=30.0))
        talk = await Talk.begin(house.port)
        house.signal()
        await until(lambda: house.door.draining)
        await talk.user()
        assert (await talk.respond())["status"] == "completed"
        house.end_notice(30.0)
        assert await talk.closed() == 1001


async def test_draining_lets_a_response_finish(open_door: OpenDoor) -> None:
    go_on = asyncio.Event()

    async def script(_request: Received, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        events = chat_stream("One", "Two")
        await wire.chunk(*events[:2])
        await go_on.wait()
        await wire.chunk(*events[2:])
        await wire.end_chunks()

    async with EngineDouble(script) as engine:
        house = await open_door(engine.port)
        talk = await begun(house, engine, "One")
        house.signal()
        await until(lambda: not house.server.servers[0].is_serving())
        go_on.set()
        response = (await talk.hear_until("response.done"))["response"]
        assert response["status"] == "completed"
        assert await talk.closed() == 1001
        assert await house.outcome() is Outcome.SUCCESS


@PHASES
async def test_what_does_not_finish_in_time_ends_with_an_error(
    open_door: OpenDoor, script: Any, told: str | None
) -> None:
    async with EngineDouble(script) as engine:
        limits = ServerLimits(drain_notice_seconds=0, drain_deadline_seconds=0.2)
        house = await open_door(engine.port, limits=limits)
        talk = await begun(house, engine, told)
        house.signal()
        error = (await talk.hear_until("error"))["error"]
        assert (error["code"], error["event_id"]) == ("draining", "create")
        assert (await talk.hear_until("response.done"))["response"]["status"] == "failed"
        assert await talk.closed() == 1001
        settlement = (await house.settled())[0]
        assert settlement.outcome is (Outcome.FAILED if told is None else Outcome.TRUNCATED)
        assert settlement.error_code == "draining"
        assert house.task is not None
        await asyncio.wait_for(house.task, 5)


async def test_an_undecided_response_is_told_of_the_end_too(open_door: OpenDoor) -> None:
    house = await open_door(limits=ServerLimits(drain_notice_seconds=0, drain_deadline_seconds=0.1))
    house.pipeline.hold = asyncio.Event()
    talk = await Talk.begin(house.port)
    await talk.user()
    await talk.say("response.create")
    await until(lambda: house.pipeline.prepared == 1)
    house.signal()
    assert (await talk.hear_until("error"))["error"]["code"] == "draining"
    assert await talk.closed() == 1001


# Silence


async def test_an_idle_conversation_ends(open_door: OpenDoor) -> None:
    house = await open_door(realtime_limits=RealtimeLimits(idle_seconds=0.2))
    talk = await Talk.begin(house.port)
    assert await talk.closed() == 1000


async def test_a_conversation_that_listens_is_not_idle(open_door: OpenDoor) -> None:
    go_on = asyncio.Event()

    async def script(_request: Received, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        await go_on.wait()
        await wire.chunk(*chat_stream("Late"))
        await wire.end_chunks()

    async with EngineDouble(script) as engine:
        limits = RealtimeLimits()
        house = await open_door(engine.port, realtime_limits=limits)
        talk = await begun(house, engine, None)
        object.__setattr__(limits, "idle_seconds", 0.1)  # not before: until here it could only be late
        await talk.user("Well?")  # its last word
        asyncio.get_running_loop().call_later(0.4, go_on.set)
        assert (await talk.hear_until("response.done"))["response"]["status"] == "completed"
        assert await talk.closed() == 1000


async def test_an_engine_that_says_nothing_fails_the_response_in_time(open_door: OpenDoor) -> None:
    async with EngineDouble(stall) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(first_token_seconds=0.2, keep_alive_seconds=0.05))
        talk = await Talk.begin(house.port)
        await talk.user()
        response = await talk.respond()
        assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", "upstream_timeout")
        assert "response.output_text.delta" not in json.dumps(talk.types())
        await talk.end()


def test_a_doors_own_bounds_are_not_a_conversations() -> None:
    assert DoorLimits().send_deadline_seconds == RealtimeLimits().send_deadline_seconds
