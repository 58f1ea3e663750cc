"""Conversations: who may read them, how long they are kept, and that no answer ever waits for their keeping."""

import asyncio
import json
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from core.ids import uuid7, uuid7_from
from gateway.models import StoredConversation
from gateway.relay import conversations as kept
from gateway.relay.assembly import Assembly
from gateway.relay.conversations import (
    MOST_REQUEST_BYTES,
    Conversations,
    ConversationStoreUnavailable,
    NewConversation,
)
from gateway.relay.plan import Api, Outcome, Ready, Settlement, SlimRequest, Usage, Work
from gateway.relay.splice import parse_body
from gateway.services.conversation_store import put_conversation
from gateway.services.response_retention import delete_expired_conversations
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, PlatformRole, Tenant, TenantRole
from tenants.principal import Principal
from tenants.services.departments import change_tenant
from tests.factories import make_member, make_tenant, make_user
from tests.gateway.relay.door.house import FirstPicker, NotedTicket
from tests.gateway.relay.test_coalesce import FakeExchange

pytestmark = pytest.mark.django_db
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi \u0000 there"}]}).encode()
ANSWER = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}}]}).encode()


def new(tenant: Tenant, *, body: bytes = BODY, api: Api = Api.CHAT, days: float = 30) -> NewConversation:
    answer = Assembly(api, streamed=False, most_bytes=1000)
    answer.add(ANSWER)
    now = time.time()
    return NewConversation(
        uuid7(), tenant.pk, uuid4(), "m", api, False, Outcome.SUCCESS, body, answer, now, now + days * 86_400
    )


def stored(tenant: Tenant, **values: Any) -> StoredConversation:
    one = new(tenant, **values)
    assert put_conversation(one)
    return StoredConversation.objects.get(pk=one.id)


@pytest.fixture
def acme() -> Tenant:
    return make_tenant("acme")


def client_of(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.mark.shows("R5")
def test_owners_and_admins_read_and_delete_and_no_platform_role_reads(acme: Tenant) -> None:
    row, other = stored(acme), stored(make_tenant())
    addresses = ["/api/tenants/acme/conversations/", f"/api/tenants/acme/conversations/{row.pk}/"]
    admin = client_of(make_member(acme, role=TenantRole.ADMIN))
    told = admin.get(addresses[0]).json()["results"]
    assert [(one["id"], "messages" in one) for one in told] == [(str(row.pk), False)]
    whole = admin.get(addresses[1]).json()
    assert whole["messages"] == [{"role": "user", "content": "Hi \u0000 there"}]
    assert whole["answer"] == [{"role": "assistant", "content": "Hello"}]
    assert admin.get(f"/api/tenants/acme/conversations/{other.pk}/").status_code == 404
    assert admin.delete(f"/api/tenants/acme/conversations/{other.pk}/").status_code == 404
    assert admin.get(addresses[0], {"key_id": str(uuid4())}).json()["results"] == []
    superuser = client_of(make_user(platform_role=PlatformRole.SUPERUSER))
    others = [make_member(acme), make_user(platform_role=PlatformRole.OPERATOR)]
    for client in (superuser, *map(client_of, others)):
        assert [client.get(address).status_code for address in addresses] == [403, 403]
    assert client_of(make_user()).get(addresses[1]).status_code == 404
    assert client_of(others[0]).delete(addresses[1]).status_code == 403
    assert superuser.delete(addresses[1]).status_code == 204
    assert admin.delete(addresses[1]).status_code == 404
    event = AuditEvent.objects.get(action="conversation.deleted")
    assert (event.subject_id, event.tenant_id, event.before) == (row.pk, acme.pk, {"model": "m"})


@pytest.mark.shows("R5")
def test_what_is_past_its_days_is_hidden_at_once_and_deleted_by_the_task(acme: Tenant) -> None:
    admin = client_of(make_member(acme, role=TenantRole.OWNER))
    old, fresh, over = stored(acme), stored(acme), stored(acme, days=-1)
    made = timezone.now() - timedelta(days=10)
    StoredConversation.objects.filter(pk=old.pk).update(
        id=uuid7_from(int(made.timestamp() * 1000), random_bits=7), created_at=made
    )
    assert len(admin.get("/api/tenants/acme/conversations/").json()["results"]) == 2
    change_tenant(acme.pk, conversation_retention_days=5, actor=SYSTEM)
    assert [one["id"] for one in admin.get("/api/tenants/acme/conversations/").json()["results"]] == [str(fresh.pk)]
    assert delete_expired_conversations(now=timezone.now()) == 2
    assert [*StoredConversation.objects.values_list("pk", flat=True)] == [fresh.pk]
    assert delete_expired_conversations(now=timezone.now()) == 0
    assert over.pk != fresh.pk


def test_nothing_is_stored_for_a_tenant_that_is_being_erased_or_gone(acme: Tenant) -> None:
    Tenant.objects.filter(pk=acme.pk).update(erasing_at=timezone.now())
    gone = Tenant(pk=uuid7())
    assert [put_conversation(new(tenant)) for tenant in (acme, gone)] == [False, False]


def test_of_long_requests_the_last_messages_are_kept(acme: Tenant) -> None:
    messages = [{"role": "user", "content": f"{number}" + "x" * (MOST_REQUEST_BYTES // 3)} for number in range(5)]
    row = stored(acme, body=json.dumps({"messages": messages, "system": "be kind"}).encode())
    assert [message["content"][0] for message in json.loads(row.messages)] == ["3", "4"]
    assert row.truncated


@pytest.mark.parametrize(
    ("api", "body", "messages"),
    [
        (Api.MESSAGES, {"system": "be kind", "messages": [1]}, [{"role": "system", "content": "be kind"}, 1]),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, [{"role": "user", "content": ["a", "b"]}]),
    ],
)
def test_requests_are_kept_as_messages(acme: Tenant, api: Api, body: Any, messages: list[Any]) -> None:
    row = stored(acme, api=api, body=json.dumps(body).encode())
    assert json.loads(row.messages) == messages


# What passes by


class Store:
    """Keeps what it is given, once it is let."""

    def __init__(self) -> None:
        self.put_ones: list[NewConversation] = []
        self.error: Exception | None = None
        self.may = asyncio.Event()

    async def put(self, conversation: NewConversation) -> None:
        await self.may.wait()
        if self.error is not None:
            raise self.error
        self.put_ones.append(conversation)

    async def aclose(self) -> None:
        pass


def ready_of(*, wished: bool = True, api: Api = Api.CHAT, stream: bool = False) -> Ready:
    principal = Principal(uuid4(), "acme", uuid4(), frozenset({"infer"}), (), None, store_conversations=wished)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": stream}).encode()
    request = SlimRequest(uuid7(), api, "/v1/chat/completions", (), body, 0.0)
    return Ready(request, principal, Work(api, "/", body, parse_body(Api.CHAT, body)), FirstPicker([]), NotedTicket([]))


class Kept:
    def __init__(self, *, days: int = 30) -> None:
        self.store = Store()
        self.conversations = Conversations(self.store, lambda tenant: days, now=time.time, door="relay")
        self.fakes: list[FakeExchange] = []

    def carry(self, ready: Ready) -> Any:
        def make(ready: Ready) -> Any:
            self.fakes.append(FakeExchange(ready))
            return self.fakes[-1]

        return self.conversations.keep(ready, make)


async def _answered(kept_ones: Kept, ready: Ready, *pieces: bytes) -> None:
    carrier = kept_ones.carry(ready)
    for number, piece in enumerate(pieces, 1):
        kept_ones.fakes[-1].give(piece, last=number == len(pieces))
    await carrier.open()
    told = b""
    while not carrier.finished:
        told += await carrier.next_chunk()
    assert told == b"".join(pieces)


@pytest.mark.shows("R5")
async def test_only_requests_of_keys_that_wish_it_pass_through_here() -> None:
    house = Kept()
    for ready in (ready_of(wished=False), ready_of(api=Api.EMBEDDINGS)):
        assert house.carry(ready) is house.fakes[-1]
        assert isinstance(ready.ticket, NotedTicket)
    forgetful = Kept(days=0)
    assert forgetful.carry(ready_of()) is forgetful.fakes[-1]


async def test_answers_do_not_wait_and_what_there_is_no_room_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "QUEUE_CAP", 3)
    house = Kept()
    task = asyncio.create_task(house.conversations.run())
    await asyncio.sleep(0)
    for _ in range(9):  # the store lets nothing through, and all are answered
        await _answered(house, ready_of(), ANSWER)
    house.store.may.set()
    await house.conversations.flush(5.0)
    assert len(house.store.put_ones) in (3, 4)  # one may have been on its way
    task.cancel()


async def test_what_was_streamed_counts_as_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "QUEUE_BYTES", 500_000)
    house = Kept()
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 15_000)
    for _ in range(2):
        await _answered(house, ready_of(stream=True), *[event] * 20)
    house.store.may.set()
    task = asyncio.create_task(house.conversations.run())
    await house.conversations.flush(5.0)
    assert len(house.store.put_ones) == 1
    task.cancel()


