"""A web process's one subscription to Valkey for all that its viewers watch; tells the leader what that is."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection
from typing import Any, Final

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from core.bus import epoch_channel
from core.ending import end_tasks
from dashboard.live.board import ANNOUNCE, WATCH_SECONDS, Keys
from dashboard.live.ring import Frame, unpack
from dashboard.live.topics import Topic

_DEADLINE_SECONDS: Final = 2.0
_SILENCE_SECONDS: Final = 5.0  # then it is asked whether it is still there
_RETRY_SECONDS: Final = 0.5
_JITTER_SECONDS: Final = 0.5

log = structlog.get_logger(__name__)

Take = Callable[[Topic, Frame], None]
Load = Callable[[Topic, Frame | None, list[Frame]], None]


class Follower:
    """Runs until cancelled. `take` and `load` get frames, `hint` sections that changed, `away` that it is lost."""

    def __init__(
        self, url: str, *, prefix: str, take: Take, load: Load, hint: Callable[[str], None], away: Callable[[], None]
    ) -> None:
        self._url = url
        self._keys = Keys(prefix)
        self._take = take
        self._load = load
        self._hint = hint
        self._away = away
        self._wanted: set[Topic] = set()
        self._changed = asyncio.Event()
        self._loading: dict[Topic, asyncio.Task[None]] = {}
        self._client_now: Any = None
        self._subscribed: set[Topic] = set()

    def follow(self, topic: Topic) -> None:
        self._wanted.add(topic)
        self._changed.set()
        if topic in self._subscribed and self._client_now is not None:  # left and wanted again within a moment
            self._load_soon(self._client_now, topic, at_once=True)

    def unfollow(self, topic: Topic) -> None:
        self._wanted.discard(topic)
        self._changed.set()

    async def run(self) -> None:
        away = False
        while True:
            _end_if_cancelled()
            try:
                async with self._client() as client, client.pubsub() as pubsub:
                    await pubsub.subscribe(epoch_channel())
                    _end_if_cancelled()
                    away = False
                    self._client_now = client
                    await self._serve(client, pubsub)
            except (RedisError, OSError, TimeoutError) as error:
                if not away:
                    log.warning("live_follower_away", error=str(error))
                away = True
            finally:
                self._client_now = None
                for loading in self._loading.values():
                    loading.cancel()
                self._loading.clear()
            self._away()
            # Spread out, so that a Valkey that comes back is not met by every process at once.
            await asyncio.sleep(_RETRY_SECONDS * (0.5 + random.random()))  # noqa: S311  # no secret

    def _client(self) -> Any:
        return redis.asyncio.Redis.from_url(
            self._url, socket_timeout=_DEADLINE_SECONDS, socket_connect_timeout=_DEADLINE_SECONDS
        )

    async def _serve(self, client: Any, pubsub: Any) -> None:
        tasks = [
            asyncio.create_task(self._listen(client, pubsub), name="live-listen"),
            asyncio.create_task(self._keep_in_step(client, pubsub), name="live-subscribe"),
            asyncio.create_task(self._announce_again(client), name="live-announce"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end_tasks(*tasks)

    async def _listen(self, client: Any, pubsub: Any) -> None:
        """Raises when nothing is heard: a connection may be dead without anybody having said so."""
        asked, hints = False, epoch_channel()
        while True:
            said = await pubsub.get_message(timeout=_SILENCE_SECONDS)
            if said is None:
                if asked:
                    raise TimeoutError("Valkey says nothing")
                await pubsub.ping()
                asked = True
                continue
            asked = False
            if said["type"] == "pong":
                continue
            channel = said["channel"].decode()
            if channel == hints:
                if said["type"] == "message":
                    self._hint(said["data"].decode().partition(":")[0])
            elif said["type"] == "subscribe":
                self._load_soon(client, self._keys.topic(channel), at_once=True)
            elif said["type"] == "message" and (frame := unpack(said["data"])) is not None:
                self._take(self._keys.topic(channel), frame)

    async def _keep_in_step(self, client: Any, pubsub: Any) -> None:
        """Subscribe to what is watched and to nothing else."""
        self._subscribed = set()
        while True:
            self._changed.clear()
            new, old = self._wanted - self._subscribed, self._subscribed - self._wanted
            if new:
                await self._announce(client, new)
                await pubsub.subscribe(*[self._keys.frames(topic) for topic in new])
            if old:
                await pubsub.unsubscribe(*[self._keys.frames(topic) for topic in old])
            self._subscribed = (self._subscribed | new) - old
            if self._wanted == self._subscribed:
                await self._changed.wait()

    async def _announce_again(self, client: Any) -> None:
        while True:
            await self._announce(client, self._wanted)
            await asyncio.sleep(WATCH_SECONDS / 3)

    async def _announce(self, client: Any, topics: Collection[Topic]) -> None:
        if topics:
            await client.eval(ANNOUNCE, 1, self._keys.watchers, WATCH_SECONDS, *map(str, topics))

    def reload(self, topic: Topic) -> None:
        """Read again what the leader keeps, a little later; for a topic that has a gap."""
        if self._client_now is not None:
            self._load_soon(self._client_now, topic)

    def _load_soon(self, client: Any, topic: Topic, *, at_once: bool = False) -> None:
        if topic in self._loading and not self._loading[topic].done():
            return
        loading = self._loading[topic] = asyncio.create_task(self._load_from(client, topic, at_once=at_once))
        loading.add_done_callback(lambda done: self._forget_loading(topic, done))

    def _forget_loading(self, topic: Topic, done: "asyncio.Task[None]") -> None:
        if self._loading.get(topic) is done:
            del self._loading[topic]

    async def _load_from(self, client: Any, topic: Topic, *, at_once: bool) -> None:
        if not at_once:
            await asyncio.sleep(random.random() * _JITTER_SECONDS)  # noqa: S311  # no secret
        with contextlib.suppress(RedisError, OSError):  # who listens finds out, too
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.get(self._keys.keyframe(topic))
                pipeline.lrange(self._keys.ring(topic), 0, -1)
                record, records = await pipeline.execute()
            keyframe = unpack(record) if record else None
            frames = [frame for kept in records if (frame := unpack(kept)) is not None]
            self._load(topic, keyframe, frames)


def _end_if_cancelled() -> None:
    """For what the client makes of a cancellation that comes while it connects: nothing, or a time-out."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
