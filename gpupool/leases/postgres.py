"""The lease store on PostgreSQL.

One row holds the revision; locking it orders all writes, so revisions become visible in order and a
watcher that reads events after a revision misses none. LISTEN only hints: the truth is what is read.
Leases expire by the database's clock, swept by whoever comes by, and nothing expires within one time to
live of the server's start: holders could not renew while it was down.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, assert_never

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from core.keepalive import POSTGRES_KEEPALIVE
from gpupool.leases.base import (
    Committed,
    Compacted,
    Condition,
    Conflict,
    CreatedAt,
    Delete,
    Entry,
    Event,
    Grant,
    IsAbsent,
    LeaseNotFound,
    ModifiedAt,
    Operation,
    Outcome,
    Put,
    Snapshot,
    StoreUnavailable,
    check_key,
)

_CHANNEL: Final = "gpupool_store"
_POLL_SECONDS: Final = 0.25
_EVENT_BATCH: Final = 500
_EXPIRED: Final = (
    "expires_at <= clock_timestamp() "
    "AND pg_postmaster_start_time() + make_interval(secs => ttl_seconds) <= clock_timestamp()"
)

P = ParamSpec("P")
T = TypeVar("T")


def _within_deadline(
    method: "Callable[Concatenate[PostgresStore, P], Coroutine[Any, Any, T]]",
) -> "Callable[Concatenate[PostgresStore, P], Coroutine[Any, Any, T]]":
    """Give up at the deadline, or when cancelled, at once.

    The call goes on for itself: the driver, cancelled on a network that swallows everything, still tries for
    seconds to reach the server.
    """

    @wraps(method)
    async def bounded(store: "PostgresStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = asyncio.ensure_future(method(store, *args, **kwargs))
        try:
            await asyncio.wait({call}, timeout=store._deadline_seconds)
            if call.done():
                return call.result()
        finally:
            if not call.done():
                call.cancel()
                store._given_up.add(call)
                call.add_done_callback(store._forget)
        raise StoreUnavailable(f"PostgreSQL did not answer within {store._deadline_seconds:g} s")

    return bounded


def store_conninfo(url: str, *, deadline_seconds: float) -> str:
    """The address with which a server that is gone without a word is noticed; what the address says itself counts.

    A call that was given up keeps its connection until then, and there are few: nothing is waited for any longer than
    for an answer.
    """
    try:
        said = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return url  # whoever opens it hears what is wrong with it
    noticed = {**POSTGRES_KEEPALIVE, "tcp_user_timeout": int(1000 * deadline_seconds)}
    return make_conninfo(url, **{name: value for name, value in noticed.items() if name not in said})


class PostgresStore:
    """Speaks over connections of its own, so that a slow page cannot keep a lease from being renewed.

    Open and close it on the same event loop.
    """

    def __init__(self, url: str, *, deadline_seconds: float = 2.0, poll_seconds: float = _POLL_SECONDS) -> None:
        """`url` must lead to the server itself, not to a pooler that shares sessions."""
        self._deadline_seconds = deadline_seconds
        self._poll_seconds = poll_seconds
        self._conninfo = store_conninfo(url, deadline_seconds=deadline_seconds)
        self._pool: AsyncConnectionPool[AsyncConnection[tuple[Any, ...]]] = AsyncConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=4,
            open=False,
            timeout=deadline_seconds,
            # The pool's own pause between attempts doubles for as long as these go on. Ended early, the next
            # one who asks begins anew, so that a server that was away for long is found soon after its return.
            reconnect_timeout=deadline_seconds,
            check=AsyncConnectionPool.check_connection,
            kwargs={
                "autocommit": True,
                "connect_timeout": 3,
                "application_name": "gatehouse-leases",
                "options": f"-c statement_timeout={int(deadline_seconds * 1000)}",
            },
        )
        self._opened = False
        self._given_up: set[asyncio.Future[Any]] = set()
        self._wakers: set[asyncio.Event] = set()
        self._listener: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        await self._pool.close()

    def _forget(self, call: asyncio.Future[Any]) -> None:
        self._given_up.discard(call)
        if not call.cancelled():
            call.exception()  # nobody waits for it any more

    # Reads

    @_within_deadline
    async def get(self, key: str) -> Entry | None:
        await self._sweep_if_due()
        async with self._cursor() as cursor:
            await cursor.execute(_SELECT_ENTRY + "WHERE key = %s", [check_key(key)])
            row = await cursor.fetchone()
        return None if row is None else _entry(row)

    @_within_deadline
    async def range(self, prefix: str) -> Snapshot:
        await self._sweep_if_due()
        async with self._cursor() as cursor:
            await cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                await cursor.execute("SELECT revision FROM gpupool_storerevision")
                row = await cursor.fetchone()
                await cursor.execute(
                    _SELECT_ENTRY + 'WHERE starts_with(key, %s) ORDER BY key COLLATE "C"', [check_key(prefix)]
                )
                entries = tuple(_entry(found) for found in await cursor.fetchall())
            finally:
                await cursor.execute("ROLLBACK")
        return Snapshot(0 if row is None else int(row[0]), entries)

    # Writes

    @_within_deadline
    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        keys = [check_key(operation.key) for operation in operations]
        if len(set(keys)) != len(keys):
            raise ValueError("two operations of one transaction name the same key")
        async with self._writing() as write:
            for condition in conditions:
                if not await write.holds(condition):
                    return Conflict(write.revision)
            if operations:
                await write.apply(operations)
            return Committed(write.revision)

    @_within_deadline
    async def grant(self, ttl_seconds: float) -> Grant:
        if ttl_seconds <= 0:
            raise ValueError("a time to live is positive")
        async with self._writing() as write:
            await write.cursor.execute(
                "UPDATE gpupool_storerevision SET next_lease_id = next_lease_id + 1 RETURNING next_lease_id - 1"
            )
            lease_id = int(_first(await write.cursor.fetchone()))
            await write.cursor.execute(
                "INSERT INTO gpupool_storelease (lease_id, ttl_seconds, expires_at) "
                "VALUES (%s, %s, clock_timestamp() + make_interval(secs => %s))",
                [lease_id, ttl_seconds, ttl_seconds],
            )
            return Grant(lease_id, ttl_seconds)

    @_within_deadline
    async def keep_alive(self, lease_id: int) -> Grant:
        # Without the revision's lock: renewing must not queue behind writers. An expired lease that nobody
        # has swept yet is not revived, for another may already have been told that it is over.
        async with self._cursor() as cursor:
            await cursor.execute(
                "UPDATE gpupool_storelease SET expires_at = clock_timestamp() + make_interval(secs => ttl_seconds) "  # noqa: S608
                f"WHERE lease_id = %s AND NOT ({_EXPIRED}) RETURNING ttl_seconds",
                [lease_id],
            )
            row = await cursor.fetchone()
        if row is None:
            raise LeaseNotFound(str(lease_id))
        return Grant(lease_id, float(row[0]))

    @_within_deadline
    async def revoke(self, lease_id: int) -> None:
        async with self._writing() as write:
            await write.end_leases("lease_id = %s", [lease_id])

    @_within_deadline
    async def compact(self, revision: int) -> None:
        async with self._writing() as write:
            await write.cursor.execute("DELETE FROM gpupool_storeevent WHERE revision <= %s", [revision])
            await write.cursor.execute(
                "UPDATE gpupool_storerevision "
                "SET compacted_revision = GREATEST(compacted_revision, LEAST(%s, revision))",
                [revision],
            )

    # Watching

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Event]:
        check_key(prefix)
        waker = asyncio.Event()
        self._wakers.add(waker)
        self._listen()
        try:
            position = after_revision
            while True:
                waker.clear()
                await self._sweep_if_due()
                events = await self._events(prefix, position)
                for event in events:
                    position = event.revision
                    yield event
                if not events:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_seconds):
                            await waker.wait()
        finally:
            self._wakers.discard(waker)

    @_within_deadline
    async def _events(self, prefix: str, after: int) -> list[Event]:
        """The next events, whole revisions only: a batch never ends within one."""
        async with self._cursor() as cursor:
            await cursor.execute(
                "SELECT revision, key, value FROM gpupool_storeevent "
                "WHERE revision > %s AND starts_with(key, %s) ORDER BY revision FETCH FIRST %s ROWS WITH TIES",
                [after, prefix, _EVENT_BATCH],
            )
            rows = await cursor.fetchall()
            # After the events: the other way round, a compaction in between would take some of them unnoticed.
            await cursor.execute("SELECT compacted_revision FROM gpupool_storerevision")
            row = await cursor.fetchone()
            compacted = 0 if row is None else int(row[0])
        if after < compacted:
            raise Compacted(compacted)
        events = [Event(int(r[0]), str(r[1]), None if r[2] is None else bytes(r[2])) for r in rows]
        return sorted(events, key=lambda event: (event.revision, event.key))

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._hear(), name="lease-store-hints")

    async def _hear(self) -> None:
        """Wake watchers on NOTIFY. Its connection may break at any time: they poll anyway."""
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                opened = await AsyncConnection.connect(self._conninfo, autocommit=True, connect_timeout=3)
                async with opened as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    async for _ in connection.notifies():
                        for waker in self._wakers:
                            waker.set()
            await asyncio.sleep(1.0)

    # Connections

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[AsyncCursor[tuple[Any, ...]]]:
        try:
            if not self._opened:
                await self._pool.open()
                self._opened = True
            async with self._pool.connection() as connection, connection.cursor() as cursor:
                yield cursor
        except PoolTimeout as error:
            raise StoreUnavailable(f"PostgreSQL did not answer within {self._deadline_seconds:g} s") from error
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            raise StoreUnavailable(str(error) or type(error).__name__) from error

    @asynccontextmanager
    async def _writing(self) -> "AsyncIterator[_Write]":
        async with self._cursor() as cursor, cursor.connection.transaction():
            write = await _Write.begin(cursor)
            yield write
            await write.finish()

    @_within_deadline
    async def _sweep_if_due(self) -> None:
        async with self._cursor() as cursor:
            await cursor.execute(f"SELECT EXISTS (SELECT FROM gpupool_storelease WHERE {_EXPIRED})")  # noqa: S608
            due = bool(_first(await cursor.fetchone()))
        if due:
            async with self._writing():
                pass  # beginning to write sweeps


_SELECT_ENTRY: Final = "SELECT key, value, create_revision, mod_revision, version, lease_id FROM gpupool_storeentry "


class _Write:
    """One writing transaction, under the lock of the revision's row."""

    def __init__(self, cursor: AsyncCursor[tuple[Any, ...]], revision: int) -> None:
        self.cursor = cursor
        self.revision = revision
        self._before = revision

    @classmethod
    async def begin(cls, cursor: AsyncCursor[tuple[Any, ...]]) -> "_Write":
        await cursor.execute(
            "INSERT INTO gpupool_storerevision (singleton, revision, compacted_revision, next_lease_id) "
            "VALUES (true, 0, 0, 1) ON CONFLICT DO NOTHING"
        )
        await cursor.execute("SELECT revision FROM gpupool_storerevision FOR UPDATE")
        write = cls(cursor, int(_first(await cursor.fetchone())))
        await write.end_leases(_EXPIRED, [])
        return write

    async def finish(self) -> None:
        if self.revision != self._before:
            await self.cursor.execute("UPDATE gpupool_storerevision SET revision = %s", [self.revision])
            await self.cursor.execute("SELECT pg_notify(%s, %s)", [_CHANNEL, str(self.revision)])

    async def holds(self, condition: Condition) -> bool:
        await self.cursor.execute(
            "SELECT create_revision, mod_revision FROM gpupool_storeentry WHERE key = %s", [condition.key]
        )
        row = await self.cursor.fetchone()
        match condition:
            case IsAbsent():
                return row is None
            case CreatedAt(revision=revision):
                return row is not None and row[0] == revision
            case ModifiedAt(revision=revision):
                return row is not None and row[1] == revision
            case _:
                assert_never(condition)

    async def apply(self, operations: Sequence[Operation]) -> None:
        self.revision += 1
        for operation in operations:
            match operation:
                case Put():
                    await self._put(operation)
                case Delete(key=key):
                    await self.cursor.execute("DELETE FROM gpupool_storeentry WHERE key = %s", [key])
                    if self.cursor.rowcount:
                        await self._event(key, None)
                case _:
                    assert_never(operation)

    async def end_leases(self, where: str, values: list[int]) -> None:
        """Delete the leases that `where` (text of ours) selects, with their keys, at one revision."""
        await self.cursor.execute(
            f"SELECT lease_id FROM gpupool_storelease WHERE {where} FOR UPDATE",  # noqa: S608
            values,
        )
        leases = [int(row[0]) for row in await self.cursor.fetchall()]
        if not leases:
            return
        await self.cursor.execute("DELETE FROM gpupool_storeentry WHERE lease_id = ANY(%s) RETURNING key", [leases])
        keys = sorted(str(row[0]) for row in await self.cursor.fetchall())
        if keys:
            self.revision += 1
        for key in keys:
            await self._event(key, None)
        await self.cursor.execute("DELETE FROM gpupool_storelease WHERE lease_id = ANY(%s)", [leases])

    async def _put(self, put: Put) -> None:
        if put.lease_id is not None:
            await self.cursor.execute("SELECT 1 FROM gpupool_storelease WHERE lease_id = %s FOR SHARE", [put.lease_id])
            if await self.cursor.fetchone() is None:
                raise LeaseNotFound(str(put.lease_id))
        await self.cursor.execute(
            "INSERT INTO gpupool_storeentry AS entry (key, value, create_revision, mod_revision, version, lease_id) "
            "VALUES (%s, %s, %s, %s, 1, %s) ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, "
            "mod_revision = EXCLUDED.mod_revision, version = entry.version + 1, lease_id = EXCLUDED.lease_id",
            [put.key, put.value, self.revision, self.revision, put.lease_id],
        )
        await self._event(put.key, put.value)

    async def _event(self, key: str, value: bytes | None) -> None:
        await self.cursor.execute(
            "INSERT INTO gpupool_storeevent (revision, key, value, at) VALUES (%s, %s, %s, clock_timestamp())",
            [self.revision, key, value],
        )


def _entry(row: tuple[Any, ...]) -> Entry:
    return Entry(str(row[0]), bytes(row[1]), int(row[2]), int(row[3]), int(row[4]), row[5])


def _first(row: tuple[Any, ...] | None) -> Any:
    assert row is not None  # the statement always returns a row
    return row[0]
