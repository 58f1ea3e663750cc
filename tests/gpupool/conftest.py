"""Both lease stores, on real servers."""

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from gpupool.leases.base import LeaseStore
from gpupool.leases.postgres import PostgresStore
from tests.gpupool.leases.etcd_server import BINARY, EtcdServer, an_etcd

_NUMBER: Final = itertools.count()


@pytest.fixture(scope="module")
def etcd_server() -> Iterator[EtcdServer]:
    if BINARY is None:
        pytest.skip("this machine has no etcd (Debian: etcd-server)")
    with an_etcd() as started:
        yield started


@pytest.fixture
async def postgres_store(embedded_postgres_url: str, transactional_db: None) -> AsyncIterator[LeaseStore]:
    """Empty, with an empty database around it."""
    opened = PostgresStore(embedded_postgres_url, poll_seconds=0.05)
    yield opened
    await opened.close()


@pytest.fixture
async def etcd_store(etcd_server: EtcdServer) -> AsyncIterator[LeaseStore]:
    """Empty: a prefix of its own."""
    from gpupool.leases.etcd import EtcdStore
    from gpupool.leases.etcd_address import parse_etcd_url

    opened = EtcdStore(parse_etcd_url(f"{etcd_server.url}/any-{next(_NUMBER)}"))
    yield opened
    await opened.close()


@pytest.fixture(params=["postgres", "etcd"])
def any_store(request: pytest.FixtureRequest) -> LeaseStore:
    store: LeaseStore = request.getfixturevalue(f"{request.param}_store")
    return store
