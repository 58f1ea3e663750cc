"""What a request to the Responses API goes on from, and whether its answer is kept."""

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.errors import GatehouseError
from core.ids import uuid7
from gateway.relay.dialects.response_store import (
    ConversationTooLong,
    NewResponse,
    PreviousResponseNotFound,
    Reader,
    ResponseNotFound,
    ResponseStoreUnavailable,
    Turn,
    response_name,
)
from gateway.relay.dialects.responses import MOST_RESPONSES, Responses, Retention
from gateway.relay.plan import Api, SlimRequest, Work
from tenants.principal import Principal

PRINCIPAL = Principal(uuid4(), "acme", uuid4(), frozenset({"infer"}), (), None)
NOW = 1_000_000.0
CHAT = {"choices": [{"index": 0, "message": {"content": "fine"}, "finish_reason": "stop"}]}


class Shelf:
    """A store in memory; with `failure`, reads fail."""

    def __init__(self, failure: GatehouseError | None = None) -> None:
        self.responses: dict[UUID, NewResponse] = {}
        self._failure = failure

    async def put(self, response: NewResponse) -> None:
        self.responses[response.id] = response

    async def load_chain(self, reader: Reader, last: UUID, *, most_responses: int, most_bytes: int) -> list[Turn]:
        assert (most_responses, most_bytes) == (MOST_RESPONSES, 1000)
        turns: list[Turn] = []
        at: UUID | None = last
        while at is not None:
            turns += await self.load(reader, [at], most_bytes=most_bytes)
            if at not in self.responses:
                raise ResponseNotFound
            at = self.responses[at].previous_id
        return turns[::-1]

    async def load(self, reader: Reader, ids: list[UUID], *, most_bytes: int) -> list[Turn]:
        if self._failure is not None:
            raise self._failure
        assert reader == Reader(PRINCIPAL.tenant_id, NOW - 30 * 86_400)
        found = [self.responses[one] for one in ids if one in self.responses]
        return [Turn(r.id, r.input, json.dumps(json.loads(r.response)["output"]).encode()) for r in found]


def responses(store: Any, *, days: int = 30) -> Responses:
    return Responses(store, Retention(lambda: NOW, lambda tenant_id: days), most_bytes=1000)


async def ask(api: Responses, **members: Any) -> tuple[Work, UUID]:
    request_id = uuid7()
    body = json.dumps({"model": "m", "input": "How?", **members}).encode()
    return await api.interpret(
        SlimRequest(request_id, Api.RESPONSES, "/v1/responses", [], body, 0.0), PRINCIPAL
    ), request_id


async def answer(api: Responses, **members: Any) -> dict[str, Any]:
    work, _ = await ask(api, **members)
    assert work.dialect is not None
    told: dict[str, Any] = json.loads(await work.dialect.whole(json.dumps(CHAT).encode()))
    return told


async def test_a_request_is_asked_of_engines_as_a_chat() -> None:
    work, _ = await ask(responses(None), stream=True, max_output_tokens=5)
    assert (work.api, work.path) == (Api.CHAT, "/v1/chat/completions")
    assert (work.parsed.model, work.parsed.stream, work.parsed.include_usage, work.parsed.max_tokens) == (
        "m",
        True,
        True,
        5,
    )


async def test_a_conversation_goes_on_without_its_earlier_instructions() -> None:
    api = responses(Shelf())
    first = await answer(api, instructions="Be short.")
    second = await answer(api, previous_response_id=first["id"], input="And?", instructions="Be long.")
    work, _ = await ask(api, previous_response_id=second["id"], input="So?")
    assert [(m["role"], m["content"]) for m in json.loads(work.body)["messages"]] == [
        ("user", "How?"),
        ("assistant", "fine"),
        ("user", "And?"),
        ("assistant", "fine"),
        ("user", "So?"),
    ]


async def test_what_is_kept_has_its_time_and_its_owner() -> None:
    shelf = Shelf()
    told = await answer(responses(shelf))
    (kept,) = shelf.responses.values()
    assert (kept.tenant_id, kept.key_id, kept.model) == (PRINCIPAL.tenant_id, PRINCIPAL.key_id, "m")
    assert (kept.created_at, kept.expires_at) == (NOW, NOW + 30 * 86_400)
    assert told["store"] is True
    assert told["id"] == response_name(kept.id)


@pytest.mark.parametrize(
    ("store", "days", "members"), [(None, 30, {}), (Shelf(), 0, {}), (Shelf(), 30, {"store": False})]
)
async def test_what_is_not_kept_says_so(store: Any, days: int, members: dict[str, Any]) -> None:
    assert (await answer(responses(store, days=days), **members))["store"] is False
    assert store is None or not store.responses


@pytest.mark.parametrize(
    ("store", "days", "refusal"),
    [
        (Shelf(), 30, PreviousResponseNotFound),
        (Shelf(), 0, PreviousResponseNotFound),
        (None, 30, ResponseStoreUnavailable),
        (Shelf(ResponseStoreUnavailable(retry_after_seconds=1)), 30, ResponseStoreUnavailable),
    ],
)
async def test_what_cannot_be_gone_on_from_is_refused(store: Any, days: int, refusal: type[GatehouseError]) -> None:
    with pytest.raises(refusal) as caught:
        await ask(responses(store, days=days), previous_response_id=response_name(uuid7()))
    assert caught.value.status == 503 or caught.value.param == "previous_response_id"


async def test_items_are_referred_to_by_their_ids() -> None:
    shelf = Shelf()
    told = await answer(responses(shelf))
    item = {"type": "item_reference", "id": told["output"][0]["id"]}
    work, _ = await ask(responses(shelf), input=[item, {"role": "user", "content": "x"}])
    assert [m["content"] for m in json.loads(work.body)["messages"]] == ["fine", "x"]
    for wrong in ("msg_1", f"msg_{uuid7().hex}o0"):
        with pytest.raises(GatehouseError) as caught:
            await ask(responses(shelf), input=[{"type": "item_reference", "id": wrong}])
        assert (caught.value.status, caught.value.param) == (400, "input[0].id")
    with pytest.raises(ConversationTooLong) as too_long:
        await ask(responses(Shelf(ConversationTooLong())), input=[item])
    assert too_long.value.param == "input"
