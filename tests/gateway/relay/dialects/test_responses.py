"""What a request to the Responses API goes on from, and whether its answer is kept."""

import asyncio
import json
import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from core.errors import GatehouseError, RateLimited
from core.ids import uuid7
from gateway.relay.dialects.interpreter import Admit
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
from gateway.relay.memory import Claim, MemoryBudget, RelayMemoryExhausted
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


async def ask(
    api: Responses, *, claim: Claim | None = None, admit: Admit | None = None, **members: Any
) -> tuple[Work, UUID]:
    request_id = uuid7()
    body = json.dumps({"model": "m", "input": "How?", **members}).encode()
    request = SlimRequest(request_id, Api.RESPONSES, "/v1/responses", [], body, 0.0, claim=claim)
    return await api.interpret(request, PRINCIPAL, admit or let_in), request_id


async def let_in(model: str) -> None:
    assert model == "m"


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


async def test_what_is_read_back_and_kept_counts_as_held_memory() -> None:
    api, budget = responses(Shelf()), MemoryBudget(1000)
    first = await answer(api)
    claim = Claim(budget)
    await ask(api, claim=claim, store=False)
    assert budget.held_bytes == 0
    await ask(api, claim=claim, store=False, previous_response_id=first["id"])
    held = budget.held_bytes
    assert held > 200
    await ask(api, claim=claim, previous_response_id=first["id"])
    assert budget.held_bytes > 2 * held
    claim.release()
    assert budget.held_bytes == 0
    with pytest.raises(RelayMemoryExhausted):
        await ask(api, claim=Claim(MemoryBudget(100)), previous_response_id=first["id"])


async def test_an_item_cannot_be_made_many_by_naming_it_often() -> None:
    api = responses(shelf := Shelf())
    await answer(api, input="x" * 300)
    (kept,) = shelf.responses.values()
    (item,) = json.loads(kept.input)
    once = {"type": "item_reference", "id": item["id"]}
    await ask(api, input=[once, once])
    with pytest.raises(ConversationTooLong) as refused:
        await ask(api, input=[once] * 3)
    assert refused.value.param == "input"


@pytest.mark.parametrize("reads", ["previous_response_id", "item_reference"])
async def test_nothing_is_read_for_a_request_that_is_not_let_in(reads: str) -> None:
    async def refuse(model: str) -> None:
        raise RateLimited(retry_after_seconds=1)

    api = responses(Shelf(ResponseStoreUnavailable(retry_after_seconds=1)))
    name = uuid4().hex
    members: dict[str, Any] = (
        {"previous_response_id": f"resp_{name}"}
        if reads == "previous_response_id"
        else {"input": [{"type": "item_reference", "id": f"msg_{name}o0"}]}
    )
    with pytest.raises(RateLimited):
        await ask(api, admit=refuse, **members)


async def test_a_request_without_a_model_reads_nothing() -> None:
    api = responses(Shelf(ResponseStoreUnavailable(retry_after_seconds=1)))
    with pytest.raises(GatehouseError) as refused:
        await ask(api, model=None, previous_response_id=f"resp_{uuid4().hex}")
    assert (refused.value.status, refused.value.param) == (400, "model")


async def test_the_translation_of_a_large_request_does_not_hold_the_loop() -> None:
    api = responses(None)
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.perf_counter())
            await asyncio.sleep(0.001)

    heart = asyncio.create_task(beat())
    work, _ = await ask(api, input=[{"role": "user", "content": "x"}] * 50_000)
    heart.cancel()
    assert len(work.body) > 1_000_000
    assert len(beats) > 10
