"""One task a process reads the console's figures and hands them to every viewer.

Viewers cost the database nothing: with none the task ends, with a thousand it reads once a second. A viewer
that reads slowly misses frames, never queues them.
"""

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from dashboard.frames import TroubleFrame, build_console_frame, encode

PERIOD_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="console-frames")
"""One thread and so one database connection, whatever the number of viewers."""


class Subscription:
    """A viewer's place: holds the newest frame that it has not taken yet."""

    def __init__(self, leave: Callable[["Subscription"], None]) -> None:
        self._leave = leave
        self._frame: str | None = None
        self._arrived = asyncio.Event()

    def offer(self, frame: str) -> None:
        self._frame = frame
        self._arrived.set()

    async def next(self) -> str:
        """The newest frame, once there is one that was not taken before."""
        await self._arrived.wait()
        self._arrived.clear()
        assert self._frame is not None
        return self._frame

    def close(self) -> None:
        self._leave(self)


class Publisher:
    """Reads while anyone watches. `build(seq)` blocks and runs in a thread of its own."""

    def __init__(self, build: Callable[[int], str], *, period_seconds: float = PERIOD_SECONDS) -> None:
        self._build = build
        self._period_seconds = period_seconds
        self._viewers: set[Subscription] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: str | None = None
        self._sequence = 0

    def subscribe(self) -> Subscription:
        """A new viewer; it gets the newest frame at once where one is known."""
        subscription = Subscription(self._viewers.discard)
        self._viewers.add(subscription)
        if self._task is None or self._task.done():
            self._latest = None
            self._task = asyncio.create_task(self._run())
        elif self._latest is not None:
            subscription.offer(self._latest)
        return subscription

    async def _run(self) -> None:
        build = DatabaseSyncToAsync(self._build, thread_sensitive=False, executor=_thread)
        try:
            while self._viewers:
                self._sequence += 1
                try:
                    self._latest = await build(self._sequence)
                except (DatabaseError, InterfaceError) as error:
                    log.warning("console_frame_failed", error=str(error))
                    self._latest = encode(TroubleFrame(seq=self._sequence, at=timezone.now().timestamp()))
                for viewer in self._viewers:
                    viewer.offer(self._latest)
                await asyncio.sleep(self._period_seconds)
        finally:
            _thread.submit(connection.close)


def _build(sequence: int) -> str:
    return encode(build_console_frame(seq=sequence, now=timezone.now()))


_publishers: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Publisher]" = weakref.WeakKeyDictionary()


def console_publisher() -> Publisher:
    """The publisher of the running event loop: one in a web process."""
    return _publishers.setdefault(asyncio.get_running_loop(), Publisher(_build))
