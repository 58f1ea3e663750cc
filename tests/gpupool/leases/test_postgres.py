"""The contract on real PostgreSQL, and what is its own: the clock, the server's start, its absence."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from asgiref.sync import sync_to_async

from gpupool.leases.base import LeaseStore, StoreUnavailable
from gpupool.leases.postgres import PostgresStore
from tests.gpupool.leases.contract import LeaseStoreContract, put
from tests.gpupool.pool import a_device, a_version, an_online_node, place_one

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
async def store(embedded_postgres_url: str, transactional_db: None) -> AsyncIterator[LeaseStore]:
    opened = PostgresStore(embedded_postgres_url, poll_seconds=0.05)
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
    grant = await store.grant(3600)  # far longer than the server of this run is up
    await put(store, "/a", b"1", grant.lease_id)
    async with await psycopg.AsyncConnection.connect(embedded_postgres_url, autocommit=True) as connection:
        # As after a long outage: the time to live went by while nobody could renew.
        await connection.execute("UPDATE gpupool_storelease SET expires_at = now() - interval '1 minute'")
    assert await store.get("/a") is not None
    assert (await store.keep_alive(grant.lease_id)).ttl_seconds == 3600


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


async def test_a_dropped_connection_is_replaced(store: LeaseStore, embedded_postgres_url: str) -> None:
    await put(store, "/a", b"1")
    async with await psycopg.AsyncConnection.connect(embedded_postgres_url, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'gatehouse-leases' AND datname = current_database()"
        )
    assert await store.get("/a") is not None
