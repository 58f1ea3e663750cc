"""Understands requests of clients that do not speak OpenAI's chat API."""

from core.errors import NotFound
from gateway.relay.dialects.messages.request import count_tokens_work, messages_work
from gateway.relay.dialects.responses import Responses
from gateway.relay.plan import Api, SlimRequest, Work
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body
from tenants.principal import Principal


class Interpreter:
    """Turns a request in another dialect into work in OpenAI's words. Without `responses` there is no such API here."""

    def __init__(self, responses: Responses | None = None) -> None:
        self._responses = responses

    async def interpret(self, request: SlimRequest, principal: Principal) -> Work:
        """Raises GatehouseError, with `param` naming the member at fault in the client's own words."""
        match request.api:
            case Api.MESSAGES:
                return messages_work(request)
            case Api.COUNT_TOKENS:
                return count_tokens_work(request)
            case Api.RESPONSES if self._responses is not None:
                return await self._responses.interpret(request, principal)
            case Api.REALTIME:  # the conversation's own words are OpenAI's chat already
                body = request.body
                return Work(Api.CHAT, ENGINE_PATHS[Api.CHAT], body, parse_body(Api.CHAT, body))
            case Api.RESPONSES:
                raise NotFound
            case _:
                raise ValueError(f"{request.api} needs no interpreter")
