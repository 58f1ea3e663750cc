"""Asks in batches who is behind the sockets: at connect, every few seconds for all of them, and at every hint."""

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError, InterfaceError, connection

from dashboard.live.base import Viewer
from dashboard.live.viewers import SIGNED_OUT, Ended, read_viewers

RECHECK_SECONDS: Final = 5.0
_LEAST_SECONDS: Final = 0.1  # between two rechecks, however many hints come
BLIND_SECONDS: Final = 30.0
"""How long sockets stay while nobody can say whether their people may still watch."""

_ADMIT_SECONDS: Final = 10.0
_KEY: Final = re.compile("[a-z0-9]{8,40}")
"""What is a session's key; a cookie may hold anything, and one that the database refuses would spoil the batch."""

log = structlog.get_logger(__name__)
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="live-people")
"""Not the thread of pages: a slow page must keep nobody's socket open."""


Found = Mapping[str, Viewer | Ended]


class People:
    """Runs until cancelled. Whoever connects at the same time is looked up together."""

    def __init__(
        self,
        sessions: Callable[[], Collection[str]],
        tell: Callable[[Mapping[str, Viewer | Ended]], None],
        blind: Callable[[], None],
        *,
        recheck_seconds: float = RECHECK_SECONDS,
    ) -> None:
        """`sessions` are those of all open sockets, `tell` gets what was found of them, `blind` is for when it is not
        known for too long.
        """
        self._sessions = sessions
        self._tell = tell
        self._blind = blind
        self._recheck_seconds = recheck_seconds
        self._hinted = asyncio.Event()
        self._waiting: dict[str, asyncio.Future[Viewer | Ended]] = {}
        self._answering: asyncio.Task[None] | None = None

    async def admit(self, session_key: str) -> Viewer | Ended:
        """Who is behind a session. Raises DatabaseError, InterfaceError or TimeoutError."""
        waiting = self._waiting.get(session_key)
        if waiting is None:
            waiting = self._waiting[session_key] = asyncio.get_running_loop().create_future()
            if self._answering is None or self._answering.done():
                self._answering = asyncio.create_task(self._answer(), name="live-admit")
        async with asyncio.timeout(_ADMIT_SECONDS):
            return await asyncio.shield(waiting)

    def hint(self) -> None:
        """Somebody's rights may have changed: look now."""
        self._hinted.set()

    async def run(self) -> None:
        """Begins when all sockets there are were admitted just now."""
        now = asyncio.get_running_loop().time
        known_at = now()
        try:
            while True:
                try:
                    async with asyncio.timeout(self._recheck_seconds):
                        await self._hinted.wait()
                except TimeoutError:
                    pass
                self._hinted.clear()
                began = now()
                if await self._recheck(known_at + BLIND_SECONDS - began):
                    known_at = now()
                elif now() - known_at >= BLIND_SECONDS:
                    log.error("live_recheck_blind", seconds=round(now() - known_at))
                    self._blind()
                    known_at = now()
                # Hints may come faster than many sessions are read: others want the processor, too.
                await asyncio.sleep(max(min(_LEAST_SECONDS, self._recheck_seconds), min(now() - began, 1.0)))
        finally:
            _thread.submit(connection.close)

    async def _recheck(self, seconds: float) -> bool:
        """Whether it is known who may watch; a database that hangs is waited for no longer than that."""
        sessions = set(self._sessions())
        if not sessions:
            return True
        try:
            found = await _within(max(seconds, _LEAST_SECONDS), _read(sessions))
            self._tell(found)
        except (DatabaseError, InterfaceError, TimeoutError) as error:
            # What cannot be asked is asked again; mostly frames come from the same database.
            log.warning("live_recheck_failed", error=str(error))
            return False
        except Exception:
            # As little is known then: what goes wrong each time must not keep sockets open for ever.
            log.exception("live_recheck_broken")
            return False
        return True

    async def _answer(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                found = await _read(waiting.keys())
            except Exception as error:  # noqa: BLE001  # handed on: whatever it is, nobody may wait for ever
                for future in waiting.values():
                    future.set_exception(error)
                    future.exception()  # whoever asked may have left
                continue
            for key, future in waiting.items():
                future.set_result(found[key])


async def _within(seconds: float, read: Coroutine[None, None, Found]) -> Found:
    """Raises TimeoutError. The thread is not waited for then: what hangs there takes no cancellation."""
    task = asyncio.ensure_future(read)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        raise TimeoutError("the database does not answer")
    return task.result()


async def _read(session_keys: Collection[str]) -> Found:
    keys = [key for key in session_keys if _KEY.fullmatch(key)]
    read = DatabaseSyncToAsync(read_viewers, thread_sensitive=False, executor=_thread)
    found = await read(keys) if keys else {}
    return {**dict.fromkeys(session_keys, Ended(SIGNED_OUT)), **found}
