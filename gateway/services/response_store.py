"""The ResponseStore over PostgreSQL, on lanes of its own: no answer is held by its keeping longer than a deadline."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from django.db import connection
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from gateway.models import StoredResponse
from gateway.relay.dialects.response_store import (
    ConversationTooLong,
    NewResponse,
    Reader,
    ResponseNotFound,
    ResponseStoreUnavailable,
    Turn,
)
from gateway.services.lanes import DatabaseLanes
from tenants.actor import Actor, machine_actor
from tenants.principal import Principal
from tenants.services import record_audit

DEADLINE_SECONDS: Final = 2.0

_LANES: Final = 2
_RETRY_SECONDS: Final = 2.0
_TURNS_PER_READ: Final = 10
_CHAIN: Final = """
WITH RECURSIVE chain AS (
    SELECT id, previous_id, 1 AS depth FROM gateway_storedresponse
    WHERE id = %(last)s AND tenant_id = %(tenant)s AND expires_at > now() AND created_at > %(since)s
    UNION ALL
    SELECT earlier.id, earlier.previous_id, chain.depth + 1
    FROM chain JOIN gateway_storedresponse AS earlier ON earlier.id = chain.previous_id
    WHERE earlier.tenant_id = %(tenant)s AND earlier.expires_at > now() AND earlier.created_at > %(since)s
        AND chain.depth <= %(most)s
)
SELECT id, previous_id FROM chain ORDER BY depth
"""
_TURNS: Final = """
SELECT id, input::text, (response -> 'output')::text FROM gateway_storedresponse
WHERE id = ANY(%(ids)s) AND tenant_id = %(tenant)s AND expires_at > now() AND created_at > %(since)s
"""

T = TypeVar("T")


class DatabaseResponseStore:
    """See gateway.relay.dialects.response_store.ResponseStore; used on one event loop."""

    def __init__(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._lanes = DatabaseLanes(
            "responses", count=_LANES, deadline_seconds=deadline_seconds, unavailable=_unavailable
        )

    async def load_chain(self, reader: Reader, last: UUID, *, most_responses: int, most_bytes: int) -> list[Turn]:
        return await self._read(lambda: _load_chain(reader, last, most_responses, most_bytes))

    async def load(self, reader: Reader, ids: list[UUID], *, most_bytes: int) -> list[Turn]:
        return await self._read(lambda: _load_turns(reader, ids, most_bytes))

    async def put(self, response: NewResponse) -> None:
        await self._lanes.call(lambda: _put(response), read_only=False)

    async def get(self, reader: Reader, response_id: UUID) -> bytes:
        return await self._read(lambda: _json(_rows(reader, response_id), "response"))

    async def input_items(self, reader: Reader, response_id: UUID) -> bytes:
        return await self._read(lambda: _json(_rows(reader, response_id), "input"))

    async def delete(self, reader: Reader, response_id: UUID, *, principal: Principal, request_id: UUID) -> None:
        actor = machine_actor(principal.key_id, principal.subject_id, request_id=request_id)
        await self._lanes.call(lambda: _delete(reader, response_id, actor), read_only=False)

    async def aclose(self) -> None:
        """End all calls and give the connections up."""
        await self._lanes.aclose()

    async def _read(self, call: Callable[[], T]) -> T:
        return await self._lanes.call(call, read_only=True)


def _unavailable() -> ResponseStoreUnavailable:
    return ResponseStoreUnavailable(retry_after_seconds=_RETRY_SECONDS)


def _rows(reader: Reader, response_id: UUID) -> QuerySet[StoredResponse]:
    return StoredResponse.objects.filter(
        pk=response_id, tenant_id=reader.tenant_id, expires_at__gt=timezone.now(), created_at__gt=_time(reader.since)
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(max(0.0, seconds), UTC)


def _json(rows: QuerySet[StoredResponse], field: str) -> bytes:
    """One JSON field. Raises ResponseNotFound."""
    # As the text that it is: many megabytes made into objects and back would hold every other thread.
    row: str | None = rows.values_list(Cast(field, TextField()), flat=True).first()
    if row is None:
        raise ResponseNotFound
    return row.encode()


def _load_chain(reader: Reader, last: UUID, most_responses: int, most_bytes: int) -> list[Turn]:
    with connection.cursor() as cursor:
        asked: dict[str, Any] = {
            "last": last,
            "tenant": reader.tenant_id,
            "since": _time(reader.since),
            "most": most_responses,
        }
        cursor.execute(_CHAIN, asked)
        chain = cursor.fetchall()
    if not chain:
        raise ResponseNotFound
    if len(chain) > most_responses:
        raise ConversationTooLong(
            f"There are more than {most_responses} responses in this conversation.", param="previous_response_id"
        )
    if chain[-1][1] is not None:  # told as an unknown one: half a conversation would be another one
        raise ResponseNotFound
    return _load_turns(reader, [row[0] for row in reversed(chain)], most_bytes)


def _load_turns(reader: Reader, ids: list[UUID], most_bytes: int) -> list[Turn]:
    """In the order of `ids`. Reads a few at a time, so that no more than the bound is ever held."""
    turns: dict[UUID, Turn] = {}
    size = 0
    with connection.cursor() as cursor:
        for start in range(0, len(ids), _TURNS_PER_READ):
            batch = ids[start : start + _TURNS_PER_READ]
            cursor.execute(_TURNS, {"ids": batch, "tenant": reader.tenant_id, "since": _time(reader.since)})
            for turn_id, items, output in cursor.fetchall():
                turn = turns[turn_id] = Turn(turn_id, items.encode(), (output or "[]").encode())
                size += len(turn.input) + len(turn.output)
            if size > most_bytes:
                raise ConversationTooLong(
                    f"The stored items are larger than {most_bytes} bytes.", param="previous_response_id"
                )
    return [turns[turn_id] for turn_id in ids if turn_id in turns]


def _put(response: NewResponse) -> None:
    """Not audited: it is a tenant's data, and the ledger has a row for each request."""
    StoredResponse.objects.create(
        pk=response.id,
        tenant_id=response.tenant_id,
        key_id=response.key_id,
        model=response.model,
        previous_id=response.previous_id,
        input=msgspec.json.decode(response.input),
        response=msgspec.json.decode(response.response),
        expires_at=_time(response.expires_at),
    )


def _delete(reader: Reader, response_id: UUID, actor: Actor) -> None:
    row = _rows(reader, response_id).defer("input", "response").select_for_update().first()
    if row is None:
        raise ResponseNotFound
    record_audit("response.deleted", subject=row, actor=actor, tenant_id=row.tenant_id, before={"model": row.model})
    row.delete()