@pytest.mark.parametrize("error", [ConversationStoreUnavailable(), ValueError("a NUL"), TypeError("a defect")])
async def test_what_cannot_be_stored_is_dropped_and_the_next_one_is_kept(error: Exception) -> None:
    house = Kept()
    house.store.may.set()
    house.store.error = error
    task = asyncio.create_task(house.conversations.run())
    await _answered(house, ready_of(), ANSWER)
    await house.conversations.flush(5.0)
    house.store.error = None
    await _answered(house, ready_of(), ANSWER)
    await house.conversations.flush(5.0)
    assert [one.answer.messages() for one in house.store.put_ones] == [[{"role": "assistant", "content": "Hello"}]]
    task.cancel()


async def test_what_was_said_before_the_client_left_is_kept_and_failures_are_not() -> None:
    house = Kept()
    house.store.may.set()
    task = asyncio.create_task(house.conversations.run())
    left = house.carry(ready_of(stream=True))
    house.fakes[-1].give(b'data: {"choices":[{"index":0,"delta":{"content":"Hel"}}]}\n\n')
    await left.open()
    await left.next_chunk()
    left.close()
    left.close()
    failed = ready_of()
    carrier = house.carry(failed)
    failed.ticket.settle(Settlement(Outcome.FAILED, 502, Usage(), 0.1))
    carrier.close()
    await house.conversations.flush(5.0)
    (one,) = house.store.put_ones
    assert (one.outcome, one.answer.messages()) == (Outcome.CANCELLED, [{"role": "assistant", "content": "Hel"}])
    task.cancel()


async def test_what_waits_when_a_process_stops_is_dropped_after_a_while() -> None:
    house = Kept()
    task = asyncio.create_task(house.conversations.run())
    for _ in range(3):
        await _answered(house, ready_of(), ANSWER)
    await house.conversations.flush(0.05)
    house.store.may.set()
    task.cancel()
    assert house.store.put_ones == []
