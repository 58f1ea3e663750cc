"""What the Responses API asks of a store of conversations; gateway.services.response_store is one over PostgreSQL."""

from typing import ClassVar, Protocol
from uuid import UUID

import msgspec

from core.errors import InvalidRequest, Unavailable
from tenants.principal import Principal


class ResponseStoreUnavailable(Unavailable):
    """The store cannot be asked now."""

    code: ClassVar[str] = "response_store_unavailable"
    default_message: ClassVar[str] = "Stored responses cannot be read or deleted now."


class ResponseNotFound(InvalidRequest):
    """Unknown, expired, deleted and another tenant's: the same bytes, so ids cannot be probed."""

    status: ClassVar[int] = 404
    code: ClassVar[str] = "response_not_found"
    default_message: ClassVar[str] = "There is no such response, or it is not stored any more."


class PreviousResponseNotFound(ResponseNotFound):
    """The same of the response that a request wants to go on from."""

    code: ClassVar[str] = "previous_response_not_found"


class ConversationTooLong(InvalidRequest):
    """There are more responses before this one, or more bytes in them, than are read back."""

    code: ClassVar[str] = "conversation_too_long"


class Reader(msgspec.Struct, frozen=True):
    """Who reads, and from when on: responses made before `since` (seconds since the epoch) are as good as deleted."""

    tenant_id: UUID
    since: float


class Turn(msgspec.Struct, frozen=True):
    """One stored response as later ones see it: JSON arrays of items."""

    id: UUID
    input: bytes
    output: bytes


class NewResponse(msgspec.Struct, frozen=True):
    """What is kept of one answer. Times are seconds since the epoch; `input` and `response` are JSON."""

    id: UUID
    tenant_id: UUID
    key_id: UUID
    model: str
    previous_id: UUID | None
    input: bytes
    response: bytes
    created_at: float
    expires_at: float


class ResponseStore(Protocol):
    """Conversations of all tenants. Every method raises ResponseStoreUnavailable within a few seconds."""

    async def load_chain(self, reader: Reader, last: UUID, *, most_responses: int, most_bytes: int) -> list[Turn]:
        """`last` and the responses before it, oldest first.

        Raises ResponseNotFound when one of them is not there (any more), ConversationTooLong beyond the bounds.
        """

    async def load(self, reader: Reader, ids: list[UUID], *, most_bytes: int) -> list[Turn]:
        """Those of these responses that are there. Raises ConversationTooLong."""

    async def put(self, response: NewResponse) -> None:
        """Keep it. Raises ValueError for what cannot be kept (a NUL in a text)."""

    async def get(self, reader: Reader, response_id: UUID) -> bytes:
        """The response object as JSON. Raises ResponseNotFound."""

    async def input_items(self, reader: Reader, response_id: UUID) -> bytes:
        """The items of its own request, a JSON array. Raises ResponseNotFound."""

    async def delete(self, reader: Reader, response_id: UUID, *, principal: Principal, request_id: UUID) -> None:
        """Delete it and write who did. Raises ResponseNotFound."""


_PREFIX = "resp_"


def response_name(response_id: UUID) -> str:
    """The id that clients see."""
    return _PREFIX + response_id.hex


def response_uuid(name: str) -> UUID | None:
    """The UUID behind an id that a client sent; None where it cannot be one of ours."""
    digits = name.removeprefix(_PREFIX)
    if len(digits) != 32 or digits == name or not digits.isascii():
        return None
    try:
        return UUID(hex=digits)
    except ValueError:
        return None
