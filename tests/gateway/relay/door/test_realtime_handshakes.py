"""How conversations over a websocket begin: who is refused, what is kept secret, and what is served beside them."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from core.errors import GatehouseError, InvalidApiKey, ModelNotFound, PermissionDenied, SnapshotStale
from gateway.relay.door import Door
from gateway.relay.server import ServerLimits
from tests.doubles.engine import EngineDouble, answers, chat_stream, completion, streams
from tests.gateway.relay.door.house import DoorHouse, chat, until
from tests.gateway.relay.door.talk import HANDSHAKE, Talk

OpenDoor = Callable[..., Awaitable[DoorHouse]]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (InvalidApiKey(), 401),
        (PermissionDenied(), 403),
        (ModelNotFound(param="model"), 404),
        (SnapshotStale(retry_after_seconds=1), 503),
    ],
)
async def test_a_handshake_is_refused_in_http(open_door: OpenDoor, refusal: GatehouseError, status: int) -> None:
    house = await open_door()
    house.pipeline.refuse = refusal
    with pytest.raises(InvalidStatus) as refused:
        await Talk.begin(house.port)
    answer = refused.value.response
    assert answer.status_code == status
    assert json.loads(answer.body)["error"]["code"] == refusal.code
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/realtime", 400, "invalid_request"),
        ("/v1/realtime?model=", 400, "invalid_request"),
        ("/v1/realtime?model=a&model=b", 400, "invalid_request"),
        ("/v1/realtime?model=%ff", 400, "invalid_request"),
        ("/v1/realtimes?model=alias", 404, "not_found"),
        ("/v1/chat/completions", 405, "method_not_allowed"),
        ("/", 404, "not_found"),
    ],
)
async def test_websockets_are_had_at_one_address_only(open_door: OpenDoor, path: str, status: int, code: str) -> None:
    house = await open_door()
    with pytest.raises(InvalidStatus) as refused:
        await Talk.begin(house.port, path=path)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == code


@pytest.mark.parametrize(
    ("taken", "given"),
    [
        ("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8"),
        ("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Key: short"),
        ("Connection: Upgrade", "Connection: keep-alive"),
        ("X-Other: a", "Content-Length: 4"),
        ("X-Other: a", "X-Other: " + "a" * 9000),
    ],
)
async def test_a_broken_handshake_is_told_in_shape(open_door: OpenDoor, taken: str, given: str) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(HANDSHAKE.replace(taken, given).encode())
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (400, "invalid_handshake")


async def test_a_handshake_may_come_in_pieces(open_door: OpenDoor) -> None:
    house = await open_door()
    for cut in (10, 60, 75, 110, len(HANDSHAKE) - 2):
        client = await house.connect()
        for piece in (HANDSHAKE[:cut], HANDSHAKE[cut:]):
            client.writer.write(piece.encode())
            await client.writer.drain()
            await asyncio.sleep(0.02)
        status, headers = await client.head()
        assert (status, dict(headers)["upgrade"]) == (101, "websocket")
        client.leave()


@pytest.mark.parametrize("early", [b"\x81\x80\x00\x00\x00\x00", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_bytes_that_do_not_wait_for_the_answer_are_refused(open_door: OpenDoor, early: bytes) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(HANDSHAKE.encode() + early)
    assert (await client.answer()).status == 400


async def test_a_request_of_before_does_not_hinder_a_websocket(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    await client.request("GET", "/healthz")
    assert (await client.answer()).status == 200
    client.writer.write(HANDSHAKE.encode())
    assert (await client.head())[0] == 101


async def test_websockets_count_as_connections(open_door: OpenDoor) -> None:
    house = await open_door(limits=ServerLimits(drain_notice_seconds=0, connection_cap=1))
    talk = await Talk.begin(house.port)
    with pytest.raises(InvalidStatus) as refused:
        await Talk.begin(house.port)
    assert refused.value.response.status_code == 503
    await talk.end()
    await until(lambda: not house.server.server_state.connections)
    await (await Talk.begin(house.port)).end()


async def test_a_browsers_key_comes_as_a_subprotocol_and_is_not_sent_back(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("A"))) as engine:
        house = await open_door(engine.port)
        seen: list[Any] = []
        models, prepare = house.pipeline.models, house.pipeline.prepare

        async def noted_models(request: Any) -> bytes:
            seen.append(request)
            return await models(request)

        async def noted_prepare(request: Any) -> Any:
            seen.append(request)
            return await prepare(request)

        house.pipeline.models = noted_models  # type: ignore[method-assign]
        house.pipeline.prepare = noted_prepare  # type: ignore[method-assign]
        talk = await Talk.begin(
            house.port,
            subprotocols=["realtime", "openai-insecure-api-key.sk-secret"],
            headers={"Origin": "https://app.example"},
        )
        assert talk.connection.subprotocol == "realtime"
        assert "sk-secret" not in str(talk.connection.response)
        await talk.user()
        await talk.respond()
        for request in seen:
            assert (b"x-api-key", b"sk-secret") in request.headers
            assert not any(name.startswith(b"sec-websocket") for name, _ in request.headers)
        assert b"sk-secret" not in str(engine.received[0].headers).encode()
        await talk.end()


async def test_neither_keys_nor_words_are_logged_however_much_is(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineDouble(streams(*chat_stream("canary answer"))) as engine:
        house = await open_door(engine.port)
        caplog.set_level(logging.DEBUG, "uvicorn.error")
        caplog.set_level(logging.CRITICAL, "websockets.client")  # the test's own side
        talk = await Talk.begin(house.port, subprotocols=["realtime", "openai-insecure-api-key.sk-canary"])
        await talk.user("canary question")
        await talk.respond()
        await talk.end()
        assert "canary" not in caplog.text


async def test_plain_requests_are_served_beside_conversations(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        talk = await Talk.begin(house.port)
        assert (await house.ask(chat())).status == 200
        assert (await house.ask(method="GET", path="/v1/realtime?model=alias")).status == 404
        assert isinstance(house.door, Door)
        assert house.door.in_flight == 0
        await talk.end()
