"""Reading the snapshot from real PostgreSQL, which may drop or freeze connections."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg
import pytest
from django.db import connection

from bench.rows import attach
from core.clock import SystemClock
from core.epochs import Section, current_epoch, prune_changes
from gateway.relay.follower import Follower
from gateway.relay.rows import (
    ENDPOINTS,
    GRANTS,
    KEYS,
    LIMITS,
    MODELS,
    KeyRow,
    LimitRow,
    ModelRow,
    SourceUnavailable,
    TenantRow,
)
from gateway.relay.snapshot import Snapshot, digest_credential
from gateway.services.snapshot_source import DatabaseSnapshotSource
from gpupool.models import ModelVersion
from gpupool.services import create_model, create_version, retire_version, serve_version, set_engine_enabled
from gpupool.services.instances import set_probed_state
from tenants.actor import SYSTEM
from tenants.models import ApiKey, LedgerMark, TenantState
from tenants.services import create_api_key, create_tenant, grant_model, revoke_api_key, set_tenant_state
from tenants.services.limits import create_limit
from tests.locks import somebody_waits
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

T = TypeVar("T")
BOUND_SECONDS: Final = 1.0
TRIES: Final = 4


@pytest.fixture
def source() -> Iterator[DatabaseSnapshotSource]:
    yield DatabaseSnapshotSource()
    connection.close()


def test_a_key_is_read_as_it_stands(source: DatabaseSnapshotSource) -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    expires = datetime(2099, 1, 1, tzinfo=UTC)
    new = create_api_key(
        tenant,
        name="k",
        actor=SYSTEM,
        scopes=["infer", "embed"],
        allowed_models=["a*"],
        rpm_limit=9,
        expires_at=expires,
    )
    digest = digest_credential(new.secret)
    found = source.find_keys([digest, "0" * 64])
    assert found.epoch == current_epoch(Section.KEYS) == 1
    assert found.rows == [
        KeyRow(new.key.pk, digest, tenant.pk, frozenset({"infer", "embed"}), ("a*",), 9, expires.timestamp(), False)
    ]
    revoke_api_key(new.key.pk, actor=SYSTEM)
    (row,) = source.load_objects(KEYS, [new.key.pk, uuid4()]).rows
    assert isinstance(row, KeyRow)
    assert row.revoked
    assert source.load_section(KEYS).rows == []


def test_a_tenant_is_read_with_its_grants_and_those_of_its_keys(source: DatabaseSnapshotSource) -> None:
    tenant = create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    other = create_tenant(slug="other", name="Other", actor=SYSTEM)
    key = create_api_key(tenant, name="k", actor=SYSTEM).key
    grant_model(tenant, model_pattern="a", actor=SYSTEM)
    grant_model(tenant, model_pattern="b", actor=SYSTEM, effect="deny", key=key)
    set_tenant_state(other.pk, TenantState.SUSPENDED, actor=SYSTEM)
    rows = {row.id: row for row in source.load_section(GRANTS).rows if isinstance(row, TenantRow)}
    assert {(r.principal_kind, r.model_pattern, r.allow) for r in rows[tenant.pk].rules} == {
        ("tenant", "a", True),
        ("key", "b", False),
    }
    assert (rows[tenant.pk].active, rows[other.pk].active, rows[other.pk].rules) == (True, False, ())
    assert source.load_objects(GRANTS, [other.pk]).rows == [rows[other.pk]]


def test_only_ready_instances_are_endpoints(source: DatabaseSnapshotSource) -> None:
    ready = attach("tiny", 4001)
    attach("tiny", 4002, ready=False)
    (row,) = source.load_section(ENDPOINTS).rows
    assert (row.id, source.load_section(MODELS).rows[0].id) == (ready.pk, ready.version.model_id)
    set_probed_state(ready.pk, healthy=False, reason="Gone.", actor=SYSTEM)
    assert source.load_objects(ENDPOINTS, [ready.pk]).rows == []
    assert source.load_section(ENDPOINTS).rows == []


def test_a_model_that_no_version_serves_is_gone_from_the_door_and_may_come_back(source: DatabaseSnapshotSource) -> None:
    attach("m", 21000)
    version = ModelVersion.objects.get(model__name="m")
    for change, there in ((retire_version, False), (serve_version, True)):
        before = current_epoch(Section.MODELS)
        change(version.pk, actor=SYSTEM)
        assert current_epoch(Section.MODELS) > before
        assert [row.id for row in source.load_section(MODELS).rows] == [version.model_id] * there
        assert [row.id for row in source.load_objects(MODELS, [version.model_id]).rows] == [version.model_id] * there


def test_pruned_changes_are_told(source: DatabaseSnapshotSource) -> None:
    create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    assert [c.epoch for c in source.read_changes(GRANTS, after=0, limit=10) or ()] == [1]
    from datetime import timedelta

    prune_changes(older_than=timedelta(seconds=-1))
    assert source.read_changes(GRANTS, after=0, limit=10) is None
    assert source.read_changes(GRANTS, after=1, limit=10) == []


def test_a_mark_is_nought_until_there_is_one(source: DatabaseSnapshotSource) -> None:
    process = uuid4()
    assert source.read_mark(process) == 0
    LedgerMark.objects.create(process_id=process, sequence=12)
    assert source.read_mark(process) == 12


def _terminate_others() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as own:
        own.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_dropped_connection_is_told_once_and_made_anew(source: DatabaseSnapshotSource) -> None:
    source.read_epochs()
    _terminate_others()
    with pytest.raises(SourceUnavailable):
        source.read_epochs()
    assert source.read_epochs() is not None


@pytest.mark.usefixtures("source")  # it closes the connection, which is this one's too
def test_a_read_that_hangs_can_be_interrupted() -> None:
    create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    with psycopg.connect(os.environ["DATABASE_URL"]) as blocker:
        blocker.execute("LOCK TABLE tenants_tenant IN ACCESS EXCLUSIVE MODE")
        patient = DatabaseSnapshotSource(statement_timeout_ms=60_000)
        patient.read_epochs()  # connected: there is something to interrupt

        def interrupt_once_it_hangs() -> None:
            wait_until(lambda: _closing(somebody_waits), "the read to hang")
            patient.interrupt()

        interrupting = threading.Thread(target=interrupt_once_it_hangs)
        interrupting.start()
        began = time.monotonic()
        with pytest.raises(SourceUnavailable):
            patient.load_section(GRANTS)
        assert time.monotonic() - began < 30.0
        interrupting.join()
        blocker.rollback()
    assert len(patient.load_section(GRANTS).rows) == 1


def _closing(call: Callable[[], T]) -> T:
    """Run on another thread without leaving its connection behind."""
    try:
        return call()
    finally:
        connection.close()


async def _other_thread(call: Callable[..., T], *args: Any, **named: Any) -> T:
    return await asyncio.to_thread(_closing, lambda: call(*args, **named))


@pytest.fixture
async def follower() -> AsyncIterator[Follower]:
    follower = Follower(DatabaseSnapshotSource(), Snapshot(), clock=SystemClock(), poll_seconds=0.25, stale_seconds=60)
    await follower.start()
    yield follower
    await follower.stop()


async def _within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the follower tells nobody
            await asyncio.sleep(0.01)


async def _seconds_until(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    await _within(30.0, condition)
    return time.monotonic() - began


async def _within_the_bound(attempt: Callable[[int], Awaitable[list[float]]]) -> None:
    """Whether each of what `attempt` times keeps it in one of some tries: a machine that stalls is not the gateway."""
    took: list[list[float]] = []
    while len(took) < TRIES:
        took.append(await attempt(len(took)))
        if all(min(times) < BOUND_SECONDS for times in zip(*took, strict=True)):
            return
    raise AssertionError(took)


async def test_a_revocation_is_seen_within_a_second_without_any_hint(follower: Follower) -> None:
    tenant = await _other_thread(create_tenant, slug="acme", name="Acme", actor=SYSTEM)

    async def revoke(number: int) -> list[float]:
        new = await _other_thread(create_api_key, tenant, name=f"k{number}", actor=SYSTEM)
        digest = digest_credential(new.secret)
        await follower.resolve(digest)
        found = follower.snapshot.key(digest)
        assert found is not None
        assert not found.revoked
        assert follower.snapshot.tenant(tenant.pk) is not None
        await _other_thread(revoke_api_key, new.key.pk, actor=SYSTEM)
        return [await _seconds_until(lambda: (row := follower.snapshot.key(digest)) is not None and row.revoked)]

    await _within_the_bound(revoke)


async def test_an_engine_that_is_switched_off_leaves_and_comes_back_within_a_second(follower: Follower) -> None:
    async def switch(number: int) -> list[float]:
        instance = await _other_thread(attach, "tiny", 4001 + number)
        model, count = instance.version.model_id, number + 1
        came = await _seconds_until(lambda: len(follower.snapshot.endpoints(model)) == count)
        await _other_thread(set_engine_enabled, "vllm", False, actor=SYSTEM)
        left = await _seconds_until(lambda: not follower.snapshot.endpoints(model))
        await _other_thread(set_engine_enabled, "vllm", True, actor=SYSTEM)
        return [came, left, await _seconds_until(lambda: len(follower.snapshot.endpoints(model)) == count)]

    await _within_the_bound(switch)


async def test_changes_are_followed_through_dropped_connections(follower: Follower) -> None:
    await asyncio.to_thread(_terminate_others)
    tenant = await _other_thread(create_tenant, slug="acme", name="Acme", actor=SYSTEM)
    await _within(30.0, lambda: follower.snapshot.tenant(tenant.pk) is not None)
    assert not follower.away


async def test_a_deleted_key_is_forgotten(follower: Follower) -> None:
    tenant = await _other_thread(create_tenant, slug="acme", name="Acme", actor=SYSTEM)

    async def delete(number: int) -> list[float]:
        new = await _other_thread(create_api_key, tenant, name=f"k{number}", actor=SYSTEM)
        digest = digest_credential(new.secret)
        await follower.resolve(digest)
        await _other_thread(revoke_api_key, new.key.pk, actor=SYSTEM)
        await _other_thread(ApiKey.objects.all().delete)
        return [await _seconds_until(lambda: follower.snapshot.key(digest) is None)]

    await _within_the_bound(delete)


def test_a_tenants_own_version_changes_nobody_elses_context(source: DatabaseSnapshotSource) -> None:
    model, tenant = create_model("long", actor=SYSTEM), create_tenant(slug="acme", name="Acme", actor=SYSTEM)
    for name, most, owner in (("shared", 8192, None), ("own", 512, tenant.pk)):
        create_version(
            model,
            name=name,
            engine="vllm",
            artefact_uri="file:///models/a/config.json",
            engine_args={"max_model_len": most},
            memory_bytes=1,
            tenant_id=owner,
            actor=SYSTEM,
        )
    (row,) = source.load_section(MODELS).rows
    assert isinstance(row, ModelRow)
    assert (row.context_tokens, row.longest_context_tokens) == (8192, 8192)
    assert row.own_contexts == ((tenant.pk, 512, 8192),)


def test_a_model_is_made_up_where_a_version_that_serves_it_is(source: DatabaseSnapshotSource) -> None:
    def made_up() -> list[bool]:
        return [row.simulated for row in source.load_section(MODELS).rows if isinstance(row, ModelRow)]

    model = create_model("odd", actor=SYSTEM)
    real: dict[str, Any] = {"engine": "vllm", "memory_bytes": 1, "actor": SYSTEM}
    create_version(model, name="real", artefact_uri="file:///models/a", **real)
    assert made_up() == [False]
    version = create_version(model, name="odd", artefact_uri="file:///simulated/a", **real)
    assert made_up() == [True]
    retire_version(version.pk, actor=SYSTEM)
    assert made_up() == [False]


def test_a_models_context_is_its_versions_where_they_say_it(source: DatabaseSnapshotSource) -> None:
    model = create_model("long", actor=SYSTEM)

    def contexts(name: str = "long") -> tuple[int | None, int | None]:
        rows = [row for row in source.load_section(MODELS).rows if isinstance(row, ModelRow) and row.name == name]
        return rows[0].context_tokens, rows[0].longest_context_tokens

    def add(name: str, engine: str, **engine_args: int) -> None:
        create_version(
            model,
            name=name,
            engine=engine,
            artefact_uri="file:///models/a",
            engine_args=engine_args,
            memory_bytes=1,
            actor=SYSTEM,
        )

    add("one", "llamacpp", n_ctx=6000, n_parallel=3)
    assert contexts() == (2000, 2048)  # engines give it in whole blocks
    add("two", "vllm", max_model_len=8192)
    assert contexts() == (2000, 8192)
    add("three", "vllm")
    assert contexts() == (2000, None)  # the model's own, which nobody has said
    attach("foreign", 9, engine="llamacpp")
    assert contexts("foreign") == (None, None)


def test_limits_name_their_tenant_in_words_that_it_knows(source: DatabaseSnapshotSource) -> None:
    tenant = create_tenant(slug="engineering", name="Engineering", actor=SYSTEM)
    create_limit(tenant=tenant, metric="tokens", window="day", amount=9, subtree=True, actor=SYSTEM)
    create_limit(tenant=None, metric="requests", window="minute", amount=99, actor=SYSTEM)
    rows = [row for row in source.load_section(LIMITS).rows if isinstance(row, LimitRow)]
    assert {(row.metric, row.tenant_slug) for row in rows} == {("tokens", "engineering"), ("requests", "")}
