"""Where the leader puts frames, and who watches is written: Valkey, or this process alone where there is none.

The leader's side blocks and is used from its thread. Every write carries the leader's fence: once a newer leader
has written, an older one's frames are refused, however late it notices that it leads no more.
"""

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import Final, Protocol

import redis

from dashboard.live.ring import Frame
from dashboard.live.topics import Topic, parse_topic

_FENCE_SECONDS: Final = 90
"""How long a leader's fence outlives its last frame: after that a store that was set back may lead again."""

WATCH_SECONDS: Final = 15
"""How long an announcement counts; processes repeat theirs each third of it."""

_DEADLINE_SECONDS: Final = 1.0
_RING_LIMIT: Final = 600

# KEYS fence, keyframe, ring; ARGV fence, record, kind (k, d or t), milliseconds, longest ring, channel, fence's seconds
_PUBLISH: Final = """
local held = redis.call('GET', KEYS[1])
if held and tonumber(held) > tonumber(ARGV[1]) then return 'superseded' end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[7])
if ARGV[3] == 'k' then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
  redis.call('DEL', KEYS[3])
elseif ARGV[3] == 'd' then
  if redis.call('PEXPIRE', KEYS[2], ARGV[4]) == 0 then return 'keyframe' end
  if redis.call('LLEN', KEYS[3]) >= tonumber(ARGV[5]) then return 'keyframe' end
  redis.call('RPUSH', KEYS[3], ARGV[2])
  redis.call('PEXPIRE', KEYS[3], ARGV[4])
end
redis.call('PUBLISH', ARGV[6], ARGV[2])
return 'published'
"""
# By the server's clock, which all share. KEYS watchers; ARGV seconds, topics
ANNOUNCE: Final = """
local now = tonumber(redis.call('TIME')[1])
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return #ARGV - 1
"""
# KEYS watchers
_WATCHED: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
return redis.call('ZRANGE', KEYS[1], 0, -1)
"""


class Published(Enum):
    """What became of a frame that the leader put there."""

    PUBLISHED = "published"
    KEYFRAME = "keyframe"  # there is none before this delta (any longer): send one
    SUPERSEDED = "superseded"  # somebody newer leads


class BoardUnavailable(Exception):
    """The board does not answer; whether the frame came through is not known."""


class Board(Protocol):
    """The leader's side."""

    def watched(self) -> Collection[Topic]:
        """What anybody watches. Raises BoardUnavailable."""

    def publish(self, topic: Topic, frame: Frame, *, kept_seconds: float) -> Published:
        """Put a frame where viewers' processes find it, for so long: then it is too old to begin with.

        Raises BoardUnavailable.
        """

    def close(self) -> None:
        """Let go of connections."""


class Keys:
    """The names of everything in Valkey."""

    def __init__(self, prefix: str) -> None:
        self.prefix = f"{prefix}live:"
        self.fence = f"{self.prefix}fence"
        self.watchers = f"{self.prefix}watchers"

    def keyframe(self, topic: Topic) -> str:
        return f"{self.prefix}keyframe:{topic}"

    def ring(self, topic: Topic) -> str:
        return f"{self.prefix}ring:{topic}"

    def frames(self, topic: Topic) -> str:
        """The pub/sub channel."""
        return f"{self.prefix}frames:{topic}"

    def topic(self, channel: str) -> Topic:
        """Whose frames come over the pub/sub channel."""
        return parse_topic(channel.removeprefix(f"{self.prefix}frames:"))


class ValkeyBoard:
    """Everything expires by itself: a Valkey that is emptied or restarted is filled again within seconds."""

    def __init__(self, url: str, *, prefix: str) -> None:
        self._keys = Keys(prefix)
        self._client = redis.Redis.from_url(
            url, socket_timeout=_DEADLINE_SECONDS, socket_connect_timeout=_DEADLINE_SECONDS
        )
        self._publish = self._client.register_script(_PUBLISH)
        self._watched = self._client.register_script(_WATCHED)

    def watched(self) -> Collection[Topic]:
        try:
            return [parse_topic(name.decode()) for name in self._watched([self._keys.watchers])]
        except redis.RedisError as error:
            raise BoardUnavailable(str(error)) from error

    def publish(self, topic: Topic, frame: Frame, *, kept_seconds: float) -> Published:
        kind = "t" if frame.trouble else "k" if frame.key else "d"
        keys = [self._keys.fence, self._keys.keyframe(topic), self._keys.ring(topic)]
        kept = round(1000 * kept_seconds)
        arguments: list[bytes | str | int] = [frame.fence, frame.pack(), kind, kept, _RING_LIMIT]
        arguments += [self._keys.frames(topic), _FENCE_SECONDS]
        try:
            return Published(self._publish(keys, arguments).decode())
        except redis.RedisError as error:
            raise BoardUnavailable(str(error)) from error

    def close(self) -> None:
        self._client.close()


class LocalBoard:
    """Without Valkey: what this process's own viewers watch, and frames handed to them directly."""

    def __init__(self, watched: Mapping[Topic, object], take: Callable[[Topic, Frame], None]) -> None:
        """`watched` is another's and changes meanwhile: what it has for a topic that was left and is watched again is
        another object. `take` is called from the leader's thread.
        """
        self._watched = watched
        self._take = take
        self._begun: dict[Topic, object] = {}

    def watched(self) -> Collection[Topic]:
        topics = list(self._watched)
        self._begun = {topic: self._begun[topic] for topic in topics if topic in self._begun}
        return topics

    def publish(self, topic: Topic, frame: Frame, *, kept_seconds: float) -> Published:
        watched = self._watched.get(topic)
        if frame.key:
            self._begun[topic] = watched
        elif not frame.trouble and self._begun.get(topic) is not watched:
            return Published.KEYFRAME  # nothing is kept here: who has come since the last one has none
        self._take(topic, frame)
        return Published.PUBLISHED

    def close(self) -> None:
        pass
