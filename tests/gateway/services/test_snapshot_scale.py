"""Thousands of tenants, hundreds of thousands of keys: how long a snapshot takes to build, how large it is, and that a
change of one key costs one row.

The large form (`slow`) prints its figures; the small one keeps the way there in order.
"""

import asyncio
import gc
import hashlib
import json
import time
from collections.abc import Sequence
from uuid import UUID

import psutil
import pytest
from django.db import connection, transaction

from core.clock import SystemClock
from gateway.relay.follower import Follower
from gateway.relay.rows import KEYS, Loaded, LoadedKeys
from gateway.relay.snapshot import Snapshot
from gateway.services.snapshot_source import DatabaseSnapshotSource
from tenants.actor import SYSTEM
from tenants.models import ApiKey
from tenants.services import revoke_api_key

pytestmark = pytest.mark.django_db(transaction=True)

BUILD_SECONDS = 5.0
BUILD_BYTES = 200 * 1000 * 1000
_AT_ONCE = 4_000
_process = psutil.Process()


class NotingSource(DatabaseSnapshotSource):
    """Notes what is read of the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_read: list[int] = []
        self.reloads = 0

    def load_section(self, section: str) -> Loaded:
        self.reloads += 1
        return super().load_section(section)

    def load_objects(self, section: str, ids: Sequence[UUID]) -> Loaded:
        loaded = super().load_objects(section, ids)
        if section == KEYS:
            self.keys_read.append(len(loaded.rows))
        return loaded

    def find_keys(self, digests: Sequence[str]) -> LoadedKeys:
        loaded = super().find_keys(digests)
        self.keys_read.append(len(loaded.rows))
        return loaded


def fill(tenants: int, keys: int) -> list[str]:
    """So many tenants with a grant and a limit each, and so many keys among them; the digests of the keys."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        cursor.execute(
            "INSERT INTO tenants_tenant"
            " (id, slug, name, sla_tier, time_zone, state, response_retention_days, created_at)"
            " SELECT gen_random_uuid(), 'scale-' || n, 'Scale', 'bronze', 'UTC', 'active', 30, now()"
            " FROM generate_series(1, %s) AS n",
            [tenants],
        )
        cursor.execute(
            "INSERT INTO tenants_grant"
            " (id, tenant_id, principal_kind, principal_id, model_pattern, actions, effect, created_at)"
            " SELECT gen_random_uuid(), id, 'tenant', id, '*', '[\"infer\", \"embed\"]', 'allow', now()"
            " FROM tenants_tenant WHERE slug LIKE 'scale-%%'"
        )
        cursor.execute(
            "INSERT INTO tenants_limit"
            ' (id, tenant_id, subtree, model, metric, "window", amount, alert_shares, counts_from, note, created_at)'
            " SELECT gen_random_uuid(), id, false, '', 'tokens', 'day', 1000000, '[]', now(), '', now()"
            " FROM tenants_tenant WHERE slug LIKE 'scale-%%'"
        )
        cursor.execute(
            "INSERT INTO tenants_apikey (id, tenant_id, name, prefix, last_four, digest, scopes, allowed_models,"
            " keep_alive, expires_at, created_at)"
            " SELECT gen_random_uuid(), t.id, 'key', 'sk-gh-', '0000', encode(sha256(('scale' || n)::bytea), 'hex'),"
            " '[\"embed\", \"infer\"]', '[]', true, now() + interval '1 year', now()"
            " FROM generate_series(0, %s - 1) AS n JOIN tenants_tenant t ON t.slug = 'scale-' || (n %% %s + 1)",
            [keys, tenants],
        )
        cursor.execute("ANALYZE tenants_apikey, tenants_tenant, tenants_grant, tenants_limit")
    return [hashlib.sha256(f"scale{number}".encode()).hexdigest() for number in range(keys)]


async def build(follower: Follower, digests: Sequence[str]) -> tuple[float, float]:
    """From nothing to all of it: the sections, and every key resolved as requests ask for them.

    Seconds that it took, and seconds of this process's CPU: only these say anything where others use the machine too.
    """
    began, cpu = time.perf_counter(), time.process_time()
    await follower.poll()
    for first in range(0, len(digests), _AT_ONCE):
        await asyncio.gather(*(follower.resolve(digest) for digest in digests[first : first + _AT_ONCE]))
    return time.perf_counter() - began, time.process_time() - cpu


async def check(tenants: int, digests: Sequence[str], *, seconds: float, byte_count: int) -> dict[str, float]:
    source, snapshot = NotingSource(), Snapshot()
    follower = Follower(source, snapshot, clock=SystemClock(), poll_seconds=60.0, stale_seconds=600.0)
    loop = asyncio.get_running_loop()
    try:
        gc.collect()
        gc.freeze()  # as a relay does when it starts
        before_build = _process.memory_info().rss
        built, cpu = await build(follower, digests)
        size = _process.memory_info().rss - before_build
        assert size < byte_count
        assert sum(source.keys_read) == len(digests)
        assert sum(1 for digest in digests if snapshot.key(digest) is not None) == len(digests)
        assert cpu < seconds

        reloads, before = source.reloads, {digest: snapshot.key(digest) for digest in digests}
        source.keys_read.clear()
        changed = digests[len(digests) // 2]
        key_id = await loop.run_in_executor(follower._thread, _revoke, changed)
        began, cpu_before = time.perf_counter(), time.process_time()
        await follower.poll()
        applied, applied_cpu = time.perf_counter() - began, time.process_time() - cpu_before
        row = snapshot.key(changed)
        assert row is not None
        assert (row.id, row.revoked) == (key_id, True)
        assert (source.reloads, source.keys_read) == (reloads, [1])  # one row was read, no section
        others = [digest for digest in digests if snapshot.key(digest) is not before[digest]]
        assert others == [changed]  # and all other rows are the objects that they were
        assert applied_cpu < 0.5

        return {
            "tenants": tenants, "keys": len(digests), "build_s": built, "build_cpu_s": cpu, "change_s": applied,
            "bytes": size,
        }  # fmt: skip
    finally:
        gc.unfreeze()
        await follower.stop()


def _revoke(digest: str) -> UUID:
    key = ApiKey.objects.get(digest=digest)
    revoke_api_key(key.pk, actor=SYSTEM)
    return key.pk


async def test_a_snapshot_of_a_few_thousand_keys_is_built_and_changed_in_place() -> None:
    digests = await asyncio.to_thread(fill, 200, 2_000)
    await check(200, digests, seconds=BUILD_SECONDS, byte_count=BUILD_BYTES // 20)


@pytest.mark.drill
async def test_a_snapshot_of_a_hundred_thousand_keys_is_built_in_five_seconds_and_200_megabytes() -> None:
    digests = await asyncio.to_thread(fill, 10_000, 100_000)
    figures = await check(10_000, digests, seconds=BUILD_SECONDS, byte_count=BUILD_BYTES)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
