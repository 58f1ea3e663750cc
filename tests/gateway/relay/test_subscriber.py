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
    running = asyncio.create_task(follower.run())
    with redis.Redis.from_url(valkey_url) as client:
        async with asyncio.timeout(10):
            await follower.subscribed.wait()
            client.publish(channel, "one")
            client.publish("tests:another", "not for us")
            client.publish(channel, "two " + "x" * 100_000)
            await until(lambda: len(heard) == 2, "two messages")
            client.client_kill_filter(_type="pubsub")
            await until(lambda: not follower.subscribed.is_set(), "the loss is noticed")
            await follower.subscribed.wait()
            client.publish(channel, "three")
            await until(lambda: len(heard) == 3, "the third message")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert [message[:5] for message in heard] == ["one", "two x", "three"]
