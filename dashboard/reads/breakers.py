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
    """An instance by one process. `trial_at`: from when on a request tries it; None: one does now.

    `open_until`: when that would be if others could be asked meanwhile.
    """

    instance_id: UUID
    process: str
    since: datetime
    why: str  # of gateway.policies.breaker.Opened
    trial_at: datetime | None
    open_until: datetime

    def is_unasked(self, now: datetime) -> bool:
        """Whether it waits for a request, and none has come for long. Not by `trial_at`, which comes within a second
        where no other can be asked: a request each half a minute that fails is an outage, too.
        """
        return self.trial_at is not None and self.open_until <= now - _UNASKED


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
            trial = None if one.trial_at is None else _moment(one.trial_at)
            since, until = _moment(one.since), _moment(one.open_until)
            yield LeftAlone(one.instance_id, word.process, since, one.why, trial, until)
    except (msgspec.MsgspecError, OverflowError, OSError, ValueError):
        return  # of a relay of another version


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
