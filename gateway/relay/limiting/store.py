"""Calls of the scripts: one round trip each, with answers as lists."""

from typing import Any, Final

import msgspec

from gateway.relay.limiting.layout import area
from gateway.relay.limiting.scripts import CHECK, LOADED, Script
from gateway.relay.valkey import ValkeyClient, ValkeyRefused, ValkeyUnavailable

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


class StoreUnavailable(Exception):
    """No answer: whether the script ran is not known."""


class Store:
    """The scripts, for one process of an installation."""

    def __init__(self, client: ValkeyClient, *, prefix: str, process_hex: str) -> None:
        self._client = client
        self._head = (area(prefix), process_hex)

    async def call(self, script: Script, *values: object, deadline_seconds: float | None = None) -> list[Any]:
        """The script's answer. Raises StoreUnavailable."""
        packed = _pack((*self._head, *values))
        try:
            try:
                reply = await self._client.call("EVALSHA", script.digest, 0, packed, deadline_seconds=deadline_seconds)
            except ValkeyRefused as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                # Another server than before, or the same one restarted: its counters may be out of an old file.
                await self._load()
                reply = await self._client.call("EVALSHA", script.digest, 0, packed, deadline_seconds=deadline_seconds)
        except (ValkeyUnavailable, ValkeyRefused) as error:
            raise StoreUnavailable(str(error)) from error
        assert isinstance(reply, bytes)
        answer = _unpack(reply)
        assert isinstance(answer, list)
        return answer

    async def _load(self) -> None:
        # In one write, so that all of it reaches the same server.
        loads = [("SCRIPT", "LOAD", script.text) for script in LOADED]
        for reply in await self._client.pipeline([("EVAL", CHECK.text, 0, _pack(self._head)), *loads]):
            if isinstance(reply, ValkeyRefused):
                raise reply
