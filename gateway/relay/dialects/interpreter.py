"""Understands requests of clients that do not speak OpenAI's chat API."""

from collections.abc import Awaitable, Callable

from core.errors import InvalidRequest, NotFound
from gateway.relay.dialects.aside import Aside
from gateway.relay.dialects.infer import infer_work
from gateway.relay.dialects.messages.request import count_tokens_work, messages_work
from gateway.relay.dialects.responses import Responses
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body
from tenants.principal import Principal

Admit = Callable[[str], Awaitable[None]]
"""Awaited with the model's name before anything is fetched for a request. Raises GatehouseError."""


class Interpreter:
    """Turns a request in another dialect into work in OpenAI's words. Without `responses` there is no such API here."""

    def __init__(self, responses: Responses | None = None) -> None:
        self._responses = responses
        self._aside = Aside()

    async def interpret(self, request: SlimRequest, principal: Principal, admit: Admit) -> Work:
        """Raises GatehouseError, with `param` naming the member at fault in the client's own words.

        Memory for what is fetched is put on the request's claim; the work's body is not.
        """
        try:
            return await self._interpret(request, principal, admit)
        except RecursionError as error:  # a little less deep than what is no JSON for us at all
            raise InvalidRequest("The body is nested too deeply.") from error

    async def _interpret(self, request: SlimRequest, principal: Principal, admit: Admit) -> Work:
        size = len(request.body)
        match request.api:
            case Api.MESSAGES:
                return await self._aside.run(lambda: messages_work(request), size_bytes=size)
            case Api.COUNT_TOKENS:
                return await self._aside.run(lambda: count_tokens_work(request), size_bytes=size)
            case Api.RESPONSES if self._responses is not None:
                return await self._responses.interpret(request, principal, admit)
            case Api.INFER:
                return await self._aside.run(lambda: infer_work(request), size_bytes=size)
            case Api.REALTIME:  # the conversation's own words are OpenAI's chat already
                body = request.body
                return Work(Api.CHAT, ENGINE_PATHS[Api.CHAT], body, parse_body(Api.CHAT, body))
            case Api.RESPONSES:
                raise NotFound
            case _:
                raise ValueError(f"{request.api} needs no interpreter")
