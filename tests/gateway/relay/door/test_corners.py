"""HTTP/1.1 where requests overlap, say their length twice, or say more after their body."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

import pytest

from gateway.relay.plan import Outcome
from gateway.relay.protocol import GuardedProtocol
from gateway.relay.server import ServerLimits
from tests.doubles.engine import DONE, EngineDouble, Wire, answers, chunk, completion, streams
from tests.gateway.relay.door.house import DoorHouse, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: door\r\n"
BODY = json.dumps(chat()).encode()
WHOLE = POST + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


async def test_half_a_head_behind_a_request_does_not_get_into_its_answer(open_door: OpenDoor) -> None:
    go_on = asyncio.Event()

    async def wait(wire: Wire) -> None:
        await go_on.wait()
        await wire.chunk(chunk(finish="stop"), DONE)
        await wire.end_chunks()

    async with EngineDouble(streams(chunk("A"), then=wait), answers(completion())) as engine:
        house = await open_door(engine.port, limits=ServerLimits(head_deadline_seconds=30.0))
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await client.head()
        assert b'"A"' in await client.chunk()
        client.writer.write(WHOLE[:20])
        (protocol,) = house.server.server_state.connections
        assert isinstance(protocol, GuardedProtocol)
        await until(lambda: protocol.url == WHOLE[5:20])
        protocol.check(protocol.loop.time() + 60.0)
        go_on.set()
        rest = b""
        while piece := await client.chunk():
            rest += piece
        assert rest.endswith(DONE)
        client.writer.write(WHOLE[20:])
        assert (await client.answer()).status == 200
        assert [settlement.outcome for settlement in await house.settled(2)] == [Outcome.SUCCESS] * 2


async def test_a_large_head_behind_a_request_does_not_get_into_its_answer(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("A"), then=Wire.stall)) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await client.head()
        await client.chunk()
        client.writer.write(POST + b"X-Long: " + b"a" * 200_000)
        seen = b""
        with contextlib.suppress(ConnectionError):
            while data := await client.reader.read(1 << 16):
                seen += data
        assert b"HTTP/1.1" not in seen
        assert await house.outcome() is Outcome.CANCELLED


async def test_what_follows_a_body_is_no_header(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        client.writer.write(
            POST
            + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
            + b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n\r\n"
        )
        assert (await client.answer()).status == 200
        assert engine.received[0].header("traceparent") is None


async def test_trailers_after_a_refusal_hold_no_connection(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
    await until(lambda: bool(house.server.server_state.connections))
    (protocol,) = house.server.server_state.connections
    assert isinstance(protocol, GuardedProtocol)
    client.writer.write(b"0\r\nX-T: a")
    await until(lambda: house.door.in_flight == 1)
    house.door.abort_all()
    assert (await client.answer()).status == 503
    client.writer.write(b"b")
    protocol.check(protocol.loop.time() + 60.0)
    with pytest.raises(ConnectionError):
        await client.reader.read()


async def test_endless_trailers_are_cut_off(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY))
    await until(lambda: house.door.in_flight == 1)
    client.writer.write((b"X-T: " + b"a" * 1000 + b"\r\n") * 1000)
    await until(lambda: house.door.in_flight == 0)
    assert house.pipeline.prepared == 0


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"Content-Length: +5\r\n\r\n",
        b"Content-Length: 5, 5\r\n\r\n",
        b"Transfer-Encoding: chunked, identity\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n",
        b"X-A: a\r\n continued\r\n\r\n",
        b"X-A: a\nX-B: b\r\n\r\n",
        b"X\0A: b\r\n\r\n",
    ],
)
async def test_ambiguous_lengths_and_lines_are_refused(open_door: OpenDoor, head: bytes) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(POST + head + b"hello")
    assert (await client.answer()).error["code"] == "invalid_http"
    assert await client.reader.read() == b""
    assert house.pipeline.prepared == 0
