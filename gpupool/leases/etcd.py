"""The lease store on etcd 3.4 or newer, over the stubs that `aetcd` generates.

Its client is not used: that one has no deadline on watches, takes a renewal of a dead lease (time to live 0)
for success, loses a watch's error while it is created and cannot say TLS. What etcd itself does unlike the
contract is evened out here, each place says why.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, assert_never

import grpc
import grpc.aio
from aetcd import rpc

from gpupool.leases.base import (
    Committed,
    Compacted,
    Condition,
    Conflict,
    CreatedAt,
    Delete,
    Entry,
    Event,
    Grant,
    IsAbsent,
    LeaseNotFound,
    ModifiedAt,
    Operation,
    Outcome,
    Put,
    Snapshot,
    StoreUnavailable,
    check_key,
)
from gpupool.leases.etcd_address import EtcdAddress
from gpupool.leases.etcd_channels import Channels, Stubs

_COMPACTED: Final = "compacted"
_Code: Final = grpc.StatusCode

T = TypeVar("T")


class EtcdStore:
    """Open and close it on the same event loop."""

    def __init__(self, address: EtcdAddress, *, deadline_seconds: float = 2.0) -> None:
        self._deadline_seconds = deadline_seconds
        self._prefix = address.prefix
        self._channels = Channels(address, deadline_seconds=deadline_seconds)

    async def close(self) -> None:
        await self._channels.close()

    # Reads

    async def get(self, key: str) -> Entry | None:
        request = rpc.RangeRequest(key=self._raw(key))
        answer = await self._ask(lambda stubs, how: stubs.kv.Range(request, **how))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def range(self, prefix: str) -> Snapshot:
        start = self._raw(prefix)
        request = rpc.RangeRequest(key=start, range_end=_after(start))
        answer = await self._ask(lambda stubs, how: stubs.kv.Range(request, **how))
        return Snapshot(int(answer.header.revision), tuple(self._entry(found) for found in answer.kvs))

    # Writes

    async def transact(self, conditions: Sequence[Condition], operations: Sequence[Operation]) -> Outcome:
        keys = [check_key(operation.key) for operation in operations]
        if len(set(keys)) != len(keys):
            raise ValueError("two operations of one transaction name the same key")
        request = rpc.TxnRequest(
            compare=[compare for condition in conditions for compare in self._compares(condition)],
            success=[self._operation(operation) for operation in operations],
        )
        answer = await self._ask(lambda stubs, how: stubs.kv.Txn(request, **how))
        revision = int(answer.header.revision)
        return Committed(revision) if answer.succeeded else Conflict(revision)

    async def grant(self, ttl_seconds: float) -> Grant:
        if ttl_seconds <= 0:
            raise ValueError("a time to live is positive")
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl_seconds))
        answer = await self._ask(lambda stubs, how: stubs.lease.LeaseGrant(request, **how))
        return Grant(int(answer.ID), float(answer.TTL))

    async def keep_alive(self, lease_id: int) -> Grant:
        async def renew(stubs: Stubs, how: dict[str, Any]) -> Any:
            call = stubs.lease.LeaseKeepAlive(**how)
            try:
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
                return await call.read()
            finally:
                call.cancel()

        answer = await self._ask(renew)
        if answer is grpc.aio.EOF:
            raise StoreUnavailable("etcd ended a renewal without an answer")
        if answer.TTL <= 0:  # how etcd says that there is no such lease
            raise LeaseNotFound(str(lease_id))
        return Grant(lease_id, float(answer.TTL))

    async def revoke(self, lease_id: int) -> None:
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        with contextlib.suppress(LeaseNotFound):
            await self._ask(lambda stubs, how: stubs.lease.LeaseRevoke(request, **how))

    async def compact(self, revision: int) -> None:
        newest = (await self.range("/")).revision  # a revision that is yet to come is refused
        request = rpc.CompactionRequest(revision=min(revision, newest))
        with contextlib.suppress(Compacted):
            await self._ask(lambda stubs, how: stubs.kv.Compact(request, **how))

    # Watching

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncIterator[Event]:
        start = self._raw(prefix)
        # From the revision itself, whose events are known, not from the next: etcd lets a watch begin at the
        # revision it was compacted at although deletions of that one are gone.
        create = rpc.WatchCreateRequest(key=start, range_end=_after(start), start_revision=max(1, after_revision))
        try:
            async with self._channels.stream(lambda stubs, how: stubs.watch.Watch(**how)) as call:
                async with asyncio.timeout(self._deadline_seconds):
                    await call.write(rpc.WatchRequest(create_request=create))
                created = False
                while True:
                    answer = await self._next(call, created=created)
                    if answer.compact_revision:
                        raise Compacted(int(answer.compact_revision))
                    if answer.canceled:
                        raise StoreUnavailable(f"etcd ended a watch: {answer.cancel_reason or 'no reason given'}")
                    created = created or answer.created
                    events = [self._event(one) for one in answer.events]
                    for event in sorted(events, key=lambda event: (event.revision, event.key)):
                        if event.revision > after_revision:
                            yield event
        except TimeoutError:
            raise StoreUnavailable(self._late()) from None
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise StoreUnavailable(f"the connection to etcd was closed: {error}") from error

    async def _next(self, call: Any, *, created: bool) -> Any:
        """The watch's next answer. While it is silent the server is asked whether it is there: silence is no sign."""
        reading = asyncio.ensure_future(call.read())
        try:
            while True:
                await asyncio.wait({reading}, timeout=self._deadline_seconds)
                if reading.done():
                    answer = reading.result()
                    if answer is grpc.aio.EOF:
                        raise StoreUnavailable("etcd ended a watch")
                    return answer
                if not created:
                    raise StoreUnavailable(self._late())
                await self.get("/")
        finally:
            if not reading.done():
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    # Asking

    async def _ask(self, call: Callable[[Stubs, dict[str, Any]], Awaitable[T]]) -> T:
        """One call within the deadline; a second one when the server has forgotten who we are."""
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await self._channels.ask(call)
        except TimeoutError:
            self._channels.turn()
            raise StoreUnavailable(self._late()) from None
        except grpc.aio.AioRpcError as error:
            meaning = _meaning(error)
            if isinstance(meaning, StoreUnavailable):
                self._channels.turn()
            raise meaning from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            raise StoreUnavailable(f"the connection to etcd was closed: {error}") from error

    def _late(self) -> str:
        return f"etcd did not answer within {self._deadline_seconds:g} s"

    # What things are called there

    def _raw(self, key: str) -> bytes:
        return (self._prefix + check_key(key)).encode()

    def _key(self, raw: bytes) -> str:
        return raw.decode().removeprefix(self._prefix)

    def _entry(self, found: Any) -> Entry:
        return Entry(
            key=self._key(found.key),
            value=bytes(found.value),
            create_revision=int(found.create_revision),
            mod_revision=int(found.mod_revision),
            version=int(found.version),
            lease_id=int(found.lease) or None,
        )

    def _event(self, told: Any) -> Event:
        value = None if told.type == rpc.Event.DELETE else bytes(told.kv.value)
        return Event(int(told.kv.mod_revision), self._key(told.kv.key), value)

    def _compares(self, condition: Condition) -> list[Any]:
        key = self._raw(condition.key)
        absent = rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.EQUAL, version=0)
        exists = rpc.Compare(key=key, target=rpc.Compare.VERSION, result=rpc.Compare.GREATER, version=0)
        match condition:
            case IsAbsent():
                return [absent]
            case CreatedAt(revision=revision):
                compare = rpc.Compare(
                    key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision
                )
            case ModifiedAt(revision=revision):
                compare = rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)
            case _:
                assert_never(condition)
        # A key that is absent has revision 0 there. Any other revision says that it exists: one comparison is
        # enough, and of these etcd takes no more than of operations.
        return [compare] if revision > 0 else [exists, compare]

    def _operation(self, operation: Operation) -> Any:
        key = self._raw(operation.key)
        match operation:
            case Put(value=value, lease_id=lease_id):
                return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease_id or 0))
            case Delete():
                return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
            case _:
                assert_never(operation)


def _after(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix. A key of ours ends in no 0xff: it is UTF-8."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _meaning(error: grpc.aio.AioRpcError) -> Exception:
    """What an answer of etcd's means in the contract's terms."""
    code, details = error.code(), error.details() or ""
    if code == _Code.NOT_FOUND and "lease" in details:
        return LeaseNotFound(details)
    if code == _Code.OUT_OF_RANGE and _COMPACTED in details:
        return Compacted(0)
    if code == _Code.INVALID_ARGUMENT and "too many operations" in details:
        return ValueError(details)
    return StoreUnavailable(f"etcd: {details or code.name}")
