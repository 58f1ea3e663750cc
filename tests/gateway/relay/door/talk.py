"""A client of `/v1/realtime`, made of the `websockets` library, and what tests say and hear through it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

SECONDS: Final = 10.0

# What a client says first, for tests that speak raw bytes; some put other lines in
HANDSHAKE: Final = (
    "GET /v1/realtime?model=alias HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nX-Other: a\r\n\r\n"
)


class Talk:
    """One connection; what has been heard of it is kept."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.heard: list[dict[str, Any]] = []

    @classmethod
    async def begin(
        cls,
        port: int,
        *,
        model: str = "alias",
        headers: Mapping[str, str] | None = None,
        subprotocols: Sequence[Any] | None = None,
        path: str | None = None,
        **options: Any,
    ) -> "Talk":
        """Connect and hear the greeting. Raises what the library raises for a refusal."""
        address = f"ws://127.0.0.1:{port}{path or f'/v1/realtime?model={model}'}"
        connection = await connect(
            address, additional_headers=dict(headers or {}), subprotocols=subprotocols, proxy=None, **options
        )
        talk = cls(connection)
        assert (await talk.hear())["type"] == "session.created"
        return talk

    async def say(self, kind: str, **members: Any) -> None:
        await self.connection.send(json.dumps({"type": kind, **members}))

    async def hear(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(SECONDS):
                event: dict[str, Any] = json.loads(await self.connection.recv(decode=True))
        except TimeoutError:
            raise AssertionError(f"nothing more was told; last: {self.heard[-1:]}") from None
        self.heard.append(event)
        return event

    async def hear_until(self, kind: str) -> dict[str, Any]:
        """The next event of that type; what came before it is in `heard`."""
        while (event := await self.hear())["type"] != kind:
            pass
        return event

    async def user(self, text: str = "Hi") -> None:
        """Add a user's message to the conversation."""
        content = [{"type": "input_text", "text": text}]
        await self.say("conversation.item.create", item={"type": "message", "role": "user", "content": content})
        await self.hear_until("conversation.item.done")

    async def respond(self, **response: Any) -> dict[str, Any]:
        """Ask for a response and hear it whole; returns it."""
        await self.say("response.create", response=response)
        done = await self.hear_until("response.done")
        return dict(done["response"])

    async def closed(self) -> int | None:
        """The close code, once the other side has closed; what it says before is heard."""
        try:
            while True:
                await self.hear()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else None

    def types(self) -> list[str]:
        return [str(event["type"]) for event in self.heard]

    def leave(self) -> None:
        """Vanish, as a client does that is killed."""
        self.connection.transport.abort()

    async def end(self) -> None:
        await self.connection.close()
