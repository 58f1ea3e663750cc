"""Engines behind https, through the door: spoken to where certificate and name are right, and not otherwise."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from core.tls import engine_context
from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome
from tests.doubles.authority import Authority
from tests.doubles.engine import EngineDouble, answers, chat_stream, completion, streams
from tests.gateway.relay.door.house import DoorHouse, chat

OpenDoor = Callable[..., Awaitable[DoorHouse]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


async def _door(open_door: OpenDoor, engine: EngineDouble, ca_file: Path | None = None, **options: Any) -> DoorHouse:
    house = await open_door(engine.port, authorization="Bearer engine-key", **options)
    picker = house.pipeline.picker
    picker.endpoints = [msgspec.structs.replace(endpoint, tls=True) for endpoint in picker.endpoints]
    if ca_file is not None:
        house.upstream.tls = engine_context(ca_file)
    return house


async def test_an_engine_behind_https_is_spoken_to(open_door: OpenDoor, authority: Authority) -> None:
    engine = EngineDouble(answers(completion("Hi")), streams(*chat_stream("He", "llo")))
    engine.tls = authority.server("IP:127.0.0.1")
    async with engine:
        house = await _door(open_door, engine, authority.ca_file)
        assert (await house.ask(chat())).json == completion("Hi", model="alias")
        streamed = await house.ask(chat(stream=True))
        assert b"llo" in streamed.body
        assert streamed.body.endswith(b"data: [DONE]\n\n")
        assert engine.accepted == 1  # kept alive from the one to the other
        assert [request.header("authorization") for request in engine.received] == ["Bearer engine-key"] * 2


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [
        ("IP:127.0.0.1", "system", "unable to get local issuer certificate"),
        ("IP:127.0.0.1", "another", "its certificate is not accepted"),
        ("IP:127.0.0.2,DNS:engine.example", "own", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
async def test_a_wrong_authority_or_name_is_a_failed_attempt_and_told_in_the_log(
    open_door: OpenDoor, authority: Authority, tmp_path: Path, name: str, trusted: str, why: str
) -> None:
    another = Authority(tmp_path / "another")
    ca_file = {"system": None, "own": authority.ca_file, "another": another.ca_file}[trusted]
    engine = EngineDouble(answers(completion()))
    engine.tls = authority.server(name)
    async with engine:
        house = await _door(open_door, engine, ca_file)
        with capture_logs() as logs:
            answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert "certificate" not in answer.body.decode()
        assert engine.received == []  # neither the request nor the engine's key went out
        (line,) = [line for line in logs if line["event"] == "attempt_failed"]
        assert why in line["reason"]
        assert (await house.settled())[0].outcome is Outcome.FAILED


async def test_an_engine_that_speaks_no_tls_is_sent_nothing(open_door: OpenDoor, authority: Authority) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await _door(open_door, engine, authority.ca_file, deadlines=Deadlines(connect_seconds=0.3))
        answer = await house.ask(chat())  # the handshake is part of connecting
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert engine.received == []


async def test_a_client_that_was_told_nothing_of_tls_trusts_what_the_system_does(
    open_door: OpenDoor, authority: Authority
) -> None:
    engine = EngineDouble(answers(completion()))
    engine.tls = authority.server("IP:127.0.0.1")
    async with engine:
        house = await _door(open_door, engine)
        assert (await house.ask(chat())).error["code"] == "upstream_error"
        assert engine.received == []
