"""Stored responses in PostgreSQL: whose they are, how far back they are read, and what a slow database costs."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.utils import timezone

from core.ids import uuid7, uuid7_from
from gateway.models import StoredResponse
from gateway.relay.dialects.response_store import (
    ConversationTooLong,
    NewResponse,
    Reader,
    ResponseNotFound,
    ResponseStoreUnavailable,
)
from gateway.services.response_retention import delete_expired_responses
from gateway.services.response_store import DatabaseResponseStore
from tenants.models import AuditEvent
from tenants.principal import Principal
from tests.factories import make_tenant
from tests.gateway.relay.door.house import until

pytestmark = pytest.mark.django_db(transaction=True)

TENANT = uuid4()
KEY = Principal(TENANT, "acme", uuid4(), frozenset({"infer"}), (), None)
SUBJECT = Principal(TENANT, "acme", None, frozenset({"infer"}), (), None, subject_id=uuid4())
ANYTIME = Reader(TENANT, 0.0)
DEADLINE_SECONDS = 0.3


@pytest.fixture
async def store() -> AsyncIterator[DatabaseResponseStore]:
    store = DatabaseResponseStore(deadline_seconds=30.0)
    yield store
    await store.aclose()


def new(previous: UUID | None = None, *, text: str = "x", tenant_id: UUID = TENANT) -> NewResponse:
    now = time.time()
    return NewResponse(
        id=uuid7(),
        tenant_id=tenant_id,
        key_id=uuid4(),
        model="m",
        previous_id=previous,
        input=json.dumps([{"type": "message", "id": "msg_1", "role": "user", "content": text}]).encode(),
        response=json.dumps({"id": "r", "output": [{"type": "message", "id": "msg_2"}]}).encode(),
        created_at=now,
        expires_at=now + 60,
    )


async def put_chain(store: DatabaseResponseStore, length: int) -> list[UUID]:
    ids: list[UUID] = []
    for _ in range(length):
        response = new(ids[-1] if ids else None, text=f"turn {len(ids)}")
        await store.put(response)
        ids.append(response.id)
    return ids


async def test_a_conversation_is_read_oldest_first(store: DatabaseResponseStore) -> None:
    ids = await put_chain(store, 23)
    turns = await store.load_chain(ANYTIME, ids[-1], most_responses=23, most_bytes=100_000)
    assert [turn.id for turn in turns] == ids
    assert json.loads(turns[3].input)[0]["content"] == "turn 3"
    assert json.loads(turns[3].output) == [{"type": "message", "id": "msg_2"}]


async def test_a_conversation_has_bounds(store: DatabaseResponseStore) -> None:
    ids = await put_chain(store, 4)
    with pytest.raises(ConversationTooLong, match="more than 3 responses"):
        await store.load_chain(ANYTIME, ids[-1], most_responses=3, most_bytes=100_000)
    with pytest.raises(ConversationTooLong, match="larger than 100 bytes"):
        await store.load_chain(ANYTIME, ids[-1], most_responses=4, most_bytes=100)
    with pytest.raises(ConversationTooLong):
        await store.load(ANYTIME, ids, most_bytes=100)


async def test_half_a_conversation_is_none(store: DatabaseResponseStore) -> None:
    ids = await put_chain(store, 3)
    await store.delete(ANYTIME, ids[0], principal=KEY, request_id=uuid4())
    with pytest.raises(ResponseNotFound):
        await store.load_chain(ANYTIME, ids[-1], most_responses=9, most_bytes=100_000)


@pytest.mark.parametrize(("principal", "kind"), [(KEY, "key"), (SUBJECT, "subject")])
async def test_who_deleted_a_response_is_named_as_what_it_is(
    store: DatabaseResponseStore, principal: Principal, kind: str
) -> None:
    response, request_id = new(), uuid4()
    await store.put(response)
    await store.delete(ANYTIME, response.id, principal=principal, request_id=request_id)
    event = await AuditEvent.objects.aget(request_id=str(request_id))
    assert (event.action, event.actor_kind, event.actor_id) == ("response.deleted", kind, principal.pk)


async def test_nothing_is_read_for_another_tenant_or_from_before_its_time(store: DatabaseResponseStore) -> None:
    response = new()
    await store.put(response)
    assert json.loads(await store.get(ANYTIME, response.id))["id"] == "r"
    for reader in (Reader(uuid4(), 0.0), Reader(TENANT, time.time() + 5)):
        with pytest.raises(ResponseNotFound):
            await store.get(reader, response.id)
        with pytest.raises(ResponseNotFound):
            await store.input_items(reader, response.id)
        with pytest.raises(ResponseNotFound):
            await store.load_chain(reader, response.id, most_responses=9, most_bytes=100_000)
        with pytest.raises(ResponseNotFound):
            await store.delete(reader, response.id, principal=KEY, request_id=uuid4())
        assert await store.load(reader, [response.id], most_bytes=100_000) == []


async def test_what_the_database_cannot_hold_is_told(store: DatabaseResponseStore) -> None:
    with pytest.raises(ValueError, match="unsupported Unicode escape sequence") as refused:
        await store.put(new(text="a canary\0b"))
    assert "canary" not in str(refused.value)  # it is logged, and the server quotes what was said
    deep = msgspec.structs.replace(new(), response=b'{"output":' + b"[" * 980 + b"]" * 980 + b"}")
    with pytest.raises(ValueError, match="nested"):
        await store.put(deep)
    await store.put(new(text="and the next one is kept"))


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Nobody gets at the table."""
    server = os.environ["DATABASE_URL"].rpartition("/")[0]
    with psycopg.connect(f"{server}/{connection.settings_dict['NAME']}") as other:
        other.execute("LOCK TABLE gateway_storedresponse IN ACCESS EXCLUSIVE MODE")
        yield


