"""Requests a minute, counted in Valkey: one atomic script for all limits of a request, or none of them.

The window slides: never more than the limit in any 60 seconds, by Valkey's clock. Counts stand in buckets
of a second; because a bucket's requests may have come at its end, it leaves the window a second late.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from core.errors import RateLimited, StateStoreUnavailable
from gateway.relay.valkey import Argument, Reply, ValkeyClient, ValkeyRefused, ValkeyUnavailable

WINDOW_SECONDS: Final = 60

# A hash per limit: second -> count, `used` their sum, `head` the oldest second that may have one, `last`
# the newest. The time never goes back within a window: a clock set back by more than that starts anew.
_SCRIPT: Final = b"""
local time = redis.call('TIME')
local now = tonumber(time[1])
local window = tonumber(ARGV[1])
local results, refused = {}, 0
local seconds = {}
for i, key in ipairs(KEYS) do
  local limit = tonumber(ARGV[i + 1])
  local state = redis.call('HMGET', key, 'used', 'head', 'last')
  local used, head, last = tonumber(state[1]) or 0, tonumber(state[2]) or now, tonumber(state[3]) or now
  local second = now
  if last > now then
    if last - now > window then
      redis.call('DEL', key)
      used, head = 0, now
    else
      second = last
    end
  end
  local floor = second - window
  if head < floor then
    if used == 0 then
      head = floor
    end
    while head < floor do
      local count = tonumber(redis.call('HGET', key, head))
      if count then
        used = used - count
        redis.call('HDEL', key, head)
      end
      head = head + 1
    end
    redis.call('HSET', key, 'used', used, 'head', head)
  end
  seconds[i] = second
  local reset = 0
  if used + 1 > limit then
    refused = i
    local oldest = head
    while oldest < second and redis.call('HEXISTS', key, oldest) == 0 do
      oldest = oldest + 1
    end
    reset = oldest + window + 1 - second
  end
  results[2 * i] = used
  results[2 * i + 1] = reset
end
results[1] = refused
if refused == 0 then
  for i, key in ipairs(KEYS) do
    local second = seconds[i]
    redis.call('HINCRBY', key, second, 1)
    local used = redis.call('HINCRBY', key, 'used', 1)
    redis.call('HSETNX', key, 'head', second)
    redis.call('HSET', key, 'last', second)
    redis.call('EXPIRE', key, 2 * window + 1)
    results[2 * i] = used
    results[2 * i + 1] = window + 1
  end
end
return results
"""
_DIGEST: Final = hashlib.sha1(_SCRIPT, usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `requests` in any minute under the counter `name`."""

    name: str
    requests: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a limit stands after a request was counted."""

    limit: int
    used: int
    reset_seconds: int

    def headers(self) -> list[tuple[bytes, bytes]]:
        """OpenAI's header fields."""
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.limit),
            (b"x-ratelimit-remaining-requests", b"%d" % max(0, self.limit - self.used)),
            (b"x-ratelimit-reset-requests", b"%ds" % self.reset_seconds),
        ]


class RateLimiter(Protocol):
    """Counts requests against limits."""

    async def acquire(self, limits: Sequence[Limit]) -> Standing:
        """Count one request under all limits, or refuse it and count it under none.

        Returns the standing of the limit with the least left. Raises RateLimited, or StateStoreUnavailable
        when it cannot be known.
        """


class ValkeyRateLimiter:
    """The RateLimiter that all processes share. `deadline`: see ValkeyClient."""

    def __init__(self, client: ValkeyClient, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    async def acquire(self, limits: Sequence[Limit]) -> Standing:
        keys = [f"{self._prefix}rpm:{limit.name}" for limit in limits]
        arguments: tuple[Argument, ...] = (len(keys), *keys, WINDOW_SECONDS, *(limit.requests for limit in limits))
        try:
            reply = await self._run(arguments)
        except (ValkeyUnavailable, ValkeyRefused) as error:
            raise StateStoreUnavailable(retry_after_seconds=1) from error
        refused, standings = _read(reply, limits)
        if refused is not None:
            message = (
                f"Rate limit reached for requests per minute: limit {refused.limit}, used {refused.used}, "
                f"reset in {refused.reset_seconds} s."
            )
            raise RateLimited(message, retry_after_seconds=refused.reset_seconds, headers=tuple(refused.headers()))
        return min(standings, key=lambda standing: standing.limit - standing.used)

    async def _run(self, arguments: tuple[Argument, ...]) -> Reply:
        try:
            return await self._client.call("EVALSHA", _DIGEST, *arguments)
        except ValkeyRefused as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return await self._client.call("EVAL", _SCRIPT, *arguments)


def _read(reply: Reply, limits: Sequence[Limit]) -> tuple[Standing | None, list[Standing]]:
    assert isinstance(reply, list)
    numbers = [item for item in reply if isinstance(item, int)]
    standings = [
        Standing(limit.requests, used=numbers[1 + 2 * i], reset_seconds=numbers[2 + 2 * i])
        for i, limit in enumerate(limits)
    ]
    refused = numbers[0]
    return (standings[refused - 1] if refused else None), standings
