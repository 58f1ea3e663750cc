"""The HTTP client towards engines, against raw sockets."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.relay.connection import ConnectionLimits
from gateway.relay.response import UpstreamResponse
from gateway.relay.upstream import Origin, UpstreamClient, UpstreamLimits
from gateway.relay.upstream_errors import (
    BadResponse,
    ConnectFailed,
    ConnectionLost,
    DeadlinePassed,
    Phase,
    UpstreamError,
)
from tests.doubles.engine import EngineDouble, Received, Wire, answers, head, stall
from tests.gateway.relay.door.house import free_port, until

HEAD = b"POST /x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n"


@pytest.fixture
async def client() -> AsyncIterator[UpstreamClient]:
    made = UpstreamClient(UpstreamLimits(connections_per_origin=2))
    yield made
    await made.aclose()


async def send(
    client: UpstreamClient, port: int, *, connect_seconds: float = 30.0, head_seconds: float = 30.0
) -> UpstreamResponse:
    origin = Origin("127.0.0.1", port)
    return await client.request(origin, HEAD, b"{}", connect_seconds=connect_seconds, head_seconds=head_seconds)


async def read_all(response: UpstreamResponse, seconds: float = 30.0) -> bytes:
    parts = []
    while data := await response.read(seconds):
        parts.append(data)
    return b"".join(parts)


def raw(*pieces: bytes, close: bool = False) -> object:
    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(*pieces)
        if close:
            wire.close()

    return script


@pytest.mark.parametrize(
    ("pieces", "close"),
    [
        ((head(200, ("Content-Length", "5")), b"hello"), False),
        ((head(200, ("Content-Length", "5")) + b"he", b"llo"), False),
        ((head(200, ("Transfer-Encoding", "chunked")), b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"), False),
        ((head(200, ("Transfer-Encoding", "chunked")), b"5;ext=1\r\nhello\r\n0\r\nTrailer: 1\r\n\r\n"), False),
        ((head(200), b"hel", b"lo"), True),
        ((b"HTTP/1.0 200 OK\r\n\r\nhello",), True),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", head(200, ("Content-Length", "5")), b"hello"), False),
        ((b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head(200, ("Content-Length", "5")) + b"hello",), False),
    ],
)
async def test_bodies_in_every_framing(client: UpstreamClient, pieces: tuple[bytes, ...], close: bool) -> None:
    async with EngineDouble(raw(*pieces, close=close)) as engine:  # type: ignore[arg-type]
        response = await send(client, engine.port)
        assert response.status == 200
        assert response.header(b"link") is None
        assert await read_all(response) == b"hello"
        assert engine.received[0].body == b"{}"
        again = await send(client, engine.port)
        assert await read_all(again) == b"hello"
        assert engine.accepted == (2 if close else 1)


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(client: UpstreamClient, status: int) -> None:
    async with EngineDouble(raw(head(status))) as engine:  # type: ignore[arg-type]
        for _ in range(2):
            response = await send(client, engine.port)
            assert (response.status, await read_all(response)) == (status, b"")
        assert engine.accepted == 1


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ((head(200, ("Content-Length", "5")), b"hel"), ConnectionLost),
        ((head(200, ("Transfer-Encoding", "chunked")), b"5\r\nhel"), ConnectionLost),
        ((head(200, ("Transfer-Encoding", "chunked")), b"zz\r\n"), BadResponse),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",), BadResponse),
        ((b"HTTP/1.1 200 OK\r\nContent-Le",), ConnectionLost),
        ((b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",), BadResponse),
        ((b"nonsense\r\n\r\n",), BadResponse),
    ],
)
async def test_broken_answers(client: UpstreamClient, pieces: tuple[bytes, ...], error: type[UpstreamError]) -> None:
    async with EngineDouble(raw(*pieces, close=True)) as engine:  # type: ignore[arg-type]
        with pytest.raises(error):
            await read_all(await send(client, engine.port))
        await until(lambda: client.connections(Origin("127.0.0.1", engine.port)) == 0)


async def test_what_came_before_a_loss_is_handed_out(client: UpstreamClient) -> None:
    async with EngineDouble(raw(head(200, ("Content-Length", "9")) + b"hello", close=True)) as engine:  # type: ignore[arg-type]
        response = await send(client, engine.port)
        assert await response.read(30.0) == b"hello"
        with pytest.raises(ConnectionLost):
            await response.read(30.0)


async def test_deadlines_say_their_phase(client: UpstreamClient) -> None:
    async def half(request: Received, wire: Wire) -> None:
        await wire.head(200, ("Content-Length", "5"))
        await wire.stall()

    async with EngineDouble(stall, half) as engine:
        sending = asyncio.create_task(send(client, engine.port, head_seconds=0.1))
        await until(sending.done, 1.0)
        with pytest.raises(DeadlinePassed) as caught:
            await sending
        assert caught.value.phase is Phase.HEAD
        await until(lambda: engine.open == 0)  # closed, not left behind
        response = await send(client, engine.port)
        reading = asyncio.create_task(response.read(0.1))
        await until(reading.done, 1.0)
        with pytest.raises(DeadlinePassed) as caught:
            await reading
        assert caught.value.phase is Phase.BODY
        response.close()


async def test_a_later_deadline_may_be_sooner(client: UpstreamClient) -> None:
    """The one timer of a connection was set for far away by the request before."""
    async with EngineDouble(answers(b"{}"), stall) as engine:
        await read_all(await send(client, engine.port, head_seconds=600.0), 600.0)
        with pytest.raises(DeadlinePassed):
            await send(client, engine.port, head_seconds=0.1)


async def test_refused_is_a_failure_to_connect(client: UpstreamClient) -> None:
    with pytest.raises(ConnectFailed):
        await send(client, free_port())
    with pytest.raises(ConnectFailed):
        await client.request(Origin("no.such.host.invalid", 1), HEAD, b"", connect_seconds=30.0, head_seconds=30.0)


async def test_a_connection_that_is_not_made_in_time(client: UpstreamClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_args: object, **_options: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(DeadlinePassed) as caught:
        await send(client, free_port(), connect_seconds=0.05)
    assert caught.value.phase is Phase.CONNECT


async def test_an_answer_that_has_come_frees_its_connection(client: UpstreamClient) -> None:
    async with EngineDouble(answers(b"{}")) as engine:
        unread = [await send(client, engine.port) for _ in range(3)]
        assert engine.accepted == 1
        for response in unread:
            assert await read_all(response) == b"{}"


async def test_a_full_pool_makes_wait_and_then_fails(client: UpstreamClient) -> None:
    release = asyncio.Event()

    async def wait(request: Received, wire: Wire) -> None:
        await release.wait()
        await answers(b"{}")(request, wire)

    async with EngineDouble(wait) as engine:
        busy = [asyncio.create_task(send(client, engine.port)) for _ in range(2)]
        await until(lambda: len(engine.received) == 2)
        with pytest.raises(DeadlinePassed) as caught:
            await send(client, engine.port, connect_seconds=0.05)
        assert caught.value.phase is Phase.CONNECT
        waiting = asyncio.create_task(send(client, engine.port))
        given_up = asyncio.create_task(send(client, engine.port))
        await asyncio.sleep(0)
        given_up.cancel()
        release.set()
        assert (await waiting).status == 200
        for task in busy:
            assert (await task).status == 200
        assert engine.accepted == 2


async def test_closing_before_the_end_closes_the_connection(client: UpstreamClient) -> None:
    async def endless(request: Received, wire: Wire) -> None:
        await wire.head(200, ("Transfer-Encoding", "chunked"))
        while True:
            await wire.chunk(b"x" * 1000)

    async with EngineDouble(endless) as engine:
        response = await send(client, engine.port)
        await response.read(30.0)
        response.close()
        await until(lambda: engine.open == 0)
        with pytest.raises(ConnectionLost):
            await read_all(response)


async def test_release_waits_a_moment_for_the_end(client: UpstreamClient) -> None:
    end = asyncio.Event()

    async def late_end(request: Received, wire: Wire) -> None:
        await wire.head(200, ("Transfer-Encoding", "chunked"))
        await wire.chunk(b"data")
        await end.wait()
        await wire.chunk(b"rest")
        await wire.end_chunks()

    async with EngineDouble(late_end) as engine:
        origin = Origin("127.0.0.1", engine.port)
        response = await send(client, engine.port)
        assert await response.read(30.0) == b"data"
        response.release(30.0)
        assert client.idle_connections(origin) == 0
        end.set()
        await until(lambda: client.idle_connections(origin) == 1)
        assert await read_all(await send(client, engine.port)) == b"datarest"
        assert engine.accepted == 1
        end.clear()
        response = await send(client, engine.port)
        response.release(0.05)
        await until(lambda: client.connections(origin) == 0)


async def test_idle_connections_are_closed() -> None:
    client = UpstreamClient(UpstreamLimits(idle_seconds=0.2))
    async with EngineDouble(answers(b"{}")) as engine:
        await read_all(await send(client, engine.port))
        assert client.connections(Origin("127.0.0.1", engine.port)) == 1
        await until(lambda: engine.open == 0)
        assert client.connections(Origin("127.0.0.1", engine.port)) == 0
        assert (await send(client, engine.port)).status == 200
    await client.aclose()


async def test_a_close_while_idle_is_seen(client: UpstreamClient) -> None:
    async def answer_and_close(request: Received, wire: Wire) -> None:
        await answers(b"{}")(request, wire)
        wire.close()

    async with EngineDouble(answer_and_close) as engine:
        for count in (1, 2):
            await read_all(await send(client, engine.port))
            await until(lambda: client.connections(Origin("127.0.0.1", engine.port)) == 0)
            assert engine.accepted == count
        assert client.counters.stale == 0


async def test_bytes_nobody_asked_for_spoil_the_connection(client: UpstreamClient) -> None:
    async def chatty(request: Received, wire: Wire) -> None:
        await answers(b"{}")(request, wire)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake")

    async with EngineDouble(chatty, answers(b"true")) as engine:
        assert await read_all(await send(client, engine.port)) == b"{}"
        await until(lambda: client.connections(Origin("127.0.0.1", engine.port)) == 0)
        assert await read_all(await send(client, engine.port)) == b"true"


async def test_a_stale_connection_is_retried_once_and_only_unanswered(client: UpstreamClient) -> None:
    async def begin_and_die(request: Received, wire: Wire) -> None:
        await wire.send(b"HTTP/1.1 200")
        wire.die()

    async with EngineDouble(answers(b"{}"), begin_and_die) as engine:
        await read_all(await send(client, engine.port))
        with pytest.raises(ConnectionLost):
            await send(client, engine.port)
        assert len(engine.received) == 2

    async def die(request: Received, wire: Wire) -> None:
        wire.die()

    async with EngineDouble(answers(b"{}"), die) as engine:
        await read_all(await send(client, engine.port))
        with pytest.raises(ConnectionLost):
            await send(client, engine.port)
        assert len(engine.received) == 3  # the fresh one died too: that is no staleness


async def test_unread_bytes_are_bounded() -> None:
    client = UpstreamClient(UpstreamLimits(connection=ConnectionLimits(buffer_bytes=10_000)))
    wires: list[Wire] = []

    async def flood(request: Received, wire: Wire) -> None:
        wires.append(wire)
        await wire.head(200, ("Content-Length", str(40_000_000)))
        await wire.send(*[b"x" * 100_000] * 400)

    async with EngineDouble(flood) as engine:
        response = await send(client, engine.port)
        await until(lambda: wires[0].unsent > 0)
        assert len(await response.read(30.0) or b"") < 1_000_000
        rest = await read_all(response)
        assert len(rest) > 30_000_000
        await client.aclose()


async def test_a_head_without_end_is_refused(client: UpstreamClient) -> None:
    async with EngineDouble(raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000)) as engine:  # type: ignore[arg-type]
        with pytest.raises(BadResponse):
            await send(client, engine.port)


async def test_an_answer_before_the_request_is_read_ends_the_connection(client: UpstreamClient) -> None:
    """A 413 in the middle of a large body: the answer counts, the half-written connection is not used again."""

    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(413, ("Content-Length", "2")) + b"{}")
        await writer.drain()
        await gone.wait()
        writer.close()

    gone = asyncio.Event()
    server = await asyncio.start_server(refuse_early, "127.0.0.1", 0, limit=1000)
    async with server:
        origin = Origin("127.0.0.1", server.sockets[0].getsockname()[1])
        body = b"x" * 40_000_000
        response = await client.request(
            origin,
            b"POST / HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n" % len(body),
            body,
            connect_seconds=30.0,
            head_seconds=30.0,
        )
        assert (response.status, await read_all(response)) == (413, b"{}")
        await until(lambda: client.connections(origin) == 0)
        gone.set()


@pytest.mark.parametrize(
    "flood",
    [b"0\r\nTrailer: ", b"0\r\n", b"5;extension="],
    ids=["one endless trailer", "endless trailers", "an endless extension of a chunk"],
)
async def test_framing_without_a_body_is_bounded(client: UpstreamClient, flood: bytes) -> None:
    line = b"x: y\r\n" if flood == b"0\r\n" else b"xxxxxx"

    async def endless(_request: Received, wire: Wire) -> None:
        await wire.send(head(200, ("Transfer-Encoding", "chunked")) + b"5\r\nhello\r\n" + flood)
        while True:
            await wire.send(line * 1000)

    async with EngineDouble(endless) as engine:
        response = await send(client, engine.port)
        assert await response.read(30.0) == b"hello"
        with pytest.raises(BadResponse, match="framing"):
            await response.read(30.0)
        await until(lambda: engine.open == 0)
