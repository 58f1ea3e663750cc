"""OpenAI's own client on the Responses API: a real relay, the DRF door, a real database, llama.cpp and a double."""

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import openai
import pytest
from django.utils import timezone
from pydantic import BaseModel

from bench.house import wait_until
from bench.rows import Key, attach, make_key, make_tenant
from gateway.models import StoredResponse
from gateway.services.response_retention import delete_expired_responses
from tenants.actor import SYSTEM
from tenants.models import AuditEvent, Tenant
from tenants.services import grant_model
from tenants.services.departments import change_tenant
from tests.doubles.engine import DONE, EngineDouble, Received, Script, Wire, answers, event, streams
from tests.gateway.test_database_away import database_away
from tests.house import TestHouse

WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class ScriptedEngine:
    """An engine double on a thread of its own, so that tests may use the blocking client."""

    def __init__(self) -> None:
        self.double = EngineDouble(self._answer)
        self.script: Script = answers({})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="double")

    @property
    def asked(self) -> Any:
        """The body that it was asked last."""
        return self.double.received[-1].json

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.double.__aenter__(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self.double.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, request: Received, wire: Wire) -> None:
        await self.script(request, wire)


class Place(BaseModel):
    city: str


class Rooms:
    """What the tests of this module share."""

    def __init__(self, house: TestHouse, engine: ScriptedEngine, stranger: Key, forgetful: Tenant) -> None:
        self.house = house
        self.engine = engine
        self.stranger = stranger
        self.forgetful = forgetful

    def client(self, key: str | None = None, *, door: str = "relay") -> openai.OpenAI:
        base = self.house.relay_url if door == "relay" else self.house.web_url
        return openai.OpenAI(api_key=key or self.house.key.secret, base_url=f"{base}/v1", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def rooms(house: TestHouse) -> Iterator[Rooms]:
    engine = ScriptedEngine()
    engine.start()
    try:
        attach("double", engine.double.port, engine="openai")
        other = make_tenant("other", models=("*",))
        make_tenant("forgetful", models=("*",))
        grant_model(house.tenant, model_pattern="double", actor=SYSTEM)
        house.start("web")
        key = make_key(other, "stranger")
        rooms = Rooms(house, engine, key, Tenant.objects.get(slug="forgetful"))
        with house.client() as client:
            wait_until(lambda: '"double"' in client.get("/v1/models").text, "the double is known")
        yield rooms
    finally:
        engine.stop()


def completion(message: dict[str, Any], *, finish: str = "stop") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "double",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 5,
            "total_tokens": 16,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def call(name: str, arguments: str, *, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunks(*deltas: dict[str, Any], finish: str = "stop") -> list[bytes]:
    events: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    events.append({"choices": [], "usage": completion({})["usage"]})
    return [*(event(json.dumps({"id": "c", "model": "double", **body}).encode()) for body in events), DONE]


@pytest.mark.parametrize("door", ["relay", "web"])
def test_a_real_engine_answers_and_the_conversation_goes_on(rooms: Rooms, door: str) -> None:
    client = rooms.client(door=door)
    first = client.responses.create(model="tiny", input="Good day", max_output_tokens=4, metadata={"of": "test"})
    assert (first.object, first.status, first.model) == ("response", "incomplete", "tiny")
    assert first.incomplete_details is not None
    assert first.incomplete_details.reason == "max_output_tokens"
    assert first.metadata == {"of": "test"}
    assert first.usage is not None
    assert first.usage.output_tokens == 4
    second = client.responses.create(
        model="tiny", input="And on", max_output_tokens=3, previous_response_id=first.id, temperature=0
    )
    assert second.previous_response_id == first.id
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    with client.responses.stream(model="tiny", input="Streamed", max_output_tokens=8) as stream:
        events = list(stream)
    final = events[-1].response  # type: ignore[union-attr]  # the last one has it
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert client.responses.retrieve(final.id).output_text == final.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_the_ledger_has_the_usage_in_its_own_words(rooms: Rooms, stream: bool) -> None:
    rooms.engine.script = streams(*chunks({"content": "Hi"})) if stream else answers(completion({"content": "Hi"}))
    answer = rooms.client().responses.with_raw_response.create(model="double", input="x", stream=stream)
    answer.http_response.read()
    row = rooms.house.ledger_row(answer.headers["x-request-id"])
    assert (row.api, row.input_tokens, row.cached_tokens, row.output_tokens) == ("responses", 11, 4, 5)
    assert row.usage_source == "engine"


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_and_their_results_given_back(rooms: Rooms, stream: bool) -> None:
    client = rooms.client()
    asks = call("weather", '{"city":"Basel"}')
    pieces = [
        {"tool_calls": [{"index": 0, **call("weather", "")}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Basel"}'}}]},
    ]
    if stream:
        rooms.engine.script = streams(*chunks({"reasoning_content": "Hm"}, *pieces, finish="tool_calls"))
        with client.responses.stream(model="double", input="Weather?", tools=[WEATHER]) as events:  # type: ignore[list-item]
            first: Any = events.get_final_response()
    else:
        rooms.engine.script = answers(
            completion({"reasoning_content": "Hm", "tool_calls": [asks]}, finish="tool_calls")
        )
        first = client.responses.create(model="double", input="Weather?", tools=[WEATHER])  # type: ignore[list-item]
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    asked = first.output[1]
    assert (asked.name, asked.arguments, asked.call_id) == ("weather", '{"city":"Basel"}', "call_1")
    rooms.engine.script = answers(completion({"content": "Sun"}))
    second = client.responses.create(
        model="double",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": asked.call_id, "output": "sunny"}],
        instructions="Be short",
    )
    assert second.output_text == "Sun"
    assert rooms.engine.asked["messages"] == [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "reasoning": "Hm", "tool_calls": [asks]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]


def test_structured_output_is_parsed(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": '{"city":"Basel"}'}))
    answer = rooms.client().responses.parse(model="double", input="Where?", text_format=Place)
    assert answer.output_parsed == Place(city="Basel")
    assert rooms.engine.asked["response_format"]["json_schema"]["name"] == "Place"
    assert rooms.engine.asked["response_format"]["json_schema"]["strict"] is True


def test_members_of_the_engine_pass_untouched(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "x"}))
    rooms.client().responses.create(
        model="double",
        input="x",
        max_output_tokens=7,
        reasoning={"effort": "low"},
        extra_body={"chat_template_kwargs": {"enable_thinking": False}, "top_k": 3},
    )
    asked = rooms.engine.asked
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}
    assert (asked["top_k"], asked["max_tokens"], asked["reasoning_effort"]) == (3, 7, "low")
    assert not {"input", "store", "metadata", "max_output_tokens"} & asked.keys()


@pytest.mark.parametrize("door", ["relay", "web"])
def test_stored_answers_are_read_listed_and_deleted(rooms: Rooms, door: str) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client(door=door)
    made = client.responses.create(
        model="double", input=[{"role": "user", "content": f"{n}"} for n in range(3)], user="someone"
    )
    assert made.store is True  # type: ignore[attr-defined]  # not in the client's types
    assert client.responses.retrieve(made.id).model_dump() == made.model_dump()
    listed = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert [item.content[0].text if isinstance(item.content, list) else item.content for item in listed] == list("012")  # type: ignore[union-attr]  # messages all
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.input_items.list(made.id, limit=0)
    raw = client.responses.with_raw_response.delete(made.id)
    assert json.loads(raw.text) == {"id": made.id, "object": "response", "deleted": True}
    audit = AuditEvent.objects.get(action="response.deleted", request_id=raw.headers["x-request-id"])
    assert (audit.actor_kind, audit.actor_id) == ("key", rooms.house.key.id)
    for call_again in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call_again(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="double", input="x", previous_response_id=made.id)


def test_both_doors_say_the_same_of_a_stored_answer(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    made = rooms.client().responses.create(model="double", input="x")
    with rooms.house.client() as relay, rooms.house.client(door="web") as web:
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "POST"):
            for path in (
                "",
                "/input_items",
                "/input_items?limit=x",
                "/input_items?order=asc",
                "/cancel",
                "/other",
                "/",
            ):
                said = [client.request(method, f"/v1/responses/{made.id}{path}") for client in (relay, web)]
                first, second = ((a.status_code, a.content, a.headers.get("allow")) for a in said)
                assert first == second, (method, path)


def test_items_may_be_referred_to(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client()
    made = client.responses.create(model="double", input="first")
    reference = {"type": "item_reference", "id": made.output[0].id}
    client.responses.create(model="double", input=[reference, {"role": "user", "content": "second"}])  # type: ignore[list-item]
    assert [message["content"] for message in rooms.engine.asked["messages"]] == ["Hi", "second"]


def test_another_key_of_the_tenant_may_go_on_and_another_tenant_may_not(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    made = rooms.client().responses.create(model="double", input="secret of acme")
    colleague = rooms.client(rooms.house.new_key("colleague").secret)
    assert colleague.responses.create(model="double", input="x", previous_response_id=made.id).output_text == "Hi"
    unknown = "resp_" + "0" * 32
    with (
        rooms.house.client(rooms.stranger.secret) as relay,
        rooms.house.client(rooms.stranger.secret, door="web") as web,
    ):
        seen = set()
        for client in (relay, web):
            for name in (made.id, unknown, "resp_x"):
                for path in ("", "/input_items"):
                    answer = client.get(f"/v1/responses/{name}{path}")
                    seen.add((answer.status_code, answer.content))
                answer = client.delete(f"/v1/responses/{name}")
                seen.add((answer.status_code, answer.content))
        assert len(seen) == 1
        assert seen.pop()[0] == 404
        refused = set()
        for name in (made.id, unknown, "nonsense"):
            body = {"model": "double", "input": "x", "previous_response_id": name}
            answer = relay.post("/v1/responses", json=body)
            refused.add((answer.status_code, answer.content))
        assert len(refused) == 1
        assert refused.pop()[0] == 404
        reference = [{"type": "item_reference", "id": made.output[0].id}]
        answer = relay.post("/v1/responses", json={"model": "double", "input": reference})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].id")
    assert rooms.client().responses.retrieve(made.id).id == made.id


def test_what_is_not_to_be_stored_is_not(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client()
    before = StoredResponse.objects.count()
    made = client.responses.create(model="double", input="x", store=False)
    assert made.store is False  # type: ignore[attr-defined]  # not in the client's types
    assert StoredResponse.objects.count() == before
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_tenant_without_retention_keeps_nothing(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client(make_key(rooms.forgetful, "one").secret)
    kept = client.responses.create(model="double", input="x")
    assert StoredResponse.objects.filter(tenant_id=rooms.forgetful.pk).count() == 1
    change_tenant(rooms.forgetful.pk, response_retention_days=0, actor=SYSTEM)

    def told() -> Any:
        return client.responses.create(model="double", input="x").store  # type: ignore[attr-defined]

    wait_until(lambda: told() is False, "the setting is in force")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="double", input="x", previous_response_id=kept.id)
    delete_expired_responses(now=timezone.now())
    assert not StoredResponse.objects.filter(tenant_id=rooms.forgetful.pk).exists()


def test_the_expired_are_not_served_and_then_deleted(rooms: Rooms) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client()
    old = client.responses.create(model="double", input="x")
    young = client.responses.create(model="double", input="x", previous_response_id=old.id)
    rows = StoredResponse.objects.filter(tenant_id=rooms.house.tenant.pk)
    assert rows.filter(expires_at__gt=timezone.now() + timedelta(days=29)).count() == rows.count()
    rows.filter(pk=old.id.removeprefix("resp_")).update(expires_at=timezone.now())
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(old.id)
    with pytest.raises(openai.NotFoundError):  # half a conversation would be another one
        client.responses.create(model="double", input="x", previous_response_id=young.id)
    assert delete_expired_responses(now=timezone.now(), batch=1) == 1
    assert delete_expired_responses(now=timezone.now()) == 0
    assert client.responses.retrieve(young.id).id == young.id


@pytest.mark.parametrize("door", ["relay", "web"])
def test_an_engine_that_dies_ends_the_stream_with_an_error(rooms: Rooms, door: str) -> None:
    async def then(wire: Wire) -> None:
        wire.die()

    rooms.engine.script = streams(*chunks({"content": "Hi"}, {"content": " there"})[:2], then=then)
    before = StoredResponse.objects.count()
    events = list(rooms.client(door=door).responses.create(model="double", input="x", stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert events[-1].type == "error"
    assert events[-1].code == "upstream_error"
    assert not any(e.type in ("response.completed", "response.incomplete") for e in events)
    assert StoredResponse.objects.count() == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", ["relay", "web"])
def test_without_a_database_answers_are_given_and_not_kept(rooms: Rooms, door: str, stream: bool) -> None:
    rooms.engine.script = answers(completion({"content": "Hi"}))
    client = rooms.client(door=door)
    made = client.responses.create(model="double", input="x")
    if stream:
        rooms.engine.script = streams(*chunks({"content": "Hi"}))
    with database_away():
        if stream:
            with client.responses.stream(model="double", input="x") as events:
                answer: Any = events.get_final_response()
        else:
            answer = client.responses.create(model="double", input="x")
        assert (answer.output_text, answer.store) == ("Hi", False)
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.create(model="double", input="x", previous_response_id=made.id)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["retry-after"]
        with pytest.raises(openai.InternalServerError) as caught:
            client.responses.retrieve(made.id)
        assert caught.value.response.headers["retry-after"]
    assert client.responses.retrieve(made.id).id == made.id
