"""How a client that does not speak OpenAI's chat API is understood and answered.

A dialect turns the client's request into a body in OpenAI's words (that is what every engine is asked in,
see `Work`), and OpenAI's answer into the client's. What it reads of an answer has been through
CompletionStream: whole events, the client's model name, usage included.
"""

from typing import Protocol
from uuid import UUID

from core.errors import GatehouseError, render_anthropic, render_anthropic_event, render_openai, render_openai_event
from gateway.relay.plan import Api

_ANTHROPIC = frozenset({Api.MESSAGES, Api.COUNT_TOKENS})


class DialectStream(Protocol):
    """One streamed answer, in the client's words. Made anew for each attempt."""

    def feed(self, event: bytes) -> bytes:
        """One whole SSE event of OpenAI's (a chunk, or a comment) in the client's words, b"" for nothing.

        `[DONE]` is not fed: `finish` is called for it.
        """

    async def finish(self) -> bytes:
        """The events that end the answer; what is to be kept of it has been kept when this returns."""


class Dialect(Protocol):
    """One request's dialect. No clock and no network; `finish` and `whole` may await a store."""

    def stream(self) -> DialectStream:
        """A translator for one attempt at a streamed answer."""

    async def whole(self, body: bytes) -> bytes:
        """The whole answer `body` (OpenAI's JSON) in the client's words. Raises ValueError for one of another shape."""

    @property
    def keep_alive(self) -> bytes:
        """What is sent while there is nothing to say, so that nobody on the way closes the connection."""

    def error_event(self, error: GatehouseError) -> bytes:
        """An error in a stream that has already begun."""


def render_error(api: Api, error: GatehouseError, request_id: UUID) -> bytes:
    """An error's body in the shape that clients of this API know."""
    return render_anthropic(error, str(request_id)) if api in _ANTHROPIC else render_openai(error)


def render_error_event(api: Api, error: GatehouseError, request_id: UUID) -> bytes:
    """The same as an SSE event, for a stream that has already begun."""
    return render_anthropic_event(error, str(request_id)) if api in _ANTHROPIC else render_openai_event(error)
