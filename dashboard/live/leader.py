"""Which process publishes: one holds a lease in the store, reads for all, and stops itself before the lease ends.

Without a leader viewers keep what they have and are told that it is old. Without Valkey there is nobody to share
with: each process publishes to itself.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from django.db import connection

from core.clock import Clock, SystemClock
from dashboard.live.base import Feed
from dashboard.live.board import Board
from dashboard.live.publisher import Publisher
from gpupool.leases.base import LeaseStore
from gpupool.leases.fencing import Fence
from gpupool.leases.leader import LeaderLease

TTL_SECONDS: Final = 6.0
_NAME: Final = "live"
_RETRY_SECONDS: Final = 2.0
_STUCK_SECONDS: Final = 20.0
"""Longer than any one scope takes, with its statements' and the board's deadlines: the thread hangs then."""

log = structlog.get_logger(__name__)
_terms: Final = itertools.count(1)
"""Of a process that publishes to itself: what an earlier term wrote is old to a later one, whatever the clock says."""

_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="live-publisher")
"""One thread and so one database connection, whatever is watched and by however many."""


class Leader:
    """Publishes while it may. `run` goes on until cancelled."""

    def __init__(
        self, board: Board, feed_named: Callable[[str], Feed | None], *, store: Callable[[], LeaseStore] | None
    ) -> None:
        """`store` is opened for the campaign; None for a process that publishes to itself alone."""
        self._board = board
        self._feed_named = feed_named
        self._store = store
        self._clock: Clock = SystemClock()

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._run()
                except Exception:
                    # Pages go stale meanwhile; the rest of the process is none the worse.
                    log.exception("live_leader_failed")
                await asyncio.sleep(_RETRY_SECONDS)
        finally:
            # Behind whatever the thread still does.
            _thread.submit(self._let_go)

    async def _run(self) -> None:
        # Whoever leads with a thread that hangs keeps the lease from those who could publish, and says nothing.
        await asyncio.get_running_loop().run_in_executor(_thread, _nothing)
        if self._store is None:
            await self._publish(next(_terms))
            return
        identity = f"{socket.gethostname()}:{os.getpid()}"
        lease = LeaderLease(self._store(), name=_NAME, identity=identity, ttl_seconds=TTL_SECONDS, clock=self._clock)
        await lease.run(self._lead)

    async def _lead(self, fence: Fence) -> None:
        await self._publish(fence.revision)
        # Superseded, though the lease is ours: a store that was set back. It would be won again at once.
        await asyncio.sleep(_RETRY_SECONDS)

    async def _publish(self, fence: int) -> None:
        """Until it is superseded or cancelled: then not even what the thread has read already goes out.

        Raises TimeoutError when the thread hangs.
        """
        publisher = Publisher(self._board, self._feed_named, fence=fence, clock=self._clock)
        try:
            while not publisher.stopped:
                pause = await _round(publisher)
                await asyncio.sleep(pause)
        finally:
            publisher.stop()

    def _let_go(self) -> None:
        self._board.close()
        connection.close()


async def _round(publisher: Publisher) -> float:
    """One round in the thread, however long it takes while scopes get done. Raises TimeoutError where none does.

    The thread is not waited for then: what hangs there takes no cancellation.
    """
    running = asyncio.get_running_loop().run_in_executor(_thread, publisher.round)
    try:
        while True:
            before = publisher.steps
            done, _ = await asyncio.wait({running}, timeout=_STUCK_SECONDS)
            if done:
                return running.result()
            if publisher.steps == before:
                raise TimeoutError("the publisher's thread hangs")
    finally:
        running.cancel()  # what has not begun yet; whatever became of the rest, nobody asks


def _nothing() -> None:
    """What the thread does as soon as it is free."""
