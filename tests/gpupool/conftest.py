"""Both lease stores, on real servers."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Final

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from gpupool.leases.base import LeaseStore
from gpupool.leases.postgres import PostgresStore
from tests.gpupool.leases.contract import PATIENCE_SECONDS
from tests.gpupool.leases.etcd_server import BINARY, EtcdServer, an_etcd

_NUMBER: Final = itertools.count()


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[EtcdServer]:
    if BINARY is None:
        pytest.skip("this machine has no etcd (Debian: etcd-server)")
    with an_etcd() as started:
        yield started


@pytest.fixture
def store_tables(embedded_postgres_url: str) -> Iterator[None]:
    """Empty before and after: the store's connections are its own, so that no test's transaction takes it back.

    These four alone: who uses Django's tables too takes `transactional_db` beside it, which empties all hundred.
    """
    _empty(embedded_postgres_url)
    yield
    _empty(embedded_postgres_url)


def _empty(url: str) -> None:
    with psycopg.connect(url, autocommit=True, options="-c lock_timeout=5000") as connection:
        for table in ("storeentry", "storeevent", "storelease", "storerevision"):
            connection.execute(SQL("DELETE FROM {}").format(Identifier(f"gpupool_{table}")))


@pytest.fixture
async def postgres_store(embedded_postgres_url: str, store_tables: None) -> AsyncIterator[LeaseStore]:
    """Empty."""
    opened = PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS, poll_seconds=0.05)
    yield opened
    await opened.close()


@pytest.fixture
async def etcd_store(etcd_server: EtcdServer) -> AsyncIterator[LeaseStore]:
    """Empty: a prefix of its own."""
    from gpupool.leases.etcd import EtcdStore
    from gpupool.leases.etcd_address import parse_etcd_url

    address = parse_etcd_url(f"{etcd_server.url}/any-{next(_NUMBER)}")
    opened = EtcdStore(address, deadline_seconds=PATIENCE_SECONDS)
    yield opened
    await opened.close()


@pytest.fixture(params=["postgres", "etcd"])
def any_store(request: pytest.FixtureRequest) -> LeaseStore:
    store: LeaseStore = request.getfixturevalue(f"{request.param}_store")
    return store
