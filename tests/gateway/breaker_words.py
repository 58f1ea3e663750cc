"""What relay processes leave alone, written as they tell it in Valkey."""

import msgspec
import pytest
import redis
from django.conf import settings

from gateway.relay.breaker_board import INDEX, LeftAlone, Word


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page gives up after a quarter of a second; what is tested by it may not, on a machine that stalls."""
    monkeypatch.setattr("gateway.reads.breakers._DEADLINE_SECONDS", 10.0)


def tell(url: str, process: str, *left_alone: LeftAlone, more: int = 0, asked: int = 0, told_at: int = 1) -> None:
    """The word of one process; `asked`: of the `more` that it does not name."""
    word = Word(process, list(left_alone), more=more, more_asked=asked)
    write(url, process, msgspec.json.encode(word), told_at=told_at)


def write(url: str, process: str, text: bytes | None, *, told_at: int = 1) -> None:
    """Any text as its word; None: it has lapsed, and the index names the process still."""
    index = settings.GATEHOUSE.valkey_prefix + INDEX
    with redis.Redis.from_url(url) as client:
        client.zadd(index, {process: told_at})
        if text is not None:
            client.set(f"{index}:{process}", text, ex=60)
