"""Stored responses by their address: read, listed and deleted; the same answers at both doors."""

from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import parse_qs
from uuid import UUID

import msgspec

from core.errors import GatehouseError, InvalidRequest, MethodNotAllowed, NotFound
from core.telemetry import metrics
from gateway.relay.actions import INFER
from gateway.relay.dialects.response_store import (
    Reader,
    ResponseNotFound,
    ResponseStore,
    ResponseStoreUnavailable,
    response_name,
    response_uuid,
)
from gateway.relay.dialects.responses import Retention
from gateway.relay.plan import SlimRequest
from gateway.relay.routes import RESPONSES
from tenants.principal import Principal

_RETRY_SECONDS: Final = 2.0
_DEFAULT_ITEMS: Final = 20
_MOST_ITEMS: Final = 100
_LONGEST_NUMBER: Final = 9
_ALLOWED: Final = {"": b"GET, DELETE, HEAD, OPTIONS", "input_items": b"GET, HEAD, OPTIONS", "cancel": b"POST, OPTIONS"}


class Authentication(Protocol):
    """gateway.authentication.MachineAuthentication, as is needed here."""

    def credential(self, request: SlimRequest) -> str:
        """The key that the request carries. Raises Unauthenticated."""

    def identify(self, digest: str) -> tuple[Principal, object]:
        """Who the key of that digest is; it has been resolved. Raises GatehouseError."""


class Permission(Protocol):
    """gateway.permissions.InferencePermission, as is needed here."""

    def check_principal(self, principal: Principal, action: str = "infer") -> None:
        """Raises GatehouseError."""


class _Item(msgspec.Struct):
    id: str


_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)


def stored_methods(path: str) -> bytes:
    """The methods that a stored response's address answers; b"" for another address."""
    return _ALLOWED.get(parts[1], b"") if (parts := _parts(path)) is not None else b""


def _parts(path: str) -> tuple[str, str] | None:
    """A response's id and what is behind it."""
    if not path.startswith(f"{RESPONSES}/"):
        return None
    name, slash, rest = path.removeprefix(f"{RESPONSES}/").partition("/")
    return (name, rest) if name and bool(slash) == bool(rest) else None


class StoredResponses:
    """Answers requests to /v1/responses/{id} and below. `resolve` makes sure that authentication knows a key.

    `door`: relay or drf, for the count of refusals.
    """

    def __init__(
        self,
        store: ResponseStore | None,
        retention: Retention,
        *,
        door: str,
        resolve: Callable[[str], Awaitable[str]],
        authentication: Authentication,
        permission: Permission,
    ) -> None:
        self._store = store
        self._retention = retention
        self._door = door
        self._resolve = resolve
        self._authentication = authentication
        self._permission = permission

    async def answer(self, method: str, request: SlimRequest, query: bytes) -> bytes:
        """The body of an answer with status 200; what is read for it is put on the request's claim.

        Raises GatehouseError.
        """
        try:
            return await self._answer(method, request, query)
        except GatehouseError as error:
            metrics.record_refusal(self._door, error.code)
            raise

    async def _answer(self, method: str, request: SlimRequest, query: bytes) -> bytes:
        parts, allowed = _parts(request.path), stored_methods(request.path)
        if parts is None or not allowed:
            raise NotFound
        name, rest = parts
        if method.encode() not in allowed.split(b", "):
            raise MethodNotAllowed(headers=((b"allow", allowed),))
        digest = await self._resolve(self._authentication.credential(request))
        principal, _ = self._authentication.identify(digest)
        self._permission.check_principal(principal, INFER)
        response_id = response_uuid(name)
        reader = self._retention.reader(principal.tenant_id)
        if response_id is None or reader is None:
            raise ResponseNotFound
        if self._store is None:
            raise ResponseStoreUnavailable(retry_after_seconds=_RETRY_SECONDS)
        if rest == "input_items":
            return _page(_held(request, await self._store.input_items(reader, response_id)), query)
        if rest == "cancel":
            return await self._cancel(self._store, reader, response_id)
        if method == "DELETE":
            await self._store.delete(reader, response_id, principal=principal, request_id=request.request_id)
            return msgspec.json.encode({"id": response_name(response_id), "object": "response", "deleted": True})
        if parse_qs(query.decode("latin-1")).get("stream", ["false"])[-1] == "true":
            raise InvalidRequest("A stored response cannot be streamed again: it is told whole.", param="stream")
        return _held(request, await self._store.get(reader, response_id))

    async def _cancel(self, store: ResponseStore, reader: Reader, response_id: UUID) -> bytes:
        await store.get(reader, response_id)
        raise InvalidRequest("Only responses in the background can be cancelled, and there are none here.")


def _held(request: SlimRequest, raw: bytes) -> bytes:
    if request.claim is not None:
        request.claim.take(len(raw))
    return raw


def _page(raw: bytes, query: bytes) -> bytes:
    """One page of items. Raises InvalidRequest for a query that makes no sense."""
    asked = parse_qs(query.decode("latin-1"))
    limit = asked.get("limit", [str(_DEFAULT_ITEMS)])[-1]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= _LONGEST_NUMBER and 1 <= int(limit) <= _MOST_ITEMS):
        raise InvalidRequest(f"Invalid value for 'limit': expected 1 to {_MOST_ITEMS}.", param="limit")
    order = asked.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise InvalidRequest("Invalid value for 'order': expected asc or desc.", param="order")
    items = [(_item.decode(item).id, item) for item in _raw_items.decode(raw)]
    if order == "desc":
        items.reverse()
    if (after := asked.get("after", [""])[-1]) != "":
        names = [name for name, _ in items]
        if after not in names:
            raise InvalidRequest("Invalid value for 'after': there is no such item here.", param="after")
        items = items[names.index(after) + 1 :]
    shown = items[: int(limit)]
    page = {
        "object": "list",
        "data": [item for _, item in shown],
        "first_id": shown[0][0] if shown else None,
        "last_id": shown[-1][0] if shown else None,
        "has_more": len(items) > len(shown),
    }
    return msgspec.json.encode(page)
