"""`/ws/live`: a page's one socket. Parses what the page says, and writes what the hub has for it.

Who comes from another origin, or from no session, is refused before the handshake ends.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.utils.http import is_same_domain

from core.ending import end_tasks
from dashboard.live.connections import UNKNOWN_STANDING, Connection, message
from dashboard.live.hub import shared_hub
from dashboard.live.topics import LONGEST_SCOPE, Topic
from dashboard.live.viewers import Ended
from gateway.relay.guards import ABORT

CLOSE_DENIED: Final = 4403
"""Close code of a viewer who may not, or no longer, watch; the reason is a word, and pages then stop trying."""

_CLOSE_TOO_BIG: Final = 1009
_CLOSE_ABUSE: Final = 1008
_CLOSE_AGAIN: Final = 1013  # try again later
_MESSAGE_CHARACTERS: Final = 1024
_MOST_SUBSCRIPTIONS: Final = 16
_MOST_MESSAGES: Final = 120  # in each stretch
_STRETCH_SECONDS: Final = 10.0
_SEND_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
UNREAD: Final = "unread"


class _Subscribe(msgspec.Struct, tag_field="op", tag="subscribe"):
    n: int
    channel: str
    scope: str


class _Unsubscribe(msgspec.Struct, tag_field="op", tag="unsubscribe"):
    n: int


_decoder: Final = msgspec.json.Decoder(_Subscribe | _Unsubscribe)


class LiveConsumer(AsyncWebsocketConsumer):
    """A shim: what is decided is decided by the hub, and by feeds."""

    _connection: Connection | None = None
    _writer: asyncio.Task[None] | None = None
    _said: int = 0
    _stretch_ends: float = 0.0

    async def connect(self) -> None:
        key = getattr(self.scope.get("session"), "session_key", None)
        if key is None or not is_same_origin(self.scope):
            await self.close()
            return
        try:
            viewer = await shared_hub().admit(key)
        except (DatabaseError, InterfaceError, TimeoutError):
            await self.accept()
            await self.close(_CLOSE_AGAIN)
            return
        if isinstance(viewer, Ended):
            await self.close()
            return
        await self.accept()
        if not shared_hub().has_room(key):
            await self.close(_CLOSE_AGAIN)
            return
        self._connection = Connection(key, viewer)
        shared_hub().join(self._connection)
        self._writer = asyncio.create_task(self._write(self._connection), name="live-writer")

    async def disconnect(self, code: int) -> None:
        if self._connection is not None:
            shared_hub().leave(self._connection)
        if self._writer is not None:
            await end_tasks(self._writer)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        connection = self._connection
        if connection is None or connection.ended is not None:
            return
        if text_data is None or len(text_data) > _MESSAGE_CHARACTERS:
            await self._hang_up(_CLOSE_TOO_BIG)
        elif not self._may_say_more() or not self._reply(connection, text_data):
            await self._hang_up(_CLOSE_ABUSE)

    def _may_say_more(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self._stretch_ends:
            self._said, self._stretch_ends = 0, now + _STRETCH_SECONDS
        self._said += 1
        return self._said <= _MOST_MESSAGES

    def _reply(self, connection: Connection, text: str) -> bool:
        """Whether the page takes what it is told."""
        answer = self._hear(connection, text)
        return answer is None or connection.answer(answer)

    def _hear(self, connection: Connection, text: str) -> str | None:
        """Do what the page says; returns what it is told, if anything."""
        try:
            said = _decoder.decode(text)
        except (msgspec.DecodeError, UnicodeError):
            return message(0, "error", code="bad_message", text="This is no message of this channel.")
        if not 1 <= said.n <= 255:
            return message(0, "error", code="bad_message", text="A subscription's number is from 1 to 255.")
        if isinstance(said, _Unsubscribe):
            shared_hub().unsubscribe(connection, said.n)
            return None
        if said.n not in connection.subscriptions and len(connection.subscriptions) >= _MOST_SUBSCRIPTIONS:
            text = f"A socket has at most {_MOST_SUBSCRIPTIONS} subscriptions."
            return message(said.n, "error", code="too_many", text=text)
        if len(said.scope) > LONGEST_SCOPE or not said.scope.isprintable():
            return message(said.n, "error", code="unknown", text="There is no such scope.")
        feed = shared_hub().subscribe(connection, said.n, Topic(said.channel, said.scope))
        if isinstance(feed, str):
            return message(said.n, "error", code=feed, text="There is no such channel, or you may not watch it.")
        return message(said.n, "subscribed", period=feed.period_seconds)

    async def _write(self, connection: Connection) -> None:
        """The only one that sends: a frame at a time, the next one when the client has taken it."""
        try:
            while connection.ended is None:
                await connection.wake.wait()
                connection.wake.clear()
                while (payload := connection.next()) is not None:
                    async with asyncio.timeout(_SEND_SECONDS):
                        if isinstance(payload, str):
                            await self.send(text_data=payload)
                        else:
                            await self.send(bytes_data=payload)
        except TimeoutError:
            connection.end(UNREAD)
        shared_hub().leave(connection)
        again = connection.ended in (UNKNOWN_STANDING, UNREAD)
        await self._close(_CLOSE_AGAIN if again else CLOSE_DENIED, connection.ended)

    async def _hang_up(self, code: int) -> None:
        """Nothing may be sent behind a close, nor what the page said meanwhile be heard."""
        if self._connection is not None:
            self._connection.end("hung_up")
            shared_hub().leave(self._connection)
        if self._writer is not None:
            await end_tasks(self._writer)
        await self._close(code)

    async def _close(self, code: int, reason: str | None = None) -> None:
        """Our server waits with a close, too, until the client reads: one that never does is cut off."""
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.close(code, reason)
        except TimeoutError:
            abort: Any = self.scope.get(ABORT)
            if abort is not None:
                abort()


def is_same_origin(scope: Mapping[str, Any]) -> bool:
    """Whether the page that opened the socket is ours: another port of this host is not.

    Cookies ignore ports, so the check of a host name alone would let a neighbour's page read frames. Where people come
    by https, a page of the same name that came by http may be anybody's who sits on the line.
    """
    headers = dict(scope["headers"])
    origin = headers.get(b"origin", b"").decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1")
    parts = urlsplit(origin)
    if any(_covers(trusted, origin, parts) for trusted in settings.CSRF_TRUSTED_ORIGINS):
        return bool(host)
    return bool(host) and parts.netloc == host and (parts.scheme == "https" or not settings.SESSION_COOKIE_SECURE)


def _covers(trusted: str, origin: str, parts: SplitResult) -> bool:
    """Whether an origin is one of the trusted, as forms are judged: `https://*.example.com` is every name below it."""
    scheme, wild, domain = trusted.partition("://*")
    if not wild:
        return origin == trusted
    return parts.scheme == scheme and is_same_domain(parts.netloc, domain)
