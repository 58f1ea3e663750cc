"""A channel of a real Valkey is followed, also after the connection was lost."""

import asyncio

import pytest
import redis

from gateway.relay import subscriber as module
from gateway.relay.subscriber import Subscriber
from tests.gateway.relay.limiting.valkey import until


async def test_messages_arrive_again_after_a_lost_connection(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    heard: list[str] = []
    channel = "tests:subscriber"
    follower = Subscriber(valkey_url, channel, heard.append)
    connect, addresses = follower._connect, list[str]()

    async def noted() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await connect()
        addresses.append("{}:{}".format(*writer.get_extra_info("sockname")))
        return reader, writer

    monkeypatch.setattr(follower, "_connect", noted)
    running = asyncio.create_task(follower.run())
    with redis.Redis.from_url(valkey_url) as client:
        async with asyncio.timeout(10):
            await follower.subscribed.wait()
            client.publish(channel, "one")
            client.publish("tests:another", "not for us")
            client.publish(channel, "two " + "x" * 100_000)
            await until(lambda: len(heard) == 2, "two messages")
            client.client_kill_filter(addr=addresses[0])  # this one alone: other tests' are on the same server
            await until(lambda: len(addresses) == 2, "the loss is noticed")
            await follower.subscribed.wait()
            client.publish(channel, "three")
            await until(lambda: len(heard) == 3, "the third message")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [message[:5] for message in heard] == ["one", "two x", "three"]
