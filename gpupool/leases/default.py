"""The lease store that this installation uses."""

import asyncio

from django.conf import settings

from gpupool.leases.base import LeaseStore
from gpupool.leases.postgres import PostgresStore


def open_store() -> LeaseStore:
    """A store for the running event loop; close it when done.

    Raises RuntimeError without a database: commands check that first and say it in a sentence.
    """
    url: str | None = settings.GATEHOUSE.lease_database_url or settings.GATEHOUSE.database_url
    if url is None:
        raise RuntimeError("neither LEASE_DATABASE_URL nor DATABASE_URL is set")
    return PostgresStore(url)


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
