"""What reaches an engine is the same bytes, whichever door a request came by; and so is what comes back.

The engine is a double that notes every byte, since real ones do not tell what they were sent.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from bench.house import wait_until
from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.services import grant_model
from tests.doubles.engine import DONE, EngineDouble, Received, Wire, answers, chat_stream, completion, event, streams
from tests.gateway.two_doors import CHAT, COMPLETIONS, VALID, Ask, Doors, comparable, encoded
from tests.gateway.two_doors import doors as doors
from tests.gateway.two_doors import house_more as house_more
from tests.house import LlamaEngine
from tests.ports import free_port

USAGE: Final = {"prompt_tokens": 3, "total_tokens": 3}
IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
TOOL: Final = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"ort": {"type": "string"}}}},
}
TALK: Final = [{"role": "user", "content": "Grüß dich"}]
WHOLE: Final[dict[str, Any]] = {
    CHAT: completion("Hallo"),
    COMPLETIONS: {"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [{"index": 0, "text": "x"}]},
    "/v1/embeddings": {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "model": "m", "usage": USAGE},
    "/v1/rerank": {"model": "m", "results": [{"index": 0, "relevance_score": 0.5}], "usage": USAGE},
    "/tokenize": {"count": 2, "max_model_len": 512, "tokens": [1, 2]},
}


class NotingEngine:
    """The double on a thread of its own; `last` is what it was sent last."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._double = EngineDouble(self._answer)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> int:
        """The port it listens on."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._double.__aenter__(), self._loop).result(10)
        return self._double.port

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._double.stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def last(self) -> Received:
        return self._double.received[-1]

    @property
    def count(self) -> int:
        return len(self._double.received)

    async def _answer(self, request: Received, wire: Wire) -> None:
        if request.json.get("stream"):
            text = event(b'{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"x"}]}')
            pieces = chat_stream("Hal", "lo") if request.path == CHAT else [text, DONE]
            await streams(*pieces)(request, wire)
        else:
            await answers(WHOLE[request.path])(request, wire)


@pytest.fixture(scope="module")
def engine(doors: Doors) -> Iterator[NotingEngine]:
    noting = NotingEngine()
    attach("noting", noting.start(), engine="vllm")
    grant_model(doors.house.tenant, model_pattern="noting", actor=SYSTEM)
    doors.wait_for(_ask("the engine", CHAT, messages=TALK))
    yield noting
    noting.stop()


@pytest.fixture(scope="module")
def vectors(doors: Doors) -> Iterator[LlamaEngine]:
    """llama.cpp, started for embeddings."""
    llama = LlamaEngine(doors.house.folder, slots=1, arguments=["--embeddings", "--pooling", "mean"])
    llama.start()
    attach("vectors", llama.port, engine="llamacpp")
    grant_model(doors.house.tenant, model_pattern="vectors", actor=SYSTEM)
    doors.wait_for(Ask("vectors", "/v1/embeddings", body={"model": "vectors", "input": "Hello"}))
    yield llama
    llama.stop()


def _ask(name: str, path: str, key: str = "valid", **body: Any) -> Ask:
    return Ask(name, path, body=encoded({"model": "noting", **body}), key=key)


# Members that the gateway does not know reach the engine byte for byte.
OPENAI: Final = (
    _ask("a template's options", CHAT, messages=TALK, chat_template_kwargs={"enable_thinking": False}),
    _ask("tools", CHAT, messages=TALK, tools=[TOOL], tool_choice="auto", parallel_tool_calls=False),
    _ask("a schema", CHAT, messages=TALK, response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
    _ask("log probabilities", CHAT, messages=TALK, logprobs=True, top_logprobs=2),
    _ask("two choices", CHAT, messages=TALK, n=2),
    _ask("an image", CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]),
    _ask(
        "numbers as they are written", CHAT, messages=TALK, temperature=1e-05, seed=2**63, unknown=[None, {"é": "😀"}]
    ),
    _ask("a stream with usage", CHAT, messages=TALK, stream=True, stream_options={"include_usage": True}),
    _ask("a completion", COMPLETIONS, prompt="Einst", suffix="Ende", echo=True),
    _ask("a completion, streamed", COMPLETIONS, prompt=[1, 2], stream=True, stream_options={"include_usage": True}),
    _ask("embeddings", "/v1/embeddings", input=["a", "b"], encoding_format="float", dimensions=8),
    _ask("embeddings of tokens", "/v1/embeddings", input=[1, 2, 3], truncate_prompt_tokens=2),
    _ask("rerank", "/v1/rerank", query="a", documents=["b", {"text": "c"}], top_n=1),
    _ask("tokens of a text", "/tokenize", prompt="Einst", add_special_tokens=False),
    _ask("tokens of a conversation", "/tokenize", messages=TALK, add_generation_prompt=True),
)
TRANSLATED: Final = (
    _ask("a stream without usage", CHAT, messages=TALK, stream=True),
    _ask("messages", "/v1/messages", max_tokens=9, system="Kurz.", messages=TALK),
    _ask("messages, streamed", "/v1/messages", max_tokens=9, messages=TALK, stream=True),
    _ask(
        "messages with tools",
        "/v1/messages",
        max_tokens=9,
        messages=TALK,
        tools=[{"name": "weather", "input_schema": {"type": "object"}}],
        tool_choice={"type": "any"},
    ),
    _ask("messages, counted", "/v1/messages/count_tokens", messages=TALK),
    _ask("a response", "/v1/responses", input="Einst", instructions="Kurz.", store=False),
    _ask("a response, streamed", "/v1/responses", input=TALK, stream=True, store=False),
)


def _by(doors: Doors, engine: NotingEngine, door: str, ask: Ask) -> tuple[Any, Received]:
    before = engine.count
    response = doors.send(door, ask)
    assert response.status_code == 200, response.text
    assert engine.count == before + 1
    return comparable(response), engine.last


@pytest.mark.parametrize("ask", [*OPENAI, *TRANSLATED], ids=lambda ask: ask.name)
def test_an_engine_is_asked_alike_by_both_doors(doors: Doors, engine: NotingEngine, ask: Ask) -> None:
    told_by_relay, relay = _by(doors, engine, "relay", ask)
    told_by_web, web = _by(doors, engine, "web", ask)
    assert (web.method, web.path, web.body) == (relay.method, relay.path, relay.body)
    changing = ("x-request-id", "x-request-deadline-ms")
    assert [h for h in web.headers if h[0] not in changing] == [h for h in relay.headers if h[0] not in changing]
    assert told_by_web == told_by_relay


@pytest.mark.parametrize("ask", OPENAI, ids=lambda ask: ask.name)
def test_what_the_gateway_does_not_know_passes_byte_for_byte(doors: Doors, engine: NotingEngine, ask: Ask) -> None:
    for door in ("relay", "web"):
        _, received = _by(doors, engine, door, ask)
        assert (received.path, received.body) == (ask.path, ask.body)


@pytest.mark.shows("G26", "R84")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_nothing_of_the_client_but_its_trace_reaches_the_engine(doors: Doors, engine: NotingEngine, door: str) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    claims = {
        "cookie": "session=1",
        "x-forwarded-for": "203.0.113.5",
        "x-user-id": "root",
        "x-gatehouse-class": "p0",
        "x-api-key": VALID,
        "connection": "keep-alive, x-secret",
        "x-secret": "1",
        "te": "trailers",
        "proxy-authorization": "Basic abc",
        "traceparent": trace,
        "tracestate": "vendor=1",
    }
    ask = Ask("x", body=encoded({"model": "noting", "messages": TALK}), headers=claims)
    _, received = _by(doors, engine, door, ask)
    assert {name for name, _ in received.headers} == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
        "x-request-id",
        "x-request-deadline-ms",
        "x-gatehouse-class",  # as the tenant's tier has it
        "traceparent",
        "tracestate",
    }
    assert (received.header("traceparent"), received.header("x-gatehouse-class")) == (trace, "p2")
    assert not any(doors.secrets["valid"] in value for _, value in received.headers)


@pytest.mark.shows("R84")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_what_a_door_logs_says_whose_request_and_trace_it_is_about(doors: Doors, door: str) -> None:
    attach(f"away-{door}", free_port(), engine="vllm")
    grant_model(doors.house.tenant, model_pattern=f"away-{door}", actor=SYSTEM)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    ask = Ask("x", body={"model": f"away-{door}", "messages": TALK}, headers=headers)
    wait_until(lambda: doors.send(door, ask).status_code == 502, "the engine that is away")
    lines = [json.loads(line) for line in doors.house.log(door).read_text().splitlines() if "attempt_failed" in line]
    assert lines
    about = {name: lines[-1].get(name) for name in ("tenant", "key_id", "trace_id")}
    assert about == {
        "tenant": "acme",
        "key_id": str(doors.house.key.id),
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }
    assert doors.secrets["valid"] not in doors.house.log(door).read_text()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
def test_vectors_take_a_right_of_their_own(doors: Doors, engine: NotingEngine, path: str) -> None:
    body = encoded({"model": "noting", "input": "a", "query": "a", "documents": ["b"]})
    for key, status in (("infer only", 403), ("unscoped", 200)):
        relay, web = (doors.send(door, Ask("x", path, body=body, key=key)) for door in ("relay", "web"))
        assert relay.status_code == status
        assert comparable(web) == comparable(relay)
    assert doors.send("web", Ask("x", path, body=body, key="infer only")).json()["error"]["type"] == "permission_error"


def test_a_real_engine_tells_both_doors_the_same_vectors(doors: Doors, vectors: LlamaEngine) -> None:
    ask = Ask("x", "/v1/embeddings", body={"model": "vectors", "input": ["Hello", "World"]})
    relay, web = (doors.send(door, ask) for door in ("relay", "web"))
    assert relay.status_code == 200, relay.text
    assert comparable(web) == comparable(relay)
    found = relay.json()
    assert (found["model"], [len(entry["embedding"]) for entry in found["data"]]) == ("vectors", [64, 64])
    for response in (relay, web):
        row = doors.house.ledger_row(response.headers["x-request-id"])
        assert (row.api, row.usage_source) == ("embeddings", "engine")
        assert row.input_tokens == found["usage"]["prompt_tokens"]
