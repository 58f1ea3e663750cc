"""OpenAI's Responses API on engines that speak its chat API, with stored conversations.

What a model is told is the conversation that the store holds, then the request's own items. What it answers is kept
before the client has its last bytes; where that fails the client has them all the same, and is told `store: false`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import msgspec
import structlog

from core.errors import GatehouseError
from gateway.relay.dialects.aside import Aside
from gateway.relay.dialects.response_store import (
    ConversationTooLong,
    NewResponse,
    PreviousResponseNotFound,
    Reader,
    ResponseNotFound,
    ResponseStore,
    ResponseStoreUnavailable,
    Turn,
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
from gateway.relay.dialects.responses_items import references, resolve, stored_items, with_ids
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
        self._aside = Aside()

    async def interpret(
        self, request: SlimRequest, principal: Principal, admit: Callable[[str], Awaitable[None]]
    ) -> Work:
        """Raises GatehouseError, with `param` in the client's words.

        `admit` is awaited with the model's name before the store is asked. Memory for what that gives is put on the
        request's claim.
        """
        size = len(request.body)
        asked = await self._aside.run(lambda: Asked(request.body, request.request_id), size_bytes=size)
        wanted = references(asked.items)
        turns: list[Turn] = []
        named: list[Turn] = []
        if asked.previous_id is not None or wanted:
            await admit(asked.model)
            if asked.previous_id is not None:
                turns = await self._conversation(asked.previous_id, principal)
            if wanted:
                named = await self._named(wanted, principal)
            read = sum(len(turn.input) + len(turn.output) for turn in (*turns, *named))
            size += read
            if request.claim is not None:
                request.claim.take(read)
        work, kept_bytes = await self._aside.run(
            lambda: self._work(request, principal, asked, turns, named), size_bytes=size
        )
        if request.claim is not None:
            request.claim.take(kept_bytes)
        return work

    def _work(
        self, request: SlimRequest, principal: Principal, asked: Asked, turns: list[Turn], named: list[Turn]
    ) -> tuple[Work, int]:
        """The work, and the bytes that are held besides it until its answer is kept."""
        items = resolve(asked.items, named, most_bytes=self._most_bytes)
        body = asked.chat_body(stored_items(turns), items)
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
                key_id=principal.pk,
                model=parsed.model,
                previous_id=asked.previous_id,
                input=msgspec.json.encode(with_ids(items, request.request_id)),
                response=b"",
                created_at=created_at,
                expires_at=expires_at,
            )
        dialect = ResponsesDialect(frame, keep, self._store, self._retention.now)
        kept_bytes = 0 if keep is None else len(keep.input)
        return Work(Api.CHAT, ENGINE_PATHS[Api.CHAT], body, parsed, dialect), kept_bytes

    async def _conversation(self, last: UUID, principal: Principal) -> list[Turn]:
        reader = self._retention.reader(principal.tenant_id)
        if reader is None:
            raise PreviousResponseNotFound(param="previous_response_id")
        if self._store is None:
            raise ResponseStoreUnavailable(param="previous_response_id", retry_after_seconds=_RETRY_SECONDS)
        try:
            return await self._store.load_chain(
                reader, last, most_responses=MOST_RESPONSES, most_bytes=self._most_bytes
            )
        except ResponseNotFound as error:
            raise PreviousResponseNotFound(param="previous_response_id") from error

    async def _named(self, wanted: dict[str, UUID], principal: Principal) -> list[Turn]:
        """The responses that items of these names belong to, as far as there are any."""
        reader = self._retention.reader(principal.tenant_id)
        if reader is None:
            return []
        if self._store is None:
            raise ResponseStoreUnavailable(param="input", retry_after_seconds=_RETRY_SECONDS)
        try:
            return await self._store.load(reader, sorted(set(wanted.values())), most_bytes=self._most_bytes)
        except ConversationTooLong as error:
            raise ConversationTooLong(error.message, param="input") from error


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
