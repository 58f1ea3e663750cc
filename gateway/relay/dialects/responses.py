"""OpenAI's Responses API on engines that speak its chat API, with stored conversations.

What a model is told is the conversation that the store holds, then the request's own items. What it answers is kept
before the client has its last bytes; where that fails the client has them all the same, and is told `store: false`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog

from core.errors import GatehouseError
from gateway.relay.dialects.response_store import (
    ConversationTooLong,
    NewResponse,
    PreviousResponseNotFound,
    Reader,
    ResponseNotFound,
    ResponseStore,
    ResponseStoreUnavailable,
)
from gateway.relay.dialects.responses_answer import (
    ChatUsage,
    Choice,
    Frame,
    Said,
    completions,
    final_status,
    output_items,
)
from gateway.relay.dialects.responses_items import Item, references, resolve, stored_items, with_ids
from gateway.relay.dialects.responses_request import Asked
from gateway.relay.dialects.responses_stream import ResponsesStream, error_event
from gateway.relay.plan import Api, DialectStream, SlimRequest, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body
from tenants.principal import Principal

log = structlog.get_logger(__name__)

MOST_RESPONSES: Final = 200
"""Responses that a conversation is read back over."""

_DAY_SECONDS: Final = 86_400
_RETRY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Retention:
    """How long answers are kept. `now`: seconds since the epoch; `days_of`: a tenant's days, 0 for not at all."""

    now: Callable[[], float]
    days_of: Callable[[UUID], int]

    def reader(self, tenant_id: UUID) -> Reader | None:
        """What the tenant may read; None when it keeps nothing."""
        days = self.days_of(tenant_id)
        return Reader(tenant_id, self.now() - days * _DAY_SECONDS) if days > 0 else None

    def expires_at(self, tenant_id: UUID, created_at: float) -> float | None:
        """When an answer of `created_at` is to be gone; None when it is not to be kept."""
        days = self.days_of(tenant_id)
        return created_at + days * _DAY_SECONDS if days > 0 else None


class Responses:
    """Interprets requests to /v1/responses. Without a `store` nothing is kept and nothing can be gone on from.

    `most_bytes`: bound on the stored conversation that a request goes on from.
    """

    def __init__(self, store: ResponseStore | None, retention: Retention, *, most_bytes: int) -> None:
        self._store = store
        self._retention = retention
        self._most_bytes = most_bytes

    async def interpret(self, request: SlimRequest, principal: Principal) -> Work:
        """Raises GatehouseError, with `param` in the client's words."""
        asked = Asked(request.body, request.request_id)
        before = await self._conversation(asked, principal)
        items = await self._resolved(asked.items, principal)
        body = asked.chat_body(before, items)
        parsed = parse_body(Api.CHAT, body)
        created_at = self._retention.now()
        expires_at = self._retention.expires_at(principal.tenant_id, created_at) if asked.store else None
        if self._store is None:
            expires_at = None
        echo = {**asked.echo(), "store": expires_at is not None}
        frame = Frame(request.request_id, int(created_at), parsed.model, echo)
        keep: NewResponse | None = None
        if expires_at is not None:
            keep = NewResponse(
                id=request.request_id,
                tenant_id=principal.tenant_id,
                key_id=principal.key_id,
                model=parsed.model,
                previous_id=asked.previous_id,
                input=msgspec.json.encode(with_ids(items, request.request_id)),
                response=b"",
                created_at=created_at,
                expires_at=expires_at,
            )
        dialect = ResponsesDialect(frame, keep, self._store, self._retention.now)
        return Work(Api.CHAT, ENGINE_PATHS[Api.CHAT], body, parsed, dialect)

    async def _conversation(self, asked: Asked, principal: Principal) -> list[Item]:
        if asked.previous_id is None:
            return []
        reader = self._retention.reader(principal.tenant_id)
        if reader is None:
            raise PreviousResponseNotFound(param="previous_response_id")
        if self._store is None:
            raise ResponseStoreUnavailable(param="previous_response_id", retry_after_seconds=_RETRY_SECONDS)
        try:
            turns = await self._store.load_chain(
                reader, asked.previous_id, most_responses=MOST_RESPONSES, most_bytes=self._most_bytes
            )
        except ResponseNotFound as error:
            raise PreviousResponseNotFound(param="previous_response_id") from error
        return stored_items(turns)

    async def _resolved(self, items: list[Item], principal: Principal) -> list[Item]:
        wanted = references(items)
        if not wanted:
            return items
        reader = self._retention.reader(principal.tenant_id)
        if reader is None:
            return resolve(items, [])
        if self._store is None:
            raise ResponseStoreUnavailable(param="input", retry_after_seconds=_RETRY_SECONDS)
        try:
            turns = await self._store.load(reader, sorted(set(wanted.values())), most_bytes=self._most_bytes)
        except ConversationTooLong as error:
            raise ConversationTooLong(error.message, param="input") from error
        return resolve(items, turns)


class ResponsesDialect:
    """How one request to the Responses API is answered; see gateway.relay.plan.Dialect."""

    def __init__(
        self, frame: Frame, keep: NewResponse | None, store: ResponseStore | None, now: Callable[[], float]
    ) -> None:
        self._frame = frame
        self._keep = keep
        self._store = store
        self._now = now
        self._stream: ResponsesStream | None = None

    def stream(self) -> DialectStream:
        self._stream = ResponsesStream(self._frame, self._finish)
        return self._stream

    async def whole(self, body: bytes) -> bytes:
        completion = completions.decode(body)
        choice = next((choice for choice in completion.choices if choice.index == 0), None)
        if choice is None:
            raise ValueError("it has no choice")
        status = final_status(choice.finish_reason)
        output = output_items(choice.message or Said(), _logprobs(choice), self._frame.id, status)
        return msgspec.json.encode(await self._finish(output, choice.finish_reason, completion.usage))

    @property
    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def error_event(self, error: GatehouseError) -> bytes:
        return error_event(error) if self._stream is None else self._stream.error_event(error)

    async def _finish(
        self, output: list[dict[str, Any]], finish_reason: str | None, usage: ChatUsage | None
    ) -> dict[str, Any]:
        """The response object at its end; it has been kept when this returns, or says that it was not."""
        status = final_status(finish_reason)
        response = self._frame.response(
            status,
            output,
            usage=usage,
            finish_reason=finish_reason,
            completed_at=int(self._now()) if status == "completed" else None,
        )
        if self._keep is not None and not await self._kept(self._keep, response):
            response["store"] = False
        return response

    async def _kept(self, keep: NewResponse, response: dict[str, Any]) -> bool:
        assert self._store is not None
        try:
            await self._store.put(msgspec.structs.replace(keep, response=msgspec.json.encode(response)))
        except (ResponseStoreUnavailable, ValueError) as error:
            log.warning("response_not_stored", request_id=str(keep.id), error=str(error))
            return False
        return True


def _logprobs(choice: Choice) -> list[dict[str, Any]]:
    return (choice.logprobs.content if choice.logprobs else None) or []
