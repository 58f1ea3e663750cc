import pytest
import redis
from pytest_django import Settings

from core import bus


def test_hints_reach_who_has_the_same_prefix_alone(
    settings: Settings, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = settings.GATEHOUSE.valkey_scratch_url
    patient = redis.Redis.from_url(url)  # one on a busy machine would be lost within the usual deadline, as hints may
    monkeypatch.setattr(bus, "_client", lambda _: patient)
    with redis.Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as heard:
        for channel in (bus.epoch_channel(), "another:epochs"):
            heard.subscribe(channel)
            heard.get_message(timeout=30)
        bus.hint("keys", 7)
        message = heard.get_message(timeout=30)
        assert message is not None
        assert message["channel"].decode() == f"{settings.GATEHOUSE.valkey_prefix}epochs"
        assert message["data"] == b"keys:7"
        assert heard.get_message(timeout=0.05) is None
