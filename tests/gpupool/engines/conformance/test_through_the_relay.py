"""The same script through the relay's own door, with a double of each engine that speaks its words."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
import pytest
import uvloop

from gateway.relay.plan import Api, Outcome
from tests.doubles.engine import EngineDouble, Received, Script, Wire, answers, head
from tests.gateway.relay.door.house import DoorHouse
from tests.gpupool.engines.conformance.exchange import (
    SERVED,
    Exchange,
    Told,
    assert_seen,
    read_answer,
    read_events,
)
from tests.gpupool.engines.conformance.script import EXCHANGES


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@contextlib.asynccontextmanager
async def door(folder: Path, engine: str, *ports: int) -> AsyncIterator[DoorHouse]:
    """A door in front of engines of one kind."""
    house = await DoorHouse.start(folder, ports, served_name=SERVED)
    try:
        picker = house.pipeline.picker
        picker.endpoints = [msgspec.structs.replace(endpoint, engine=engine) for endpoint in picker.endpoints]
        yield house
    finally:
        await house.stop()


def streamed(exchange: Exchange, sent: bytes, size: int = 5) -> Script:
    """The engine's stream in chunks of `size` bytes, under the content type that it really has."""
    native = {"ollama": "application/x-ndjson", "vllm-generate": "text/plain"}.get(exchange.engine, "text/event-stream")

    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(head(200, ("Content-Type", native), ("Transfer-Encoding", "chunked")))
        await wire.chunk(*(sent[start : start + size] for start in range(0, len(sent), size)))
        await wire.end_chunks()

    return script


@pytest.mark.shows("R3", "R116")
@pytest.mark.parametrize("exchange", EXCHANGES, ids=str)
async def test_an_exchange_through_the_relay(exchange: Exchange, tmp_path: Path) -> None:
    scripts = (
        [streamed(exchange, exchange.answers[0])] if exchange.stream else [answers(body) for body in exchange.answers]
    )
    async with EngineDouble(*scripts) as engine, door(tmp_path, exchange.engine, engine.port) as house:
        answer = await house.ask(exchange.request, path=exchange.path)
        settlement = (await house.settled())[0]
    for seen, received in zip(exchange.sees, engine.received, strict=True):
        assert_seen(seen, received.method, received.path, received.body)
    assert answer.status == 200
    if not isinstance(exchange.told, Told):
        assert {name: answer.json[name] for name in exchange.told} == exchange.told
        assert settlement.outcome is Outcome.SUCCESS
        return
    told = read_events([answer.body]) if exchange.stream else read_answer(answer.body)
    if exchange.told.error is not None:
        assert (told.text, told.error is not None) == (exchange.told.text, True)
        assert settlement.outcome is Outcome.TRUNCATED
        return
    counted = (settlement.usage.input_tokens, settlement.usage.output_tokens)
    assert counted == exchange.told.usage or exchange.told.usage is None
    assert settlement.outcome is Outcome.SUCCESS
    if exchange.stream:  # the client did not ask for usage, so it is not told
        assert told.usage is None
        told.usage = exchange.told.usage
    assert told == exchange.told


SPOKEN = {exchange.engine: exchange for exchange in EXCHANGES if exchange.api in (Api.CHAT, Api.COMPLETIONS)}
WORDS = b"<html>the engine is not itself</html>\n\n"


@pytest.mark.parametrize("exchange", SPOKEN.values(), ids=str)
async def test_an_engine_that_speaks_nonsense_is_a_failed_attempt(exchange: Exchange, tmp_path: Path) -> None:
    async with EngineDouble(answers(WORDS)) as engine, door(tmp_path, exchange.engine, engine.port) as house:
        answer = await house.ask(exchange.request, path=exchange.path)
        outcome = await house.outcome()
    assert answer.status == 502
    assert b"not itself" not in answer.body
    assert outcome is Outcome.FAILED


async def test_a_call_that_an_engine_cannot_express_is_refused_in_openais_words(tmp_path: Path) -> None:
    async with EngineDouble(answers(b"{}")) as engine, door(tmp_path, "ollama", engine.port) as house:
        body = {"model": "alias", "messages": [{"role": "user", "content": "Hi"}], "n": 2}
        answer = await house.ask(body)
        await house.settled()
    assert (answer.status, answer.error["code"]) == (400, "unsupported_by_model")
    assert "n asks for" in answer.error["message"]
    assert engine.received == []


async def test_an_error_of_ollamas_before_any_content_is_answered_by_another_engine(tmp_path: Path) -> None:
    good = next(e for e in EXCHANGES if e.engine == "ollama" and e.name == "completion-stream")
    broken = streamed(good, json.dumps({"error": "llama runner process has terminated"}).encode() + b"\n")
    async with (
        EngineDouble(broken) as first,
        EngineDouble(streamed(good, good.answers[0])) as second,
        door(tmp_path, "ollama", first.port, second.port) as house,
    ):
        answer = await house.ask(good.request, path=good.path)
        settlement = (await house.settled())[0]
    assert isinstance(good.told, Told)
    assert read_events([answer.body]).text == good.told.text
    assert (settlement.outcome, settlement.attempts) == (Outcome.SUCCESS, 2)
