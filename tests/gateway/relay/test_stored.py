"""Stored responses by their address: who may ask what, page by page."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.errors import GatehouseError, MethodNotAllowed, NotFound, PermissionDenied
from core.ids import uuid7
from gateway.relay.dialects.response_store import Reader, ResponseNotFound, ResponseStoreUnavailable, response_name
from gateway.relay.dialects.responses import Retention
from gateway.relay.plan import Api, SlimRequest
from gateway.relay.stored import StoredResponses, stored_methods
from tenants.principal import Principal

RESPONSE_ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
PATH = f"/v1/responses/{response_name(RESPONSE_ID)}"
PRINCIPAL = Principal(uuid4(), "acme", uuid4(), frozenset({"infer"}), (), None)
ITEMS = [{"id": f"msg_{n}", "n": n} for n in range(5)]


class OneResponse:
    """A store with one response; remembers what it was asked."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.deleted_by: list[tuple[Principal, UUID]] = []

    async def get(self, reader: Reader, response_id: UUID) -> bytes:
        self._check(reader, response_id)
        return b'{"id":"it"}'

    async def input_items(self, reader: Reader, response_id: UUID) -> bytes:
        self._check(reader, response_id)
        return json.dumps(ITEMS).encode()

    async def delete(self, reader: Reader, response_id: UUID, *, principal: Principal, request_id: UUID) -> None:
        self._check(reader, response_id)
        self.deleted_by.append((principal, request_id))

    def _check(self, reader: Reader, response_id: UUID) -> None:
        self.readers.append(reader)
        if response_id != RESPONSE_ID:
            raise ResponseNotFound


class Doorkeeper:
    """Lets everybody in, or nobody."""

    def __init__(self, refusal: GatehouseError | None = None) -> None:
        self._refusal = refusal

    async def resolve(self, credential: str) -> str:
        return credential

    def credential(self, request: SlimRequest) -> str:
        return "digest"

    def identify(self, digest: str) -> Any:
        return PRINCIPAL, None

    def check_principal(self, principal: Principal, action: str = "infer") -> None:
        if self._refusal is not None:
            raise self._refusal


def stored(store: Any, *, days: int = 2, refusal: GatehouseError | None = None) -> StoredResponses:
    keeper = Doorkeeper(refusal)
    retention = Retention(lambda: 1_000_000.0, lambda tenant_id: days)
    return StoredResponses(
        store, retention, door="relay", resolve=keeper.resolve, authentication=keeper, permission=keeper
    )


async def ask(answers: StoredResponses, method: str, path: str, query: str = "") -> Any:
    request = SlimRequest(uuid7(), Api.RESPONSES, path, [], b"", 0.0)
    return json.loads(await answers.answer(method, request, query.encode()))


async def test_a_response_is_read_and_deleted_within_what_the_tenant_keeps() -> None:
    store = OneResponse()
    assert await ask(stored(store), "GET", PATH) == {"id": "it"}
    assert await ask(stored(store), "DELETE", PATH) == {
        "id": response_name(RESPONSE_ID),
        "object": "response",
        "deleted": True,
    }
    assert store.readers[0] == Reader(PRINCIPAL.tenant_id, 1_000_000.0 - 2 * 86_400)
    assert store.deleted_by[0][0] == PRINCIPAL


@pytest.mark.parametrize(
    ("query", "numbers", "has_more"),
    [
        ("", [4, 3, 2, 1, 0], False),
        ("order=asc", [0, 1, 2, 3, 4], False),
        ("order=asc&limit=2", [0, 1], True),
        ("order=asc&limit=2&after=msg_1", [2, 3], True),
        ("order=desc&limit=9&after=msg_1", [0], False),
        ("after=msg_0", [], False),
    ],
)
async def test_items_come_in_pages(query: str, numbers: list[int], has_more: bool) -> None:
    page = await ask(stored(OneResponse()), "GET", f"{PATH}/input_items", query)
    assert [item["n"] for item in page["data"]] == numbers
    assert page["has_more"] is has_more
    assert (page["first_id"], page["last_id"]) == (
        (f"msg_{numbers[0]}", f"msg_{numbers[-1]}") if numbers else (None, None)
    )


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=0000000010" + "0" * 5000, "limit"),
        ("order=up", "order"),
        ("after=no", "after"),
    ],
)
async def test_a_query_that_makes_no_sense_is_refused(query: str, param: str) -> None:
    with pytest.raises(GatehouseError) as caught:
        await ask(stored(OneResponse()), "GET", f"{PATH}/input_items", query)
    assert (caught.value.status, caught.value.param) == (400, param)


async def test_cancelling_is_refused_where_there_is_something_to_cancel() -> None:
    with pytest.raises(GatehouseError, match="in the background") as caught:
        await ask(stored(OneResponse()), "POST", f"{PATH}/cancel")
    assert caught.value.status == 400
    with pytest.raises(ResponseNotFound):
        await ask(stored(OneResponse()), "POST", f"/v1/responses/{response_name(uuid7())}/cancel")


async def test_a_tenant_that_keeps_nothing_finds_nothing() -> None:
    store = OneResponse()
    with pytest.raises(ResponseNotFound):
        await ask(stored(store, days=0), "GET", PATH)
    assert store.readers == []


async def test_without_a_store_or_a_right_nothing_is_told() -> None:
    with pytest.raises(ResponseStoreUnavailable) as caught:
        await ask(stored(None), "GET", PATH)
    assert caught.value.retry_after_seconds
    with pytest.raises(PermissionDenied):
        await ask(stored(OneResponse(), refusal=PermissionDenied()), "GET", PATH)


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (PATH, b"GET, DELETE, HEAD, OPTIONS"),
        (f"{PATH}/input_items", b"GET, HEAD, OPTIONS"),
        (f"{PATH}/cancel", b"POST, OPTIONS"),
        (f"{PATH}/", b""),
        (f"{PATH}/other", b""),
        ("/v1/responses/", b""),
        ("/v1/responsesx", b""),
    ],
)
async def test_each_address_has_its_methods(path: str, methods: bytes) -> None:
    assert stored_methods(path) == methods
    wrong = MethodNotAllowed if methods else NotFound
    with pytest.raises(wrong):
        await ask(stored(OneResponse()), "PUT", path)
