"""Tells people which instances this process keeps requests away from, since when and why; beside the metrics.

In Valkey, a word for each process, which is gone soon after the process is. It is written when it changes, and renewed
while it says anything; no request waits for it.

- `{prefix}breakers:{process}`: the word, JSON; expires after LAPSE_SECONDS.
- `{prefix}breakers`, sorted set: process -> when it wrote, by its own clock. May name some that are gone.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec
import structlog

from core.clock import Clock
from gateway.policies.breaker import Breaker, BreakerState, Opened, trial_at
from gateway.relay.picker import Balancer
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable

logger = structlog.get_logger(__name__)

INDEX: Final = "breakers"
EVERY_SECONDS: Final = 1.0
RENEW_SECONDS: Final = 5.0
LAPSE_SECONDS: Final = 15
MOST_TOLD: Final = 200
"""Of one process, one by one; of more it is told how many they are."""

UNASKED_SECONDS: Final = 15.0
"""Whoever has been open for so much longer than its time has had no request that could be its trial."""

LASTING_SECONDS: Final = 15.0
"""Who is left alone for less may just be restarting."""

_FORGET_SECONDS: Final = 3600
_CALL_DEADLINE_SECONDS: Final = 1.0


class LeftAlone(msgspec.Struct, frozen=True):
    """One instance; times in seconds since the epoch."""

    instance_id: UUID
    since: float  # the first time, however often it was tried since
    why: Opened  # the last time
    trial_at: float | None  # from when on a request is sent as a trial; None: one is under way
    open_until: float  # when it would be if others could be asked meanwhile: the same or later


class Word(msgspec.Struct, frozen=True):
    """What one process tells."""

    process: str  # door, host and process id
    left_alone: list[LeftAlone]
    more: int = 0  # further ones that it leaves alone
    more_asked: int = 0  # of those, so many that have been left alone for LASTING_SECONDS, and are tried still


class BreakerBoard:
    """The word of one process; `process_id` is of this start of it alone, `now` in seconds since the epoch."""

    def __init__(
        self,
        balancer: Balancer,
        client: ValkeyClient,
        *,
        prefix: str,
        process_id: UUID,
        door: str,
        clock: Clock,
        now: Callable[[], float],
    ) -> None:
        self._balancer = balancer
        self._client = client
        self._index, self._name = prefix + INDEX, process_id.hex
        self._key = f"{self._index}:{self._name}"
        self._process = f"{door} {socket.gethostname()}:{os.getpid()}"
        self._clock = clock
        self._now = now
        self._ahead = now() - clock.monotonic()
        self._since: dict[UUID, float] = {}
        self._told = Word(self._process, [])
        self._told_at = clock.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        complained = False
        while True:
            try:
                await self.tell()
                complained = False
            except (ValkeyUnavailable, ValkeyRefused) as error:
                if not complained:
                    logger.warning("breakers_not_told", error=str(error))
                complained = True
            await asyncio.sleep(EVERY_SECONDS)

    async def tell(self) -> None:
        """Once, where there is something new to tell, or to renew. Raises ValkeyUnavailable or ValkeyRefused."""
        word, now = self._look(), self._clock.monotonic()
        if word == self._told and not (word.left_alone and now - self._told_at >= RENEW_SECONDS):
            return
        if word.left_alone:
            wall = int(self._now())
            replies = await self._client.pipeline(
                [
                    ("SET", self._key, msgspec.json.encode(word), "EX", LAPSE_SECONDS),
                    ("ZADD", self._index, wall, self._name),
                    ("ZREMRANGEBYSCORE", self._index, "-inf", wall - _FORGET_SECONDS),
                ],
                deadline_seconds=_CALL_DEADLINE_SECONDS,
            )
        else:
            replies = await self._client.pipeline(
                [("DEL", self._key), ("ZREM", self._index, self._name)], deadline_seconds=_CALL_DEADLINE_SECONDS
            )
        for reply in replies:
            if isinstance(reply, ValkeyRefused):
                raise reply
        self._told, self._told_at = word, now

    def _look(self) -> Word:
        """The longest left alone first. Where they are too many, without those that nobody asks for."""
        breakers = {key: one for key, one in self._balancer.breakers().items() if one.state is not BreakerState.CLOSED}
        self._since = {key: self._since.get(key, one.opened_at + self._ahead) for key, one in breakers.items()}
        lonely = self._balancer.lonely()
        told = [self._left_alone(key, one, lonely=key in lonely) for key, one in breakers.items()]
        lasting = 0
        if len(told) > MOST_TOLD:
            now = self._clock.monotonic() + self._ahead
            lately = now - UNASKED_SECONDS
            unasked = {one.instance_id for one in told if one.trial_at is not None and one.open_until <= lately}
            told.sort(key=lambda one: (one.instance_id in unasked, one.since))
            begun = now - LASTING_SECONDS
            lasting = sum(one.since < begun and one.instance_id not in unasked for one in told)
        return Word(
            self._process,
            sorted(told[:MOST_TOLD], key=lambda one: one.since),
            more=max(0, len(told) - MOST_TOLD),
            more_asked=max(0, lasting - MOST_TOLD),
        )

    def _left_alone(self, instance_id: UUID, breaker: Breaker, *, lonely: bool) -> LeftAlone:
        tried = trial_at(breaker, lonely=lonely) + self._ahead
        return LeftAlone(
            instance_id,
            since=self._since[instance_id],
            why=breaker.why,
            trial_at=tried if breaker.state is BreakerState.OPEN else None,
            open_until=trial_at(breaker) + self._ahead,
        )
