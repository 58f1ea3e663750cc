"""What a web process's sockets share: one ring a topic, one follower of the board, one look at who they are.

Belongs to one event loop. Begins with the first socket and ends a while after the last one.
"""

import asyncio
import contextlib
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

import structlog
from django.conf import settings

from core import bus
from core.ending import end_tasks
from dashboard.live.base import Feed, Viewer, tenant_of
from dashboard.live.board import Board, LocalBoard, ValkeyBoard
from dashboard.live.connections import UNKNOWN_STANDING, Connection, Subscription, Watched
from dashboard.live.follower import Follower
from dashboard.live.leader import Leader
from dashboard.live.people import RECHECK_SECONDS, People
from dashboard.live.registry import feed_named
from dashboard.live.ring import Frame, Taken
from dashboard.live.topics import Topic
from dashboard.live.viewers import Ended, why_denied
from gpupool.leases.base import LeaseStore
from gpupool.leases.default import shared_store

LINGER_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 1.0
_RESTART_SECONDS: Final = 1.0
_MOST_OF_A_SESSION: Final = 256
_FORGET_SECONDS: Final = 20.0
"""A ring that takes nothing for so long, though frames come, is behind a store that was set back: it starts anew."""

log = structlog.get_logger(__name__)


class Hub:
    def __init__(
        self,
        *,
        url: str | None,
        prefix: str,
        feeds: Callable[[str], Feed | None] = feed_named,
        store: Callable[[], LeaseStore] = shared_store,
        recheck_seconds: float = RECHECK_SECONDS,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        """`url` is Valkey's; without one this process publishes to itself."""
        self._url = url
        self._prefix = prefix
        self._feeds = feeds
        self._store = store
        self._linger_seconds = linger_seconds
        self._loop = asyncio.get_running_loop()
        self._watched: dict[Topic, Watched] = {}
        self._connections: set[Connection] = set()
        self._people = People(
            lambda: {connection.session_key for connection in self._connections},
            self._told_people,
            self._blind,
            recheck_seconds=recheck_seconds,
        )
        self._follower: Follower | None = None
        self._task: asyncio.Task[None] | None = None

    # Sockets

    async def admit(self, session_key: str) -> Viewer | Ended:
        """Who is behind a session. Raises DatabaseError, InterfaceError or TimeoutError."""
        return await self._people.admit(session_key)

    def has_room(self, session_key: str) -> bool:
        """Whether the session may have one socket more."""
        held = sum(connection.session_key == session_key for connection in self._connections)
        return held < _MOST_OF_A_SESSION

    def join(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live-hub")

    def leave(self, connection: Connection) -> None:
        for number in list(connection.subscriptions):
            self.unsubscribe(connection, number)
        self._connections.discard(connection)

    def subscribe(self, connection: Connection, number: int, topic: Topic) -> Feed | str:
        """The feed that is watched from now on, or the word for why it is not: see dashboard/strings.py."""
        feed = self._feeds(topic.channel)
        if feed is None:
            return "unknown"
        if not may_watch(feed, connection.viewer, topic.scope):
            return why_denied(connection.viewer, topic.scope)
        self.unsubscribe(connection, number)
        watched = self._watched.get(topic)
        if watched is None:
            watched = self._watched[topic] = Watched(topic, feed, news_at=self._loop.time())
            if self._follower is not None:
                self._follower.follow(topic)
        subscription = Subscription(connection, number, watched, troubles=watched.troubles - bool(watched.trouble))
        connection.subscriptions[number] = subscription
        watched.viewers.add(subscription)
        connection.wake.set()
        return feed

    def unsubscribe(self, connection: Connection, number: int) -> None:
        subscription = connection.subscriptions.pop(number, None)
        if subscription is None:
            return
        watched = subscription.watched
        watched.viewers.discard(subscription)
        if not watched.viewers:
            del self._watched[watched.topic]
            if self._follower is not None:
                self._follower.unfollow(watched.topic)

    # Frames

    def take(self, topic: Topic, frame: Frame) -> None:
        """A frame has come."""
        watched = self._watched.get(topic)
        if watched is None:
            return
        if frame.trouble:
            watched.tell_trouble(str(frame.payload))
            return
        match watched.ring.take(frame):
            case Taken.NEWS:
                self._show_news(watched)
            case Taken.GAP:
                self._reread(watched)
            case Taken.OLD if self._is_behind(watched, frame):
                self._reread(watched)

    def load(self, topic: Topic, keyframe: Frame | None, deltas: list[Frame]) -> None:
        """What the leader keeps was read."""
        watched = self._watched.get(topic)
        if watched is not None and watched.ring.load(keyframe, deltas):
            self._show_news(watched)

    def _show_news(self, watched: Watched) -> None:
        watched.trouble = ""
        watched.news_at = self._loop.time()
        watched.wake_viewers()

    def _is_behind(self, watched: Watched, frame: Frame) -> bool:
        """Whether what is old comes from another order than ours, and not just a second time."""
        fence = watched.ring.position[0] if watched.ring.position is not None else 0
        return frame.fence < fence or self._loop.time() - watched.news_at > _FORGET_SECONDS

    def _reread(self, watched: Watched) -> None:
        if self._loop.time() - watched.news_at > _FORGET_SECONDS:
            watched.ring.forget()
            watched.news_at = self._loop.time()
        if self._follower is not None:
            self._follower.reload(watched.topic)

    def _lost_board(self) -> None:
        for watched in self._watched.values():
            watched.tell_trouble("board")

    # People

    def _hint(self, section: str) -> None:
        if section == bus.PEOPLE:
            self._people.hint()

    def _told_people(self, found: Mapping[str, Viewer | Ended]) -> None:
        for connection in list(self._connections):
            viewer = found.get(connection.session_key)
            if isinstance(viewer, Ended):
                connection.end(viewer.reason)
            elif viewer is not None and viewer != connection.viewer:
                connection.viewer = viewer
                for subscription in connection.subscriptions.values():
                    watched = subscription.watched
                    if not may_watch(watched.feed, viewer, watched.topic.scope):
                        connection.end(why_denied(viewer, watched.topic.scope))

    def _blind(self) -> None:
        """Nobody knows who may watch any longer: pages come back once somebody does."""
        for connection in self._connections:
            connection.end(UNKNOWN_STANDING)

    # Running

    async def close(self) -> None:
        """Let go of everything; sockets get nothing more."""
        if self._task is not None:
            await end_tasks(self._task)

    async def _run(self) -> None:
        """While there are sockets, and a while longer: somebody reloads a page."""
        bus.listen(self._hint_from_thread)
        # Beside the rest: what goes wrong there again and again must keep nobody's rights from being looked at.
        looking = asyncio.create_task(self._people.run(), name="live-people")
        try:
            while True:
                try:
                    await self._serve()
                except Exception:
                    # A mistake of ours must not leave pages without frames for ever.
                    log.exception("live_hub_failed")
                    await asyncio.sleep(_RESTART_SECONDS)
                if not self._connections:
                    return
        finally:
            looking.cancel()  # not waited for: who joins now must find that this has ended
            bus.stop_listening(self._hint_from_thread)

    async def _serve(self) -> None:
        parts: list[Coroutine[None, None, None]] = []
        if self._url is None:
            board: Board = LocalBoard(self._watched, self._take_from_thread)
            parts.append(Leader(board, self._feeds, store=None).run())
        else:
            board = ValkeyBoard(self._url, prefix=self._prefix)
            self._follower = Follower(
                self._url,
                prefix=self._prefix,
                take=self.take,
                load=self.load,
                hint=self._hint,
                away=self._lost_board,
            )
            for topic in self._watched:
                self._follower.follow(topic)
            parts += [self._follower.run(), Leader(board, self._feeds, store=self._store).run()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            needed_at = self._loop.time()
            while self._loop.time() - needed_at < self._linger_seconds:
                done, _ = await asyncio.wait(tasks, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if self._connections:
                    needed_at = self._loop.time()
        finally:
            self._follower = None
            await end_tasks(*tasks)
            self._lost_board()

    def _hint_from_thread(self, section: str) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._hint, section)

    def _take_from_thread(self, topic: Topic, frame: Frame) -> None:
        self._loop.call_soon_threadsafe(self.take, topic, frame)


def may_watch(feed: Feed, viewer: Viewer, scope: str) -> bool:
    """Whether the feed lets the viewer watch; whatever the feed says, a tenant's scope is for its members alone
    and for those who may read the platform."""
    slug = tenant_of(scope)
    if slug is not None and not viewer.reads_platform and (slug not in viewer.roles or slug in viewer.suspended):
        return False
    return feed.may_watch(viewer, scope)


_hubs: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub]" = weakref.WeakKeyDictionary()


def shared_hub() -> Hub:
    """The hub of the running event loop: one in a web process."""
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        hub = _hubs[loop] = Hub(url=settings.GATEHOUSE.valkey_scratch_url, prefix=settings.GATEHOUSE.valkey_prefix)
    return hub


async def close_shared_hub() -> None:
    """Close the running event loop's hub, if it has one; the web process does it when it ends."""
    hub = _hubs.pop(asyncio.get_running_loop(), None)
    if hub is not None:
        await hub.close()
