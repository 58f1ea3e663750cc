"""The server around the door: probes, broken HTTP, caps on heads and connections, and the end in steps."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.relay.plan import Outcome
from gateway.relay.server import AddressUnavailable, ServerLimits, listen
from tests.doubles.engine import EngineDouble, Wire, answers, chat_stream, chunk, completion, stall, streams
from tests.gateway.relay.door.house import DoorHouse, chat, free_port, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]
ALIVE = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


async def test_probes(open_door: OpenDoor) -> None:
    reasons: list[str | None] = [None]
    house = await open_door(readiness=lambda: reasons[0])
    assert (await house.ask(method="GET", path="/healthz")).json == {"status": "ok"}
    assert (await house.ask(method="GET", path="/readyz")).status == 200
    reasons[0] = "snapshot is stale"
    ready = await house.ask(method="GET", path="/readyz")
    assert (ready.status, ready.json) == (503, {"status": "snapshot is stale"})
    assert (await house.ask(method="GET", path="/healthz")).status == 200
    assert (await house.ask(method="GET", path="/metrics")).status == 200


async def test_models_by_list_and_by_name(open_door: OpenDoor) -> None:
    house = await open_door()
    for path in ("/v1/models", "/v1/models/org/name"):
        assert (await house.ask(method="GET", path=path)).json == {"path": path}
    assert (await house.ask(method="GET", path="/v1/models/a%20b")).json == {"path": "/v1/models/a b"}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/chat/completions", 405, "POST, OPTIONS"),
        ("DELETE", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/completions", 204, "POST, OPTIONS"),
        ("OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"),
        ("GET", "/v1/models/", 404, None),
        ("POST", "/v1/embeddingz", 404, None),
        ("GET", "/", 404, None),
    ],
)
async def test_other_methods_and_paths(
    open_door: OpenDoor, method: str, path: str, status: int, allow: str | None
) -> None:
    house = await open_door()
    answer = await house.ask(method=method, path=path)
    assert (answer.status, answer.header("allow")) == (status, allow)
    assert answer.header("x-request-id")
    if status >= 400:
        assert answer.error["type"] == "invalid_request_error"


async def test_head_is_get_without_a_body(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    await client.request("HEAD", "/v1/models")
    answer = await client.answer(has_body=False)
    assert (answer.status, answer.header("content-length")) == (200, "22")
    await client.request("GET", "/healthz")
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nBad Header\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_broken_http_is_told_400(open_door: OpenDoor, sent: bytes) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(sent)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (400, "invalid_http")
    assert await client.reader.read() == b""


async def test_garbage_behind_a_request_does_not_get_into_its_answer(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineDouble(stall) as engine:
        house = await open_door(engine.port)
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat()).encode())
        await until(lambda: len(engine.received) == 1)
        client.writer.write(b"\x00garbage\r\n\r\n")
        assert await _all(client.reader) == b""
        assert (await house.settled())[0].outcome is Outcome.CANCELLED
        assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def _all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_heads_are_bounded_in_size(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000)
    answer = await client.answer()
    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize(("sent", "told"), [(b"", b""), (b"GET / HT", b"HTTP/1.1 408"), (b"\r\n\r\n", b"")])
async def test_heads_are_bounded_in_time(open_door: OpenDoor, sent: bytes, told: bytes) -> None:
    house = await open_door(limits=ServerLimits(head_deadline_seconds=0.2, drain_notice_seconds=0))
    client = await house.connect_and_say(sent)
    async with asyncio.timeout(8):  # less than the default of ten
        assert (await client.reader.read()).startswith(told)


async def test_a_slow_head_after_a_request_is_bounded_too(open_door: OpenDoor) -> None:
    house = await open_door(limits=ServerLimits(head_deadline_seconds=0.2, drain_notice_seconds=0))
    client = await house.connect_and_say(ALIVE)
    assert (await client.answer()).status == 200
    client.writer.write(b"\r\nGET /healthz HTTP/1.1\r\n")
    async with asyncio.timeout(8):  # less than the default of ten
        assert (await client.head())[0] == 408


async def test_connections_over_the_cap_are_told_503(open_door: OpenDoor) -> None:
    house = await open_door(limits=ServerLimits(connection_cap=2, drain_notice_seconds=0))
    kept = [await house.connect() for _ in range(2)]
    for client in kept:
        await client.request("GET", "/healthz")
        assert (await client.answer()).status == 200
    over = await house.ask(method="GET", path="/healthz")
    assert (over.status, over.error["code"]) == (503, "too_many_connections")
    assert over.header("retry-after") == "1"
    kept[0].leave()
    await until(lambda: len(house.server.server_state.connections) < 2)
    assert (await house.ask(method="GET", path="/healthz")).status == 200


@pytest.mark.parametrize("spelled", ["Upgrade", "upgrade", "UPGRADE"])
async def test_an_offer_of_http_2_does_not_cost_the_body(open_door: OpenDoor, spelled: str) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        offer = [("Connection", "Upgrade, HTTP2-Settings"), (spelled, "h2c"), ("HTTP2-Settings", "AAMAAABkAAQ")]
        answer = await house.ask(chat(note="\r\nUpgrade: stays"), headers=offer)
        assert answer.status == 200
        assert engine.received[0].json["note"] == "\r\nUpgrade: stays"


async def test_http_1_0_gets_no_chunks(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(*chat_stream("A")), answers(completion())) as engine:
        house = await open_door(engine.port)
        for stream in (True, False):
            client = await house.connect()
            body = json.dumps(chat(stream=stream)).encode()
            client.writer.write(
                b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            status, headers = await client.head()
            rest = await client.reader.read()
            assert status == 200
            assert "transfer-encoding" not in dict(headers)
            assert rest.startswith(b'data: {"id"') if stream else json.loads(rest) == completion(model="alias")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"OPTIONS * HTTP/1.1", 404),
        (b"GET http://elsewhere/healthz HTTP/1.1", 200),
        (b"GET /healthz?x=1 HTTP/1.1", 200),
        (b"GET //healthz HTTP/1.1", 404),
        (b"GET /v1/models/%zz%00 HTTP/1.1", 200),
        (b"CONNECT elsewhere:443 HTTP/1.1", 400),
        (b"PRI * HTTP/2.0", 400),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1", 404),
    ],
)
async def test_odd_targets(open_door: OpenDoor, line: bytes, status: int) -> None:
    house = await open_door()
    client = await house.connect()
    client.writer.write(line + b"\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(5):
        assert (await client.head())[0] == status


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_connections_notice_a_client_that_vanished(open_door: OpenDoor) -> None:
    house = await open_door()
    client = await house.connect()
    await client.request("GET", "/healthz")
    assert (await client.answer()).status == 200
    connection = next(iter(house.server.server_state.connections))
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


async def test_idle_connections_are_closed(open_door: OpenDoor) -> None:
    limits = ServerLimits(keep_alive_seconds=0.2, head_deadline_seconds=0.4, drain_notice_seconds=0)
    house = await open_door(limits=limits)
    client = await house.connect_and_say(ALIVE)
    assert (await client.answer()).status == 200
    async with asyncio.timeout(30):
        assert await client.reader.read() == b""


async def test_first_signal_gives_notice_and_lets_finish(open_door: OpenDoor) -> None:
    release = asyncio.Event()

    async def wait(wire: Wire) -> None:
        await release.wait()
        await wire.chunk(*chat_stream("B"))
        await wire.end_chunks()

    async with EngineDouble(streams(chunk("A"), then=wait), answers(completion())) as engine:
        house = await open_door(engine.port, limits=ServerLimits(drain_notice_seconds=30.0))
        client = await house.connect()
        await client.request("POST", "/v1/chat/completions", json.dumps(chat(stream=True)).encode())
        await until(lambda: len(engine.received) == 1)
        house.signal()
        await until(lambda: house.door.draining)
        ready = await house.ask(method="GET", path="/readyz")
        assert (ready.status, ready.json) == (503, {"status": "draining"})
        assert (await house.ask(chat())).status == 200  # still taken
        house.end_notice(30.0)
        await until(lambda: not house.server.servers[0].is_serving())
        with pytest.raises(OSError):
            await house.connect()
        release.set()
        assert (await client.answer()).body.endswith(b"data: [DONE]\n\n")
        assert house.task is not None
        await asyncio.wait_for(house.task, 5)
        assert [s.outcome for s in house.settlements] == [Outcome.SUCCESS] * 2


@pytest.mark.parametrize("hurried", [False, True])
async def test_what_does_not_finish_ends_with_an_error_and_is_settled(open_door: OpenDoor, hurried: bool) -> None:
    scripts = (streams(chunk("A"), then=Wire.stall), stall, stall)
    limits = ServerLimits(drain_notice_seconds=0, drain_deadline_seconds=60 if hurried else 0.2)
    async with EngineDouble(*scripts) as engine:
        house = await open_door(engine.port, limits=limits)
        clients = [await house.connect() for _ in range(3)]
        for number, stream in enumerate((True, True, False)):
            await clients[number].request("POST", "/v1/chat/completions", json.dumps(chat(stream=stream)).encode())
            await until(lambda count=number: len(engine.received) == count + 1)  # type: ignore[misc]
        await clients[0].head()
        await clients[0].chunk()
        house.signal()
        if hurried:
            await until(lambda: not house.server.servers[0].is_serving())
            house.signal()
        assert b'"code":"draining"' in await clients[0].chunk()
        assert await clients[0].chunk() == b""
        for client in clients[1:]:
            answer = await client.answer()
            assert (answer.status, answer.error["code"]) == (503, "draining")
        assert house.task is not None
        await asyncio.wait_for(house.task, 5)
        outcomes = sorted(s.outcome for s in house.settlements)
        assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.TRUNCATED]
        assert house.pipeline.picker.failed == []


def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(AddressUnavailable, match=rf"port {port} .*--port or GATEHOUSE_RELAY_PORT"):
            listen("127.0.0.1", port, tmp_path)
    listen("127.0.0.1", port, tmp_path).close()


def test_relays_of_one_installation_share_a_port_and_others_do_not(tmp_path: Path) -> None:
    port = free_port()
    first = listen("127.0.0.1", port, tmp_path / "one")
    second = listen("127.0.0.1", port, tmp_path / "one")
    assert (first.first, second.first) == (True, False)
    with pytest.raises(AddressUnavailable):
        listen("127.0.0.1", port, tmp_path / "other")
    first.close()
    third = listen("127.0.0.1", port, tmp_path / "one")
    assert not third.first
    second.close()
    third.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_an_address_that_is_not_ours_is_told_in_a_sentence(tmp_path: Path, host: str) -> None:
    with pytest.raises(AddressUnavailable, match="the relay cannot listen on"):
        listen(host, free_port(), tmp_path)
