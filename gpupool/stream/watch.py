"""One poll of the epochs for all streams of a web process: wakes those whose node's desired state changed."""

import asyncio
from typing import Final
from uuid import UUID

import structlog
from channels.db import database_sync_to_async
from django.db import Error

from core.epochs import Section, current_epoch, read_changes

logger = structlog.get_logger(__name__)

POLL_SECONDS: Final = 0.25
_BATCH: Final = 500


class DesiredWatch:
    """Runs while anybody is subscribed. Belongs to one event loop."""

    def __init__(self, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._poll_seconds = poll_seconds
        self._wakers: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, node_id: UUID) -> asyncio.Event:
        """An event that is set on every change from now on; clear it before reading the desired state."""
        waker = asyncio.Event()
        self._wakers.setdefault(node_id, set()).add(waker)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="desired-watch")
        return waker

    def unsubscribe(self, node_id: UUID, waker: asyncio.Event) -> None:
        wakers = self._wakers.get(node_id, set())
        wakers.discard(waker)
        if not wakers:
            self._wakers.pop(node_id, None)
        if not self._wakers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        epoch: int | None = None
        blind = False
        while True:
            try:
                epoch = await self._poll(epoch)
                blind = False
            except Error as error:
                # Away for a moment: agents keep what they were told last, and hear the rest when it is back.
                if not blind:
                    logger.warning("desired_watch_failed", error=str(error))
                blind = True
            await asyncio.sleep(self._poll_seconds)

    async def _poll(self, epoch: int | None) -> int:
        newest, changed = await database_sync_to_async(_read)(epoch)
        if changed is None:
            for wakers in self._wakers.values():
                for waker in wakers:
                    waker.set()
        for node_id in changed or ():
            for waker in self._wakers.get(node_id, ()):
                waker.set()
        return newest


def _read(epoch: int | None) -> tuple[int, set[UUID] | None]:
    """The newest epoch read and the nodes changed since; None for the nodes when that cannot be told."""
    newest = current_epoch(Section.DESIRED)
    if epoch is None or newest < epoch:
        return newest, None
    if newest == epoch:
        return epoch, set()
    changes = read_changes(Section.DESIRED, after=epoch, limit=_BATCH)
    if changes is None:
        return newest, None
    return (changes[-1].epoch if changes else epoch), {change.object_id for change in changes}


_watches: dict[asyncio.AbstractEventLoop, DesiredWatch] = {}


def shared_watch() -> DesiredWatch:
    """The watch of the running event loop."""
    loop = asyncio.get_running_loop()
    for other in [known for known in _watches if known.is_closed()]:
        del _watches[other]
    return _watches.setdefault(loop, DesiredWatch())
