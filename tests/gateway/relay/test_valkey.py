"""The pipelining client: replies in order, deadlines that hold, connections made anew."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.embedded.valkey import ValkeyServer
from gateway.relay.valkey import Reply, ValkeyClient, ValkeyRefused, ValkeyUnavailable, parse_reply
from tests.gateway.relay.door.house import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    folder = tmp_path_factory.mktemp("valkey")
    server = ValkeyServer(folder / "data", log=folder / "log", durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: ValkeyServer) -> AsyncIterator[ValkeyClient]:
    client = ValkeyClient(server.database_url(3), deadline_seconds=10)
    yield client
    await client.close()


def encode(reply: Any) -> bytes:
    match reply:
        case int():
            return b":%d\r\n" % reply
        case None:
            return b"$-1\r\n"
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(reply), reply)
        case list():
            return b"*%d\r\n" % len(reply) + b"".join(map(encode, reply))
    raise TypeError(reply)


replies = st.recursive(
    st.one_of(st.integers(-(2**60), 2**60), st.none(), st.binary(max_size=30)),
    lambda inner: st.lists(inner, max_size=4),
)


@given(replies, st.binary(max_size=10))
def test_a_reply_is_read_and_what_follows_left(reply: Reply, rest: bytes) -> None:
    data = encode(reply)
    assert parse_reply(bytearray(data + rest), 0) == (reply, len(data))


@given(replies, st.data())
def test_a_part_of_a_reply_is_waited_for(reply: Reply, data: st.DataObject) -> None:
    whole = encode(reply)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(IndexError):
        parse_reply(bytearray(whole[:cut]), 0)


async def test_calls_are_answered_in_order(client: ValkeyClient) -> None:
    assert await client.call("SET", "k", "v") == b"OK"
    assert await asyncio.gather(*(client.call("ECHO", str(n)) for n in range(200))) == [
        str(n).encode() for n in range(200)
    ]
    assert await client.call("GET", "missing") is None
    assert await client.call("GET", "k") == b"v"


async def test_an_error_is_the_callers_alone(client: ValkeyClient) -> None:
    good, bad, after = await asyncio.gather(
        client.call("PING"), client.call("NONSENSE"), client.call("PING"), return_exceptions=True
    )
    assert (good, after) == (b"PONG", b"PONG")
    assert isinstance(bad, ValkeyRefused)


async def test_binary_and_large_values_pass(client: ValkeyClient) -> None:
    value = os.urandom(1 << 20)
    await client.call("SET", "large", value, deadline_seconds=5)
    assert await client.call("GET", "large", deadline_seconds=5) == value


async def test_a_frozen_server_is_given_up_in_time_and_found_again(client: ValkeyClient, server: ValkeyServer) -> None:
    assert await client.call("PING") == b"PONG"
    client._deadline_seconds = 0.2
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        for _ in range(2):  # the open connection, then a new one: the kernel still accepts those
            asking = asyncio.create_task(client.call("PING"))
            await until(asking.done, 0.5)
            with pytest.raises(ValkeyUnavailable):
                await asking
    finally:
        os.kill(server.pid, signal.SIGCONT)
    async with asyncio.timeout(10):
        while True:
            try:
                assert await client.call("PING") == b"PONG"
                return
            except ValkeyUnavailable:
                await asyncio.sleep(0.01)


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    client = ValkeyClient("redis://127.0.0.1:1/0", deadline_seconds=0.2)
    for _ in range(2):
        with pytest.raises(ValkeyUnavailable):
            await client.call("PING")
    await client.close()


async def test_a_wrong_password_is_told(server: ValkeyServer) -> None:
    client = ValkeyClient(f"redis://:wrong@127.0.0.1:{server.port}/0", deadline_seconds=10)
    with pytest.raises(ValkeyUnavailable, match="WRONGPASS"):
        await client.call("PING")
    await client.close()


async def test_the_numbered_database_is_used(client: ValkeyClient, server: ValkeyServer) -> None:
    other = ValkeyClient(server.database_url(4), deadline_seconds=10)
    await client.call("SET", "mine", "1")
    assert await other.call("GET", "mine") is None
    await other.close()


async def test_a_cancelled_call_does_not_shift_the_answers(client: ValkeyClient) -> None:
    await client.call("PING")
    task = asyncio.create_task(client.call("ECHO", "cancelled"))
    await asyncio.sleep(0)
    task.cancel()
    assert await client.call("ECHO", "next") == b"next"
