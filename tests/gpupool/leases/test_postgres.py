"""The contract on real PostgreSQL, and what is its own: the clock, the server's start, its absence."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from psycopg.conninfo import conninfo_to_dict

from gpupool.leases.base import Compacted, LeaseStore, StoreUnavailable
from gpupool.leases.postgres import PostgresStore, store_conninfo
from tests.gpupool.leases.contract import (
    PATIENCE_SECONDS,
    LeaseStoreContract,
    eventually,
    least_until_refused,
    put,
)
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one
from tests.gpupool.processes import free_port


@pytest.fixture
async def store(embedded_postgres_url: str, store_tables: None) -> AsyncIterator[LeaseStore]:
    opened = PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS, poll_seconds=0.05)
    await _pretend_old_server(embedded_postgres_url)
    yield opened
    await opened.close()


async def _pretend_old_server(url: str) -> None:
    """Waits out the start of the test run's server: within one time to live of it nothing expires, by design."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            cursor = await connection.execute(
                "SELECT pg_postmaster_start_time() + interval '1 second' < clock_timestamp()"
            )
            row = await cursor.fetchone()
            if row is not None and row[0]:
                return
            await asyncio.sleep(0.05)


class TestPostgresStore(LeaseStoreContract):
    pass


async def test_nothing_expires_within_one_time_to_live_of_the_servers_start(
    store: LeaseStore, embedded_postgres_url: str
) -> None:
    grant = await store.grant(86_400)  # far longer than the server of this run is up
    await put(store, "/a", b"1", grant.lease_id)
    async with await psycopg.AsyncConnection.connect(embedded_postgres_url, autocommit=True) as connection:
        # As after a long outage: the time to live went by while nobody could renew.
        await connection.execute("UPDATE gpupool_storelease SET expires_at = now() - interval '1 minute'")
    assert await store.get("/a") is not None
    assert (await store.keep_alive(grant.lease_id)).ttl_seconds == 86_400


@pytest.mark.django_db(transaction=True)
async def test_claims_and_the_store_count_by_the_same_revision(store: LeaseStore) -> None:
    first = await put(store, "/a", b"1")
    claimed = await sync_to_async(_claim)()
    assert first < claimed < await put(store, "/a", b"2")


def _claim() -> int:
    node = an_online_node(a_device("gpu-0"))
    return place_one(a_version("m"), node).fencing_token


async def test_a_store_that_is_away_says_so_within_its_deadline() -> None:
    store = PostgresStore("postgresql://nobody@127.0.0.1:9/none", deadline_seconds=0.5)
    try:
        async with asyncio.timeout(5):
            with pytest.raises(StoreUnavailable):
                await store.get("/a")
    finally:
        await store.close()


@asynccontextmanager
async def _wire(url: str, port: int, open_gate: asyncio.Event) -> AsyncIterator[None]:
    """A way to the server of `url` on another port, on which nothing moves while the gate is not open."""
    address = psycopg.conninfo.conninfo_to_dict(url)
    ways: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await open_gate.wait()
            sink.write(data)
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await open_gate.wait()
            there, back = await asyncio.open_connection(str(address["host"]), int(str(address["port"])))
            try:
                await asyncio.gather(copy(reader, back), copy(there, writer))
            finally:
                back.transport.abort()
        finally:
            writer.transport.abort()  # from 3.12 on a server's end waits for its connections

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ways.add(asyncio.create_task(forward(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        yield
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def test_a_network_that_swallows_everything_costs_one_deadline(embedded_postgres_url: str) -> None:
    port, gate = free_port(), asyncio.Event()
    url = psycopg.conninfo.make_conninfo(embedded_postgres_url, host="127.0.0.1", port=port)
    store = PostgresStore(url, deadline_seconds=0.5)

    async def swallow() -> None:
        gate.set()
        await eventually(lambda: _answers(store))
        gate.clear()

    async with _wire(embedded_postgres_url, port, gate):
        calls = (lambda: store.get("/a"), lambda: store.range("/"), lambda: store.keep_alive(1))
        for call in calls:
            assert await least_until_refused(call, lose=swallow, enough=2.0) < 2.0
        await store.close()


async def test_a_server_that_was_away_is_found_soon_after_its_return(embedded_postgres_url: str) -> None:
    port, gate = free_port(), asyncio.Event()
    gate.set()
    url = psycopg.conninfo.make_conninfo(embedded_postgres_url, host="127.0.0.1", port=port)
    store = PostgresStore(url, deadline_seconds=0.5)
    loop = asyncio.get_running_loop()
    took: list[float] = []
    while len(took) < 3 and min(took, default=2.0) >= 2.0:  # this process may stand still just then
        until = loop.time() + 4.0  # pauses that double from a second would end at seven
        while loop.time() < until:
            with pytest.raises(StoreUnavailable):
                await store.get("/a")
        async with _wire(embedded_postgres_url, port, gate):
            came_back = loop.time()
            await eventually(lambda: _answers(store))
            took.append(loop.time() - came_back)
    assert min(took) < 2.0
    await store.close()


async def _answers(store: LeaseStore) -> bool:
    with contextlib.suppress(StoreUnavailable):
        await store.get("/a")
        return True
    return False


@pytest.mark.parametrize("position", ["before", "between"])
async def test_a_compaction_at_any_moment_of_a_read_hides_no_event(
    store: LeaseStore, embedded_postgres_url: str, position: str
) -> None:
    """The watcher reads in two statements; here another compacts before the first or the second."""
    first = await put(store, "/w/a", b"1")
    newest = await put(store, "/w/a", b"2")

    class Cursor:
        def __init__(self, cursor: Any) -> None:
            self._cursor, self.fetchone, self.fetchall = cursor, cursor.fetchone, cursor.fetchall
            self._left = 1 if position == "before" else 2

        async def execute(self, *arguments: Any) -> None:
            self._left -= 1
            if self._left == 0:
                await store.compact(newest)
            await self._cursor.execute(*arguments)

    class Disturbed(PostgresStore):
        @asynccontextmanager
        async def _cursor(self) -> AsyncIterator[Any]:
            async with super()._cursor() as cursor:
                yield Cursor(cursor)

    reader = Disturbed(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS)
    try:
        with pytest.raises(Compacted):
            await reader._events("/w/", first - 1)
    finally:
        await reader.close()


async def test_a_dropped_connection_is_replaced(store: LeaseStore, embedded_postgres_url: str) -> None:
    await put(store, "/a", b"1")
    async with await psycopg.AsyncConnection.connect(embedded_postgres_url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'gatehouse-leases' AND datname = current_database()"
        )
    assert await store.get("/a") is not None


async def test_a_server_that_is_gone_without_a_word_holds_no_connection_longer_than_a_call_is_waited_for(
    embedded_postgres_url: str,
) -> None:
    conninfo = store_conninfo(embedded_postgres_url, deadline_seconds=2.0)
    async with await psycopg.AsyncConnection.connect(conninfo) as connection:
        said = connection.info.get_parameters()
    assert (said["tcp_user_timeout"], said["keepalives"]) == ("2000", "1")
    idle, interval, count = (int(said[f"keepalives_{name}"]) for name in ("idle", "interval", "count"))
    assert idle + interval * count < 20
    own = store_conninfo("postgresql://h/n?tcp_user_timeout=3000", deadline_seconds=2.0)
    assert conninfo_to_dict(own)["tcp_user_timeout"] == "3000"
    assert store_conninfo("postgresql://h/n?nonsense=1", deadline_seconds=2.0) == "postgresql://h/n?nonsense=1"
