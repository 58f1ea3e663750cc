"""Which instances relays keep requests away from, as each tells in Valkey: see gateway.relay.breaker_board."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
import redis
from django.conf import settings

from dashboard.reads.health import DEADLINE_SECONDS
from gateway.relay.breaker_board import INDEX, UNASKED_SECONDS, Word

_MOST_PROCESSES: Final = 200
_UNASKED: Final = timedelta(seconds=UNASKED_SECONDS)


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """An instance by one process. `trial_at`: from when on a request tries it; None: one does now."""

    instance_id: UUID
    process: str
    since: datetime
    why: str  # of gateway.policies.breaker.Opened
    trial_at: datetime | None

    def is_unasked(self, now: datetime) -> bool:
        """Whether its trial is due for long: it waits for a request, and none has come."""
        return self.trial_at is not None and self.trial_at <= now - _UNASKED


def read_left_alone(instance_id: UUID | None = None) -> list[LeftAlone]:
    """Of one instance, or of all; the longest left alone first. Nothing where Valkey cannot be asked."""
    url, index = settings.GATEHOUSE.valkey_state_url, settings.GATEHOUSE.valkey_prefix + INDEX
    if not url:
        return []
    try:
        with redis.Redis.from_url(
            url, socket_timeout=DEADLINE_SECONDS, socket_connect_timeout=DEADLINE_SECONDS
        ) as client:
            names = client.zrevrange(index, 0, _MOST_PROCESSES - 1)
            words = client.mget([f"{index}:{name.decode()}" for name in names]) if names else []
    except (redis.RedisError, OSError):
        return []
    found = [one for word in words if word is not None for one in _told(word)]
    return sorted(
        (one for one in found if instance_id in (None, one.instance_id)), key=lambda one: (one.since, one.process)
    )


def _told(text: bytes) -> Iterator[LeftAlone]:
    try:
        word = msgspec.json.decode(text, type=Word)
        for one in word.left_alone:
            trial = None if one.trial_at is None else datetime.fromtimestamp(one.trial_at, tz=UTC)
            yield LeftAlone(one.instance_id, word.process, datetime.fromtimestamp(one.since, tz=UTC), one.why, trial)
    except (msgspec.MsgspecError, OverflowError, OSError, ValueError):
        return  # of a relay of another version
