"""Understands requests of clients that do not speak OpenAI's chat API."""

from core.errors import NotFound
from gateway.relay.plan import Api, SlimRequest, Work
from tenants.principal import Principal


class Interpreter:
    """Turns a request in another dialect into work in OpenAI's words."""

    async def interpret(self, request: SlimRequest, principal: Principal) -> Work:
        """Raises GatehouseError, with `param` naming the member at fault in the client's own words."""
        match request.api:
            case Api.MESSAGES | Api.COUNT_TOKENS | Api.RESPONSES | Api.REALTIME:
                raise NotFound
            case _:
                raise ValueError(f"{request.api} needs no interpreter")
