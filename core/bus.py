"""Hints over Valkey's pub/sub that something changed. Only hints: everyone polls the epochs anyway."""

from collections.abc import Callable
from functools import cache
from typing import Final

import redis
import structlog
from django.conf import settings

PEOPLE: Final = "people"
"""Hinted at when what people may see has changed; it has no epoch, sockets are checked every few seconds anyway."""
_HINT_DEADLINE_SECONDS: Final = 0.05

logger = structlog.get_logger(__name__)


def epoch_channel() -> str:
    """Where hints go: the databases of a server share its channels, so that the prefix alone tells houses apart."""
    return f"{settings.GATEHOUSE.valkey_prefix}epochs"


_listeners: list[Callable[[str], None]] = []


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` called with every section that this process itself hints at, in the writer's thread.

    For processes without Valkey, and so that nobody waits for a way through the network that ends where it began.
    """
    _listeners.append(listener)


def stop_listening(listener: Callable[[str], None]) -> None:
    _listeners.remove(listener)


@cache
def _client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(
        url, socket_timeout=_HINT_DEADLINE_SECONDS, socket_connect_timeout=_HINT_DEADLINE_SECONDS
    )


def hint(section: str, epoch: int) -> None:
    """Say that `section` reached `epoch`. Never fails: a lost hint costs at most one poll interval."""
    for listener in tuple(_listeners):  # others come and go meanwhile
        listener(section)
    url: str | None = settings.GATEHOUSE.valkey_scratch_url
    if url is None:
        return
    try:
        _client(url).publish(epoch_channel(), f"{section}:{epoch}")
    except redis.RedisError as error:
        logger.debug("epoch_hint_lost", section=section, epoch=epoch, error=str(error))
