"""A node's key in the store lives as long as any stream of it that speaks for it."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from gpupool.leases.base import LeaseNotFound, LeaseStore
from gpupool.leases.liveness import NodeLiveness, health_key, list_live_nodes
from gpupool.leases.postgres import PostgresStore
from tests.gpupool.leases.contract import PATIENCE_SECONDS


@pytest.fixture
async def store(embedded_postgres_url: str, store_tables: None) -> AsyncIterator[LeaseStore]:
    opened = PostgresStore(embedded_postgres_url, deadline_seconds=PATIENCE_SECONDS)
    yield opened
    await opened.close()


async def _end_lease(store: LeaseStore, key: str) -> None:
    entry = await store.get(key)
    assert entry is not None
    assert entry.lease_id is not None
    await store.revoke(entry.lease_id)
    with pytest.raises(LeaseNotFound):
        await store.keep_alive(entry.lease_id)


@pytest.mark.shows("R29")
async def test_a_node_that_was_silent_for_too_long_lives_again_when_it_is_heard(store: LeaseStore) -> None:
    node = uuid4()
    stream = NodeLiveness(store, node, ttl_seconds=60)
    await stream.heard()
    await _end_lease(store, f"/gpu/nodes/{node}/health")
    assert await list_live_nodes(store) == frozenset()
    await stream.heard()
    await stream.heard()
    assert await list_live_nodes(store) == {node}


async def test_the_last_word_of_an_old_stream_does_not_take_the_key_from_the_new_one(store: LeaseStore) -> None:
    node = uuid4()
    old, new = NodeLiveness(store, node, ttl_seconds=60), NodeLiveness(store, node, ttl_seconds=60)
    await old.heard()
    await _end_lease(store, health_key(node))  # the whole machine slept
    await new.heard()
    kept = await store.get(health_key(node))
    await old.heard()  # a word that was under way
    assert await store.get(health_key(node)) == kept
