"""Sockets of `/ws/live` for tests: real sessions, real Valkey, the consumer that runs in the web process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from asgiref.testing import ApplicationCommunicator
from channels.routing import URLRouter
from channels.sessions import SessionMiddlewareStack
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore

from dashboard.routing import websocket_urlpatterns
from tenants.models import User

DEADLINE = 30.0


def session_of(user: User | None) -> str:
    """The key of a session in which `user` is logged in."""
    store = SessionStore()
    if user is not None:
        store[SESSION_KEY] = str(user.pk)
        store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.save()
    assert store.session_key is not None
    return store.session_key


class Socket:
    """A page's end."""

    def __init__(self, communicator: Any) -> None:
        self._communicator = communicator
        self.accepted = False

    async def open(self) -> Self:
        """Wait for the handshake's end; `accepted` says how it ended."""
        await self._communicator.send_input({"type": "websocket.connect"})
        self.accepted = (await self.raw())["type"] == "websocket.accept"
        return self

    async def raw(self) -> dict[str, Any]:
        """The next thing that the server does."""
        return cast("dict[str, Any]", await self._communicator.receive_output(timeout=DEADLINE))

    async def said(self) -> Any:
        """The next message: an object, or bytes."""
        event = await self.raw()
        assert event["type"] == "websocket.send", event
        return event["bytes"] if event.get("bytes") is not None else json.loads(event["text"])

    async def frame(self) -> Any:
        """The next frame, past what is none."""
        async with asyncio.timeout(DEADLINE):
            while isinstance(said := await self.said(), dict) and "op" in said:
                pass
        return said

    async def told(self, operation: str) -> Any:
        """The next message that is no frame, of that kind."""
        async with asyncio.timeout(DEADLINE):
            while (said := await self.said()).get("op") != operation:
                pass
        return said

    async def closed(self) -> tuple[int, str]:
        """Code and reason of the close, past frames that are still coming."""
        async with asyncio.timeout(DEADLINE):
            while (event := await self.raw())["type"] != "websocket.close":
                pass
        return event["code"], event.get("reason") or ""

    async def say(self, **message: Any) -> None:
        await self.say_text(json.dumps(message))

    async def say_text(self, text: str) -> None:
        await self._communicator.send_input({"type": "websocket.receive", "text": text})

    async def say_bytes(self, data: bytes) -> None:
        await self._communicator.send_input({"type": "websocket.receive", "bytes": data})

    async def subscribe(self, channel: str, scope: str = "", *, n: int = 1) -> None:
        await self.say(op="subscribe", n=n, channel=channel, scope=scope)

    async def nothing(self, *, within: float = 0.1) -> bool:
        return bool(await self._communicator.receive_nothing(timeout=within))


@asynccontextmanager
async def socket(session_key: str, *, origin: str | None = "http://testserver") -> AsyncIterator[Socket]:
    """A websocket whose handshake has ended."""
    headers = [(b"host", b"testserver"), (b"cookie", f"{settings.SESSION_COOKIE_NAME}={session_key}".encode())]
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    scope = {"type": "websocket", "path": "/ws/live", "query_string": b"", "headers": headers}
    application: Any = SessionMiddlewareStack(URLRouter(cast("list[Any]", websocket_urlpatterns)))
    communicator: Any = ApplicationCommunicator(application, scope)  # type: ignore[no-untyped-call]  # asgiref's
    try:
        yield await Socket(communicator).open()
    finally:
        await communicator.send_input({"type": "websocket.disconnect", "code": 1000})
        await communicator.wait(DEADLINE)
