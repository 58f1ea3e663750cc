"""What one exchange of the suite is, and how an answer in OpenAI's words is read: strictly, by its members."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gateway.relay.completion import CompletionStream, read_whole
from gateway.relay.plan import Api
from gateway.relay.routes import ENGINE_PATHS
from gateway.relay.splice import parse_body, splice
from gpupool.engines.base import OpenAICall, Translation
from gpupool.engines.registry import get_engine

SERVED = "served"
"""What the engines call the model; clients call it `alias`."""


@dataclass(frozen=True)
class Seen:
    """A request that the engine must see. `body` is compared as JSON."""

    path: str
    body: dict[str, Any]
    method: str = "POST"


@dataclass
class Told:
    """What a client learns of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)  # name, arguments
    finish: list[str] = field(default_factory=list)  # of each choice, in their order
    usage: tuple[int | None, int | None] | None = None  # input, output
    error: str | None = None
    others: list[str] = field(default_factory=list)  # texts of the choices after the first


@dataclass(frozen=True)
class Exchange:
    """`asks` is the client's request without model and stream; `answers` the engine's bytes, one a request."""

    name: str
    engine: str
    api: Api
    asks: dict[str, Any]
    sees: tuple[Seen, ...]
    answers: tuple[bytes, ...]
    told: Told | dict[str, Any]  # of embeddings, scores and counts: members of the answer
    stream: bool = False

    @property
    def request(self) -> dict[str, Any]:
        return {"model": "alias", **self.asks, **({"stream": True} if self.stream else {})}

    @property
    def path(self) -> str:
        return ENGINE_PATHS[self.api]

    def __str__(self) -> str:
        return f"{self.engine}-{self.name}"


def call_of(exchange: Exchange) -> OpenAICall:
    """As the relay hands it to a room."""
    body = json.dumps(exchange.request).encode()
    parsed = parse_body(exchange.api, body)
    spliced = splice(body, parsed, served_name=SERVED)
    return OpenAICall(exchange.api, exchange.path, spliced, SERVED, exchange.stream)


def translation_of(exchange: Exchange) -> Translation | None:
    room = get_engine(exchange.engine)
    return room.wire.translate(call_of(exchange)) if exchange.api in room.translates else None


def stream_through(exchange: Exchange, pieces: Iterable[bytes]) -> Told:
    """The engine's stream through the room and the relay's own reading of it, cut as the pieces are."""
    translation = translation_of(exchange)
    stream = CompletionStream(client_model="alias", drop_usage=False)
    events: list[bytes] = []
    for piece in pieces:
        events += stream.take(piece if translation is None else translation.feed(piece))
        if stream.over:
            break
    if not stream.over:
        rest = b"" if translation is None else translation.end()
        events += stream.take(rest) if rest else []
        events += stream.take_rest()
    told = read_events(events)
    if stream.error is not None:
        told.error = json.loads(stream.error)["error"]["message"]
    if stream.usage is not None:
        told.usage = (stream.usage.input_tokens, stream.usage.output_tokens)
    return told


def whole_through(exchange: Exchange) -> bytes:
    """The engine's whole answers through the room and the relay's own reading of them."""
    translation = translation_of(exchange)
    body = exchange.answers[0]
    for step in range(len(exchange.answers)):
        if translation is None:
            break
        answer = translation.whole(exchange.answers[step])
        if isinstance(answer, bytes):
            body = answer
            assert step == len(exchange.answers) - 1
            break
        assert_seen(exchange.sees[step + 1], answer.method, answer.path, answer.body)
    return read_whole(exchange.api, body, client_model="alias").body


def assert_seen(seen: Seen, method: str, path: str, body: bytes) -> None:
    assert (method, path) == (seen.method, seen.path)
    assert json.loads(body) == seen.body


def read_events(events: Iterable[bytes]) -> Told:
    """What a streamed answer says."""
    texts: dict[int, str] = {}
    finish: dict[int, str] = {}
    told = Told()
    arguments: dict[int, list[str]] = {}
    for event in b"".join(events).replace(b"\r\n", b"\n").split(b"\n\n"):
        if not event.startswith(b"data: ") or event == b"data: [DONE]":
            continue
        chunk = json.loads(event[6:])
        if "error" in chunk:
            told.error = chunk["error"]["message"]
            continue
        assert chunk["object"] in ("chat.completion.chunk", "text_completion")
        assert chunk["model"] == "alias"
        assert isinstance(chunk["id"], str)
        if chunk.get("usage"):
            told.usage = (chunk["usage"].get("prompt_tokens"), chunk["usage"].get("completion_tokens"))
        for choice in chunk["choices"]:
            index = choice["index"]
            delta = choice.get("delta") or {}
            texts[index] = texts.get(index, "") + (delta.get("content") or choice.get("text") or "")
            told.reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                parts = arguments.setdefault(call["index"], [])
                if "name" in call["function"]:
                    told.calls.append((call["function"]["name"], None))
                    assert call["id"]
                parts.append(call["function"].get("arguments") or "")
            if choice.get("finish_reason"):
                assert index not in finish
                finish[index] = choice["finish_reason"]
    told.calls = [(name, json.loads("".join(arguments[i]))) for i, (name, _) in enumerate(told.calls)]
    told.text, told.others = texts.get(0, ""), [texts[index] for index in sorted(texts) if index]
    told.finish = [finish[index] for index in sorted(finish)]
    return told


def read_answer(body: bytes) -> Told:
    """What a whole completion or chat says."""
    answer = json.loads(body)
    if "error" in answer:
        return Told(error=answer["error"]["message"])
    assert answer["model"] == "alias"
    told = Told(finish=[choice["finish_reason"] for choice in answer["choices"]])
    texts = []
    for choice in answer["choices"]:
        message = choice.get("message") or {"content": choice.get("text")}
        texts.append(message["content"] or "")
        told.reasoning += message.get("reasoning_content") or ""
        for call in message.get("tool_calls") or []:
            told.calls.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
    told.text, told.others = texts[0], texts[1:]
    if answer.get("usage"):
        told.usage = (answer["usage"].get("prompt_tokens"), answer["usage"].get("completion_tokens"))
    return told
