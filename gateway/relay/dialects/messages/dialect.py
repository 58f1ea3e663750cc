"""How a client of Anthropic's Messages API is answered."""

from collections.abc import Collection
from typing import Final
from uuid import UUID

from core.errors import GatehouseError
from gateway.relay.dialects.base import render_error_event
from gateway.relay.dialects.messages.answer import token_count, whole_message
from gateway.relay.dialects.messages.stream import MessageStream
from gateway.relay.plan import Api, DialectStream

_PING: Final = b'event: ping\ndata: {"type": "ping"}\n\n'


class MessagesDialect:
    """The answer to one Messages request: a message object, or the events of one."""

    def __init__(
        self, request_id: UUID, model: str, *, stop_sequences: Collection[str] = (), show_thinking: bool = True
    ) -> None:
        self._request_id = request_id
        self._model = model
        self._stop_sequences = stop_sequences
        self._show_thinking = show_thinking

    def stream(self) -> DialectStream:
        return MessageStream(
            self._request_id,
            self._model,
            stop_sequences=self._stop_sequences,
            show_thinking=self._show_thinking,
        )

    async def whole(self, body: bytes) -> bytes:
        return whole_message(
            body,
            request_id=self._request_id,
            model=self._model,
            stop_sequences=self._stop_sequences,
            show_thinking=self._show_thinking,
        )

    @property
    def keep_alive(self) -> bytes:
        return _PING

    def error_event(self, error: GatehouseError) -> bytes:
        return render_error_event(Api.MESSAGES, error, self._request_id)


class TokenCountDialect:
    """The answer to one count of tokens; never streamed."""

    def __init__(self, request_id: UUID) -> None:
        self._request_id = request_id

    def stream(self) -> DialectStream:
        raise NotImplementedError("a count is not streamed")

    async def whole(self, body: bytes) -> bytes:
        return token_count(body)

    @property
    def keep_alive(self) -> bytes:
        return _PING

    def error_event(self, error: GatehouseError) -> bytes:
        return render_error_event(Api.COUNT_TOKENS, error, self._request_id)
