"""Hints over Valkey's pub/sub that something changed. Only hints: everyone polls the epochs anyway."""

from functools import cache
from typing import Final

import redis
import structlog
from django.conf import settings

EPOCH_CHANNEL: Final = "gatehouse:epochs"
_HINT_DEADLINE_SECONDS: Final = 0.05

logger = structlog.get_logger(__name__)


@cache
def _client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(
        url, socket_timeout=_HINT_DEADLINE_SECONDS, socket_connect_timeout=_HINT_DEADLINE_SECONDS
    )


def hint(section: str, epoch: int) -> None:
    """Say that `section` reached `epoch`. Never fails: a lost hint costs at most one poll interval."""
    url: str | None = settings.GATEHOUSE.valkey_scratch_url
    if url is None:
        return
    try:
        _client(url).publish(EPOCH_CHANNEL, f"{section}:{epoch}")
    except redis.RedisError as error:
        logger.debug("epoch_hint_lost", section=section, epoch=epoch, error=str(error))
