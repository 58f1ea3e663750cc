"""Follows a channel of Valkey on a connection of its own; beside the pipelining client, which has no pub/sub.

What is published while there is no connection is missed: messages may hasten, nothing may depend on them.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote, urlsplit

from core.tls import client_context
from gateway.relay.valkey import Argument, ValkeyRefused, encode_command, parse_reply

RETRY_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 2.0
_READ_BYTES: Final = 65_536


class Subscriber:
    """Calls `on_message` with each message of a channel. `url`: as ValkeyClient's."""

    def __init__(self, url: str, channel: str, on_message: Callable[[str], None]) -> None:
        self._parts = urlsplit(url)
        self._channel = channel
        self._on_message = on_message
        self.subscribed = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled; a lost connection is made again."""
        while True:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                await self._follow()
            self.subscribed.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await self._connect()
        try:
            writer.write(b"".join(map(encode_command, self._greetings())))
            buffer = bytearray()
            while data := await reader.read(_READ_BYTES):
                buffer += data
                position = 0
                while True:
                    try:
                        reply, position = parse_reply(buffer, position)
                    except IndexError:
                        break
                    self._take(reply)
                del buffer[:position]
        finally:
            writer.close()

    def _take(self, reply: object) -> None:
        if isinstance(reply, ValkeyRefused):
            raise OSError(str(reply))
        if isinstance(reply, list) and len(reply) == 3:
            kind, _, message = reply
            if kind == b"subscribe":
                self.subscribed.set()
            elif kind == b"message" and isinstance(message, bytes):
                self._on_message(message.decode(errors="replace"))

    def _greetings(self) -> list[tuple[Argument, ...]]:
        parts = self._parts
        greetings: list[tuple[Argument, ...]] = []
        if parts.password:
            user = (unquote(parts.username),) if parts.username else ()
            greetings.append(("AUTH", *user, unquote(parts.password)))
        return [*greetings, ("SUBSCRIBE", self._channel)]  # channels are the same in all numbered databases

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = self._parts
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(parts.path)
        secure = client_context() if parts.scheme == "rediss" else None
        return await asyncio.open_connection(parts.hostname or "localhost", parts.port or 6379, ssl=secure)
