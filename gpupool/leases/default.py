"""The lease store that this installation uses."""

import asyncio

from django.conf import settings

from gpupool.leases.base import LeaseStore
from gpupool.leases.etcd_address import EtcdAddress, parse_etcd_url
from gpupool.leases.postgres import PostgresStore


def open_store() -> LeaseStore:
    """A store for the running event loop; close it when done. etcd where ETCD_URL is set, PostgreSQL where not.

    Raises RuntimeError without a database: commands check that first and say it in a sentence. Raises
    SettingsError for an ETCD_URL that cannot be.
    """
    if settings.GATEHOUSE.etcd_url:
        return _open_etcd(settings.GATEHOUSE.etcd_url)
    url: str | None = settings.GATEHOUSE.lease_database_url or settings.GATEHOUSE.database_url
    if url is None:
        raise RuntimeError("neither LEASE_DATABASE_URL nor DATABASE_URL is set")
    return PostgresStore(url)


def check_store_settings() -> None:
    """At the start, not with the first agent that connects. Raises SettingsError."""
    if settings.GATEHOUSE.etcd_url:
        _etcd_address(settings.GATEHOUSE.etcd_url)


def _open_etcd(url: str) -> LeaseStore:
    from gpupool.leases.etcd import EtcdStore  # only who uses it loads gRPC

    return EtcdStore(_etcd_address(url))


def _etcd_address(url: str) -> EtcdAddress:
    return parse_etcd_url(
        url,
        ca_file=settings.GATEHOUSE.etcd_ca_file,
        certificate_file=settings.GATEHOUSE.etcd_cert_file,
        key_file=settings.GATEHOUSE.etcd_key_file,
    )


_stores: dict[asyncio.AbstractEventLoop, LeaseStore] = {}


def shared_store() -> LeaseStore:
    """One store for the whole life of the running event loop."""
    loop = asyncio.get_running_loop()
    for other in [known for known in _stores if known.is_closed()]:
        del _stores[other]
    if loop not in _stores:
        _stores[loop] = open_store()
    return _stores[loop]


async def close_shared_store() -> None:
    """Close the running event loop's store, if it has one; the web process does it when it ends."""
    store = _stores.pop(asyncio.get_running_loop(), None)
    if store is not None:
        await store.close()
