"""Connections to the members of an etcd: one at a time, the next when one does not answer, a token where asked for."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from aetcd import rpc

from gpupool.leases.etcd_address import EtcdAddress

T = TypeVar("T")

_OPTIONS: Final = (
    # A pause between attempts that grew to two minutes would leave a store that is back unused for as long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),  # that one is the longest that an attempt may take
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 256 * 1024 * 1024),
    # etcd hangs up on who pings more often than every five seconds.
    ("grpc.keepalive_time_ms", 6000),
    ("grpc.keepalive_timeout_ms", 3000),
    # Two stores in one process share no connection: closing one must not end the other's.
    ("grpc.use_local_subchannel_pool", 1),
)
_NEEDS_LEADER: Final = ("hasleader", "true")  # a member cut off from the others says so instead of staying silent


@dataclass(frozen=True, slots=True)
class Stubs:
    kv: Any
    lease: Any
    watch: Any
    auth: Any


class Channels:
    """Which member is asked now. Made and used on one event loop."""

    def __init__(self, address: EtcdAddress, *, deadline_seconds: float) -> None:
        self._address = address
        self._deadline_seconds = deadline_seconds
        self._turn = 0
        self._opened: dict[str, tuple[grpc.aio.Channel, Stubs]] = {}
        self._token: str | None = None

    async def close(self) -> None:
        opened, self._opened = list(self._opened.values()), {}
        for channel, _ in opened:
            await channel.close()

    def turn(self) -> None:
        """The member that was asked did not answer: the next one is, from now on."""
        self._turn = (self._turn + 1) % len(self._address.targets)

    async def ask(self, call: Callable[[Stubs, dict[str, Any]], Awaitable[T]]) -> T:
        """The answer to one call. Raises AioRpcError."""
        stubs = self._stubs()
        try:
            return await call(stubs, await self._how(stubs, self._deadline_seconds))
        except grpc.aio.AioRpcError as error:
            if self._address.username is None or not _unknown_to_it(error):
                raise
        self._token = None
        return await call(stubs, await self._how(stubs, self._deadline_seconds))

    @asynccontextmanager
    async def stream(self, call: Callable[[Stubs, dict[str, Any]], Any]) -> AsyncIterator[Any]:
        """A call without an end; it is cancelled on the way out."""
        stubs = self._stubs()
        streaming = call(stubs, await self._how(stubs, None))
        try:
            yield streaming
        except grpc.aio.AioRpcError as error:
            if _unknown_to_it(error):
                self._token = None
            raise
        finally:
            streaming.cancel()

    def _stubs(self) -> Stubs:
        target = self._address.targets[self._turn]
        if target not in self._opened:
            channel = self._channel(target)
            stubs = Stubs(rpc.KVStub(channel), rpc.LeaseStub(channel), rpc.WatchStub(channel), rpc.AuthStub(channel))
            self._opened[target] = channel, stubs
        return self._opened[target][1]

    def _channel(self, target: str) -> grpc.aio.Channel:
        if not self._address.secure:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._address.ca, self._address.key, self._address.certificate)
        return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)

    async def _how(self, stubs: Stubs, timeout: float | None) -> dict[str, Any]:
        if self._address.username is not None and self._token is None:
            login = rpc.AuthenticateRequest(name=self._address.username, password=self._address.password)
            self._token = (await stubs.auth.Authenticate(login, timeout=self._deadline_seconds)).token
        metadata = [_NEEDS_LEADER]
        if self._token is not None:
            metadata.append(("token", self._token))
        how: dict[str, Any] = {"metadata": metadata}
        if timeout is not None:
            how["timeout"] = timeout
        return how


def _unknown_to_it(error: grpc.aio.AioRpcError) -> bool:
    """Its tokens end after minutes, and with a restart of the server."""
    with contextlib.suppress(AttributeError):
        return error.code() == grpc.StatusCode.UNAUTHENTICATED or "invalid auth token" in (error.details() or "")
    return False
