"""Asks in batches who is behind the sockets: at connect, every few seconds for all of them, and at every hint."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, InterfaceError, connection

from dashboard.live.base import Viewer
from dashboard.live.viewers import Ended, read_viewers

RECHECK_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 0.1  # between two rechecks, however many hints come

log = structlog.get_logger(__name__)
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="live-people")
"""Not the thread of pages: a slow page must keep nobody's socket open."""


class People:
    """Runs until cancelled. Whoever connects at the same time is looked up together."""

    def __init__(
        self,
        sessions: Callable[[], Collection[str]],
        tell: Callable[[Mapping[str, Viewer | Ended]], None],
        *,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        """`sessions` are those of all open sockets, `tell` gets what was found of them."""
        self._sessions = sessions
        self._tell = tell
        self._recheck_seconds = recheck_seconds
        self._hinted = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Viewer | Ended]] = {}
        self._answering: asyncio.Task[None] | None = None

    async def admit(self, session_key: str) -> Viewer | Ended:
        """Who is behind a session. Raises DatabaseError or InterfaceError."""
        waiting = self._waiting.get(session_key)
        if waiting is None:
            waiting = self._waiting[session_key] = asyncio.get_running_loop().create_future()
            if self._answering is None or self._answering.done():
                self._answering = asyncio.create_task(self._answer(), name="live-admit")
        return await asyncio.shield(waiting)

    def hint(self) -> None:
        """Somebody's rights may have changed: look now."""
        self._hinted.set()

    async def run(self) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(self._recheck_seconds):
                        await self._hinted.wait()
                except TimeoutError:
                    pass
                self._hinted.clear()
                if sessions := set(self._sessions()):
                    try:
                        self._tell(await _read(sessions))
                    except (DatabaseError, InterfaceError) as error:
                        # What cannot be asked is asked again; frames come from the same database.
                        log.warning("live_recheck_failed", error=str(error))
                await asyncio.sleep(min(_LEAST_SECONDS, self._recheck_seconds))
        finally:
            _thread.submit(connection.close)

    async def _answer(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                found = await _read(waiting.keys())
            except (DatabaseError, InterfaceError) as error:
                for future in waiting.values():
                    future.set_exception(error)
                    future.exception()  # whoever asked may have left
                continue
            for key, future in waiting.items():
                future.set_result(found[key])


async def _read(session_keys: Collection[str]) -> Mapping[str, Viewer | Ended]:
    read = DatabaseSyncToAsync(read_viewers, thread_sensitive=False, executor=_thread)
    return await read(list(session_keys))