async def test_a_slow_database_holds_nobody_longer_than_the_deadline() -> None:
    store = DatabaseResponseStore(deadline_seconds=DEADLINE_SECONDS)
    late = [new() for _ in range(5)]
    with locked():
        putting = asyncio.gather(*(store.put(response) for response in late), return_exceptions=True)
        await until(putting.done, DEADLINE_SECONDS + 0.5)
        failures = await putting
        assert all(isinstance(failure, ResponseStoreUnavailable) for failure in failures)
    store._lanes._deadline_seconds = 30.0
    response = new()
    await store.put(response)
    assert await store.get(ANYTIME, response.id)
    kept = await sync_to_async(lambda: list(StoredResponse.objects.values_list("pk", flat=True)))()
    assert kept == [response.id]  # what was told as not stored is not
    await store.aclose()


async def test_a_lost_connection_is_made_anew(store: DatabaseResponseStore) -> None:
    await store.put(new())
    server, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        name = connection.settings_dict["NAME"]
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
    await store.put(new())


def test_retention_deletes_in_batches_what_may_not_be_kept() -> None:
    now = timezone.now()
    short, long = make_tenant("short"), make_tenant("long")
    type(short).objects.filter(pk=short.pk).update(response_retention_days=1)

    def row(tenant_id: UUID, *, age_days: int, days: int) -> None:
        created_at = now - timedelta(days=age_days)
        made = StoredResponse.objects.create(
            id=uuid7_from(int(created_at.timestamp() * 1000), random_bits=uuid4().int),
            tenant_id=tenant_id,
            key_id=uuid4(),
            model="m",
            input=[],
            response={},
            expires_at=now + timedelta(days=days - age_days),
        )
        StoredResponse.objects.filter(pk=made.pk).update(created_at=created_at)

    for tenant in (short, long):
        for _ in range(3):
            row(tenant.pk, age_days=2, days=30)
        row(tenant.pk, age_days=31, days=30)
    row(short.pk, age_days=0, days=1)
    assert delete_expired_responses(now=now, batch=1) == 5  # two over time, three whose tenant keeps less now
    assert delete_expired_responses(now=now) == 0
    assert StoredResponse.objects.filter(tenant_id=long.pk).count() == 3
    assert StoredResponse.objects.filter(tenant_id=short.pk).count() == 1
