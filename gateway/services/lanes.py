"""A few threads with a database connection each, so that no database ever holds an event loop.

A call that is not through within its deadline is given up, its connection with it: nothing is ever held longer than
that by what it reads or keeps.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import DatabaseError, DataError, InterfaceError, connection, transaction

from core.errors import GatehouseError

T = TypeVar("T")
Unavailable = Callable[[], GatehouseError]
"""The error that is raised for a database that is away, or too slow."""


class _Lane:
    """One thread, and the connection that it has."""

    def __init__(self, name: str, unavailable: Unavailable) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._unavailable = unavailable
        self.socket: int | None = None
        self.abandoned = False  # nobody waits for what it does: it must not commit

    def interrupt(self) -> None:
        """From any thread: make a call that hangs fail. A frozen server never answers; only this ends the wait."""
        self.abandoned = True
        descriptor = self.socket
        if descriptor is None:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def working(self, deadline_seconds: float, *, read_only: bool) -> Iterator[None]:
        """One transaction on this thread's connection, which is given up when anything is wrong with it."""
        try:
            connection.close_if_unusable_or_obsolete()
            connection.close_if_health_check_failed()  # a call is rare, and a lost answer dearer than a round trip
            connection.ensure_connection()
            self.socket = connection.connection.pgconn.socket
            with transaction.atomic():
                with connection.cursor() as cursor:
                    if read_only:
                        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    cursor.execute(f"SET LOCAL statement_timeout = {int(deadline_seconds * 1000)}")
                yield
                if self.abandoned:
                    raise self._unavailable()
        except DataError as error:
            # Its first line alone: in the others the server quotes what was written, and this is logged.
            raise ValueError(str(error).strip().partition("\n")[0]) from error
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        except (DatabaseError, InterfaceError) as error:
            self.close()
            raise self._unavailable() from error

    def close(self) -> None:
        self.socket = None
        connection.close()


class DatabaseLanes:
    """Runs calls on `count` such threads; used on one event loop. `name` is for the threads' names."""

    def __init__(self, name: str, *, count: int, deadline_seconds: float, unavailable: Unavailable) -> None:
        self._deadline_seconds = deadline_seconds
        self._unavailable = unavailable
        self._lanes = [_Lane(f"{name}-{number}", unavailable) for number in range(count)]
        self._idle: asyncio.LifoQueue[_Lane] = asyncio.LifoQueue()  # the last one used first: few connections
        for lane in self._lanes:
            self._idle.put_nowait(lane)

    async def call(self, call: Callable[[], T], *, read_only: bool) -> T:
        """`call` in a transaction on an idle thread, within the deadline; waiting for the thread counts.

        Raises what `unavailable` makes, and ValueError for what the database cannot keep.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._deadline_seconds

        def work() -> T:
            with lane.working(self._deadline_seconds, read_only=read_only):
                return call()

        try:
            lane = await asyncio.wait_for(self._idle.get(), self._deadline_seconds)
        except TimeoutError:
            raise self._unavailable() from None
        lane.abandoned = False
        done = lane.thread.submit(work)
        future = asyncio.wrap_future(done)
        future.add_done_callback(lambda _: self._idle.put_nowait(lane))
        try:
            return await asyncio.wait_for(asyncio.shield(future), max(0.0, ends_at - loop.time()))
        except TimeoutError:
            if future.done():  # just now, and its thread may be another's by now
                return future.result()
            lane.interrupt()
            future.add_done_callback(_seen)
            raise self._unavailable() from None
        except asyncio.CancelledError:
            future.add_done_callback(_seen)  # the client left: what it does is soon through
            raise

    async def aclose(self) -> None:
        """End all calls and give the connections up."""
        loop = asyncio.get_running_loop()
        for lane in self._lanes:
            lane.interrupt()
        for lane in self._lanes:
            await loop.run_in_executor(lane.thread, lane.close)
            lane.thread.shutdown(wait=False)


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
