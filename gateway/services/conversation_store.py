"""The ConversationStore over PostgreSQL, on a lane of its own: no answer waits for it."""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec
from django.db import connection, transaction

from gateway.models import StoredConversation
from gateway.relay.conversations import MOST_REQUEST_BYTES, ConversationStoreUnavailable, NewConversation
from gateway.relay.plan import Api
from gateway.services.lanes import DatabaseLanes
from tenants.actor import Actor
from tenants.services import record_audit

DEADLINE_SECONDS: Final = 5.0

_RETRY_SECONDS: Final = 5.0


class _Asked(msgspec.Struct):
    messages: list[msgspec.Raw] = []  # msgspec copies it
    system: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")


_asked: Final = msgspec.json.Decoder(_Asked)


class DatabaseConversationStore:
    """See gateway.relay.conversations.ConversationStore; used on one event loop."""

    def __init__(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._lanes = DatabaseLanes(
            "conversations", count=1, deadline_seconds=deadline_seconds, unavailable=_unavailable
        )

    async def put(self, conversation: NewConversation) -> None:
        await self._lanes.call(lambda: put_conversation(conversation), read_only=False)

    async def aclose(self) -> None:
        await self._lanes.aclose()


def _unavailable() -> ConversationStoreUnavailable:
    return ConversationStoreUnavailable(retry_after_seconds=_RETRY_SECONDS)


def put_conversation(new: NewConversation) -> bool:
    """Keep it, unless its tenant is being erased or gone; whether it was. In a transaction.

    Not audited: it is a tenant's data, and the ledger has a row for each request. Raises ValueError.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM tenants_tenant WHERE id = %s AND erasing_at IS NULL FOR KEY SHARE", [new.tenant_id]
        )
        if cursor.fetchone() is None:
            return False
    messages, cut = _messages(new.api, new.body)
    answer = new.answer.messages()
    StoredConversation.objects.create(
        pk=new.id,
        tenant_id=new.tenant_id,
        key_id=new.key_id,
        model=new.model,
        api=new.api,
        streamed=new.streamed,
        outcome=new.outcome,
        messages=messages.decode(),
        answer=msgspec.json.encode(answer).decode(),
        truncated=cut or new.answer.truncated,
        created_at=datetime.fromtimestamp(new.created_at, UTC),
        expires_at=datetime.fromtimestamp(new.expires_at, UTC),
    )
    return True


def _messages(api: Api, body: bytes) -> tuple[bytes, bool]:
    """What was asked as a JSON list of messages, and whether there was more: the last ones are kept then."""
    try:
        asked = _asked.decode(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    found = [bytes(message) for message in asked.messages]
    for role, said in (("system", asked.system), ("user", asked.prompt if api is Api.COMPLETIONS else b"")):
        if bytes(said) not in (b"", b"null"):
            found.insert(0, b'{"role":"%s","content":%s}' % (role.encode(), bytes(said)))
    left, first = MOST_REQUEST_BYTES, len(found)
    while first and len(found[first - 1]) <= left:
        first -= 1
        left -= len(found[first])
    return b"[%s]" % b",".join(found[first:]), first > 0


@transaction.atomic
def delete_conversation(tenant_id: UUID, conversation_id: UUID, *, actor: Actor) -> None:
    """Raises StoredConversation.DoesNotExist."""
    rows: Any = StoredConversation.objects.filter(tenant_id=tenant_id).defer("messages", "answer")
    row = rows.select_for_update().get(pk=conversation_id)
    record_audit("conversation.deleted", subject=row, actor=actor, tenant_id=tenant_id, before={"model": row.model})
    row.delete()
