"""Which instances relays keep requests away from, as each tells in Valkey: see gateway.relay.breaker_board."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
import redis
from django.conf import settings

from gateway.relay.breaker_board import INDEX, UNASKED_SECONDS, Word

_MOST_PROCESSES: Final = 200
_DEADLINE_SECONDS: Final = 0.25
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


@dataclass(frozen=True, slots=True)
class Untold:
    """How many more one process leaves alone than it tells one by one; `asked`: of those that requests go on trying,
    and that have been left alone for LASTING_SECONDS.
    """

    process: str
    count: int
    asked: int


@dataclass(frozen=True, slots=True)
class OpenBreakers:
    """What relays tell, the longest left alone first, and of whom the most is untold. `known`: whether it can be read.

    `unread`: so many further processes may tell more: they were not asked, or their words are of another version.
    """

    left_alone: Sequence[LeftAlone] = ()
    untold: Sequence[Untold] = ()
    unread: int = 0
    known: bool = True


def read_breakers(instance_id: UUID | None = None) -> OpenBreakers:
    """Of one instance, or of all. What is `untold` may be any: a process counts those without naming them."""
    url, index = settings.GATEHOUSE.valkey_state_url, settings.GATEHOUSE.valkey_prefix + INDEX
    if not url:
        return OpenBreakers(known=False)
    try:
        with redis.Redis.from_url(
            url, socket_timeout=_DEADLINE_SECONDS, socket_connect_timeout=_DEADLINE_SECONDS
        ) as client:
            names = client.zrevrange(index, 0, _MOST_PROCESSES - 1)
            unread = client.zcard(index) - len(names) if len(names) == _MOST_PROCESSES else 0
            texts = client.mget([f"{index}:{name.decode()}" for name in names]) if names else []
    except (redis.RedisError, OSError):
        return OpenBreakers(known=False)
    told = [text for text in texts if text is not None]
    words = [word for text in told if (word := _word(text)) is not None]
    found = [one for left_alone, _untold in words for one in left_alone if instance_id in (None, one.instance_id)]
    return OpenBreakers(
        sorted(found, key=lambda one: (one.since, one.process)),
        sorted((one for _named, one in words if one.count), key=lambda one: (-one.count, one.process)),
        max(0, unread) + len(told) - len(words),
    )


def _word(text: bytes) -> tuple[list[LeftAlone], Untold] | None:
    try:
        word = msgspec.json.decode(text, type=Word)
        left_alone = [
            LeftAlone(
                one.instance_id,
                word.process,
                _moment(one.since),
                one.why,
                None if one.trial_at is None else _moment(one.trial_at),
                _moment(one.open_until),
            )
            for one in word.left_alone
        ]
    except (msgspec.MsgspecError, OverflowError, OSError, ValueError):
        return None  # of a relay of another version
    return left_alone, Untold(word.process, word.more, word.more_asked)


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
