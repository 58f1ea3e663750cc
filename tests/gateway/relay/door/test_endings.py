"""Every ending of a request, with and without a task: settled once, and nothing of it stays."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from core.clock import SystemClock
from gateway.relay import attempt as attempt_module
from gateway.relay import server as server_module
from gateway.relay.completion import CompletionStream
from gateway.relay.exchange import Deadlines
from gateway.relay.plan import Api, Outcome, Ready, SlimRequest
from gateway.relay.protocol import GuardedProtocol
from gateway.relay.server import ServerLimits
from gateway.relay.upstream import Origin
from tests.doubles.engine import (
    DONE,
    EngineDouble,
    Received,
    Script,
    Wire,
    answers,
    chunk,
    completion,
    stall,
    streams,
)
from tests.gateway.relay.door.house import DoorHouse, RawClient, chat, until

OpenDoor = Callable[..., Awaitable[DoorHouse]]

BODY = json.dumps(chat()).encode()
ANSWER = json.dumps(completion()).encode()
ANSWER_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ANSWER)

both = pytest.mark.parametrize("quick", [True, False], ids=["quick", "task"])


def says(*pieces: bytes, then: Callable[[Wire], Awaitable[None]] | None = None) -> Script:
    """A script: bytes as they are."""

    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(*pieces)
        if then is not None:
            await then(wire)

    return script


async def close(wire: Wire) -> None:
    wire.close()


async def warm(open_door: OpenDoor, engine: EngineDouble, quick: bool, **options: Any) -> DoorHouse:
    """A door with an idle connection to the engine; the first script is used up."""
    house = await open_door(engine.port, **options)
    house.pipeline.quick = quick
    assert (await house.ask(chat())).status == 200
    await until(lambda: house.upstream.idle_connections(Origin("127.0.0.1", engine.port)) == 1)
    house.settlements.clear()
    house.pipeline.picker.outcomes.clear()
    return house


async def send(house: DoorHouse, body: bytes = BODY) -> RawClient:
    client = await house.connect()
    await client.request("POST", "/v1/chat/completions", body)
    return client


async def nothing_stays(house: DoorHouse, engine: EngineDouble, *outcomes: Outcome) -> None:
    origin = Origin("127.0.0.1", engine.port)
    await until(lambda: house.door.in_flight == 0 and not house.server.server_state.tasks)
    await until(lambda: house.upstream.connections(origin) == house.upstream.idle_connections(origin))
    for _ in range(5):
        await asyncio.sleep(0)
    assert [settlement.outcome for settlement in house.settlements] == [*outcomes]
    assert house.pipeline.picker.in_flight == 0
    assert house.door._memory.held_bytes == 0
    assert house.upstream.memory.held_bytes == 0


async def connected(house: DoorHouse) -> GuardedProtocol:
    """The door's end of a new connection."""
    before = guarded(house)
    await house.connect()
    await until(lambda: len(guarded(house)) > len(before))
    (protocol,) = [one for one in guarded(house) if one not in before]
    return protocol


def guarded(house: DoorHouse) -> list[GuardedProtocol]:
    """The door's ends of all connections."""
    return [one for one in house.server.server_state.connections if isinstance(one, GuardedProtocol)]


def request(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: door\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


@contextlib.asynccontextmanager
async def engine_of(*scripts: Script) -> AsyncIterator[EngineDouble]:
    """An engine whose first answer is a plain one; see `warm`."""
    async with EngineDouble(answers(completion()), *scripts) as engine:
        yield engine


# What engines do


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(says(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", ANSWER_HEAD + ANSWER), id="1xx first"),
        pytest.param(says(b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER_HEAD + ANSWER), id="1xx with it"),
        pytest.param(says(ANSWER_HEAD, ANSWER[:10], ANSWER[10:]), id="in pieces"),
        pytest.param(says(*[bytes([byte]) for byte in ANSWER_HEAD + ANSWER]), id="byte by byte"),
        pytest.param(says((ANSWER_HEAD + ANSWER) * 2), id="twice"),
        pytest.param(says(ANSWER_HEAD + ANSWER + b"more"), id="trailing bytes"),
        pytest.param(says(ANSWER_HEAD + ANSWER + b"HTTP/1.1 100 Continue\r\n\r\n"), id="1xx after it"),
        pytest.param(answers(completion(), gzipped=True), id="gzip"),
        pytest.param(answers(completion(), headers=[("Connection", "close")]), id="the last"),
        pytest.param(says(b"HTTP/1.0 200 OK\r\n\r\n", ANSWER, then=close), id="until it closes"),
    ],
)
async def test_ways_to_answer(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script, answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        for _ in range(2):  # the second finds a connection that is of use
            told = await client.answer()
            assert (told.status, told.json["model"]) == (200, "alias")
            await client.request("POST", "/v1/chat/completions", BODY)
        assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 3)


@both
@pytest.mark.parametrize("size", [33_000, 400_000])
@pytest.mark.parametrize("gzipped", [False, True])
async def test_sizes_of_answers(open_door: OpenDoor, quick: bool, size: int, gzipped: bool) -> None:
    text = "x" * size
    body = json.dumps(completion(text)).encode()
    if gzipped:
        body = gzip.compress(body, 0)

    async def in_pieces(_request: Received, wire: Wire) -> None:
        encoding = [("Content-Encoding", "gzip")] if gzipped else []
        await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(body))), *encoding)
        await wire.send(*[body[start : start + 9_000] for start in range(0, len(body), 9_000)])

    async with engine_of(in_pieces) as engine:
        house = await warm(open_door, engine, quick)
        told = await house.ask(chat())
        assert told.json["choices"][0]["message"]["content"] == text
        await nothing_stays(house, engine, Outcome.SUCCESS)


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(answers(b""), id="nothing"),
        pytest.param(answers(b"", status=204), id="no content"),
        pytest.param(answers(b"[1]"), id="no object"),
        pytest.param(answers({"error": {"message": "no"}}), id="an error that says 200"),
        pytest.param(answers(b"no", status=500), id="an error"),
        pytest.param(says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), id="101"),
        pytest.param(says(b"SSH-2.0-x\r\n"), id="not HTTP"),
        pytest.param(says(ANSWER_HEAD + ANSWER[:-1], then=close), id="cut short"),
        pytest.param(says(ANSWER_HEAD[:20], then=close), id="cut short in its head"),
        pytest.param(streams(chunk("A"), DONE), id="a stream"),
    ],
)
async def test_ways_to_fail(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        told = await house.ask(chat())
        assert told.status >= 500
        assert told.error
        await nothing_stays(house, engine, Outcome.FAILED)


@both
async def test_an_engine_that_answers_before_it_has_read(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of() as engine:
        house = await warm(open_door, engine, quick)
        (connection,) = house.upstream._pools[Origin("127.0.0.1", engine.port)]._all
        ask = asyncio.create_task(house.ask(chat(filler="x" * 30_000_000)))
        await until(lambda: house.pipeline.picker.in_flight == 1)
        connection.data_received(ANSWER_HEAD + ANSWER)
        assert (await ask).status == 200
        await nothing_stays(house, engine, Outcome.SUCCESS)
        await until(lambda: engine.open == 0)


@both
async def test_a_connection_that_went_stale(open_door: OpenDoor, quick: bool) -> None:
    async def answer_and_hang_up(request: Received, wire: Wire) -> None:
        await answers(completion())(request, wire)
        wire.close()

    async with EngineDouble(answer_and_hang_up, answers(completion())) as engine:
        house = await open_door(engine.port)
        house.pipeline.quick = quick
        for _ in range(2):
            assert (await house.ask(chat())).status == 200
        await nothing_stays(house, engine, Outcome.SUCCESS, Outcome.SUCCESS)


# What clients do


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(stall, id="before the head"),
        pytest.param(says(ANSWER_HEAD + ANSWER[:5], then=Wire.stall), id="in a whole answer"),
        pytest.param(streams(chunk("A"), then=Wire.stall), id="in a stream"),
    ],
)
async def test_a_client_that_leaves(
    open_door: OpenDoor, quick: bool, stream: bool, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house, json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        failed = bool(house.settlements)  # a stream where none was asked for
        client.leave()
        await until(lambda: engine.open == 0, seconds=1.0)
        await nothing_stays(house, engine, Outcome.FAILED if failed else Outcome.CANCELLED)
        assert not house.pipeline.picker.failed or failed
        assert "request_failed" not in caplog.text


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_in_the_turn_in_which_it_asked(
    open_door: OpenDoor, quick: bool, stream: bool
) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat(stream=stream)))
        protocol.transport.abort()
        await nothing_stays(house, engine, Outcome.CANCELLED)


@both
async def test_a_body_is_held_once(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat()))
        await until(lambda: len(engine.received) == 2)
        assert protocol.cycle.body == b""


@both
async def test_pipelined_requests(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        client.writer.write(request(chat()) * 20)
        for _ in range(20):
            assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 20)


@both
async def test_http_1_0(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        client.writer.write(request(chat()).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        assert (await client.answer()).header("connection") == "close"
        assert await client.reader.read() == b""
        await nothing_stays(house, engine, Outcome.SUCCESS)


@both
@pytest.mark.parametrize("at_once", [False, True])
async def test_a_client_that_expects_100(open_door: OpenDoor, quick: bool, at_once: bool) -> None:
    async with engine_of(answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        client = await house.connect()
        expecting = request(chat()).replace(b"Host", b"Expect: 100-continue\r\nHost")
        if at_once:
            client.writer.write(expecting)
        else:
            client.writer.write(expecting.removesuffix(BODY))
            assert (await client.head())[0] == 100
            client.writer.write(BODY)
        status, headers = await client.head()
        if status == 100:
            status, headers = await client.head()
        assert status == 200
        await client.reader.readexactly(int(dict(headers)["content-length"]))
        await client.request("POST", "/v1/chat/completions", BODY)
        assert (await client.answer()).status == 200
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 2)


# Deadlines and the end of the process


@both
@pytest.mark.parametrize("script", [stall, says(ANSWER_HEAD, b"{", then=Wire.stall)], ids=["head", "body"])
async def test_the_total_deadline(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=0.1, attempts=1))
        told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (504, "upstream_timeout")
        await nothing_stays(house, engine, Outcome.FAILED)
        assert engine.open == 0


def drips(beginning: bytes, drop: bytes) -> Script:
    """A script: never ends, and is never silent."""

    async def script(_request: Received, wire: Wire) -> None:
        await wire.send(beginning)
        while True:
            await asyncio.sleep(0.02)
            await wire.send(drop)

    return script


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


@both
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(drips(b"HTTP/1.1 200 OK\r\nX: ", b"x"), id="a head"),
        pytest.param(drips(CHUNKED + b"\r\n1;", b"x"), id="framing"),
        pytest.param(drips(CHUNKED + b"\r\n", b"1\r\n \r\n"), id="a body"),
        pytest.param(
            drips(CHUNKED + b"Content-Encoding: gzip\r\n\r\na\r\n\x1f\x8b\x08\x08\0\0\0\0\0\3\r\n", b"1\r\nx\r\n"),
            id="what becomes no byte",
        ),
    ],
)
async def test_dripping_moves_no_deadline(open_door: OpenDoor, quick: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=0.2, attempts=1))
        async with asyncio.timeout(2):
            told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (504, "upstream_timeout")
        await nothing_stays(house, engine, Outcome.FAILED)


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [stall, says(ANSWER_HEAD, b"{", then=Wire.stall)], ids=["head", "body"])
async def test_the_end_of_the_process(open_door: OpenDoor, quick: bool, stream: bool, script: Script) -> None:
    async with engine_of(script) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house, json.dumps(chat(stream=stream)).encode())
        await until(lambda: len(engine.received) == 2)
        for _ in range(10):
            await asyncio.sleep(0)
        house.door.abort_all()
        house.door.abort_all()
        told = await client.answer()
        assert (told.status, told.error["code"]) == (503, "draining")
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.pipeline.picker.failed == []


@both
async def test_the_end_of_the_process_before_a_task_has_run(open_door: OpenDoor, quick: bool) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        protocol = await connected(house)
        protocol.data_received(request(chat(stream=True)))
        if not quick:
            await until(lambda: house.door.in_flight == 1)
        house.door.abort_all()
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.settlements[0].error_code == "draining"


@both
async def test_the_end_of_the_process_while_a_stale_connection_is_replaced(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(_request: Received, wire: Wire) -> None:
        wire.close()

    async with engine_of(hang_up, answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        pool = house.upstream._pools[Origin("127.0.0.1", engine.port)]
        acquire, asked, go_on = pool.acquire, asyncio.Event(), asyncio.Event()

        async def acquire_late(seconds: float, *, fresh: bool) -> Any:
            asked.set()
            await go_on.wait()
            return await acquire(seconds, fresh=fresh)

        monkeypatch.setattr(pool, "acquire", acquire_late)
        client = await send(house)
        await asked.wait()
        house.door.abort_all()
        go_on.set()
        assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, Outcome.FAILED)
        assert len(engine.received) == 2


@both
async def test_the_end_of_the_process_between_the_steps_of_an_answer(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = SimpleNamespace(method="POST", path="/second", body=b"{}")
    translation = SimpleNamespace(
        request=SimpleNamespace(method="POST", path="/first", body=b"{}"), whole=lambda _: step
    )
    room = SimpleNamespace(translates={Api.CHAT}, wire=SimpleNamespace(translate=lambda _: translation))
    async with engine_of(answers(completion(), headers=[("Connection", "close")]), answers(completion())) as engine:
        house = await warm(open_door, engine, quick)
        pool = house.upstream._pools[Origin("127.0.0.1", engine.port)]
        asked = asyncio.Event()

        async def acquire_never(_seconds: float, *, fresh: bool) -> Any:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(attempt_module, "find_room", lambda _: room)
        monkeypatch.setattr(pool, "acquire", acquire_never)
        client = await send(house)
        await asked.wait()
        house.door.abort_all()
        async with asyncio.timeout(5):
            assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, Outcome.FAILED)


@both
async def test_the_end_of_the_process_reaches_what_waits_in_the_pipe(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 0.0)
    async with engine_of(stall) as engine:
        house = await warm(
            open_door, engine, quick, limits=ServerLimits(drain_notice_seconds=0, drain_deadline_seconds=0.1)
        )
        client = await house.connect()
        client.writer.write(request(chat()) * 3)
        await until(lambda: len(engine.received) == 2)
        house.signal()
        for _ in range(3):
            assert (await client.answer()).error["code"] == "draining"
        await nothing_stays(house, engine, *[Outcome.FAILED] * 3)


@both
async def test_a_replaced_connection_gets_no_new_deadline(open_door: OpenDoor, quick: bool) -> None:
    async def hang_up_late(_request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.3)
        wire.close()

    async with engine_of(hang_up_late, stall) as engine:
        house = await warm(open_door, engine, quick, deadlines=Deadlines(total_seconds=0.4, attempts=1))
        assert (await house.ask(chat())).status == 504
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.settlements[0].duration_seconds < 0.6


class SlowClock(SystemClock):
    """Goes a little slower than the loop's, as far as waits can tell."""

    def monotonic(self) -> float:
        return super().monotonic() * 0.95


def admit(house: DoorHouse, **members: Any) -> None:
    """Have requests admitted with other members of Ready."""
    prepare, prepare_now = house.pipeline.prepare, house.pipeline.prepare_now

    def changed(ready: Any) -> Any:
        if isinstance(ready, Ready):
            for name, value in members.items():
                setattr(ready, name, value)
        return ready

    async def prepare_so(request: SlimRequest) -> Any:
        return changed(await prepare(request))

    house.pipeline.prepare = prepare_so  # type: ignore[method-assign]
    house.pipeline.prepare_now = lambda request: changed(prepare_now(request))  # type: ignore[method-assign]


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_a_clients_own_deadline_is_nobodys_fault_whatever_the_clocks_say(
    open_door: OpenDoor, quick: bool, stream: bool
) -> None:
    async with engine_of(stall) as engine:
        house = await warm(open_door, engine, quick)
        house.door._clock = SlowClock()
        admit(house, timeout_seconds=0.1)
        assert (await house.ask(chat(stream=stream))).status == 504
        await nothing_stays(house, engine, Outcome.FAILED)
        assert house.pipeline.picker.failed == []


# Streams


async def test_who_wants_no_comments_gets_none_whatever_the_clocks_say(open_door: OpenDoor) -> None:
    async with EngineDouble(streams(chunk("A"), then=Wire.stall)) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(inter_token_seconds=0.1))
        house.door._clock = SlowClock()
        admit(house, keep_alive=False)
        told = await house.ask(chat(stream=True))
        assert b"keep-alive" not in told.body
        assert b'"code":"upstream_timeout"' in told.body
        await nothing_stays(house, engine, Outcome.TRUNCATED)


async def test_a_whole_answer_after_a_comment_does_not_get_into_the_stream(open_door: OpenDoor) -> None:
    async def late(request: Received, wire: Wire) -> None:
        await asyncio.sleep(0.2)
        await answers(completion())(request, wire)

    async with EngineDouble(late) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(keep_alive_seconds=0.05))
        told = await house.ask(chat(stream=True))
        assert told.header("content-type") == "text/event-stream; charset=utf-8"
        *comments, error, rest = told.body.split(b"\n\n")
        assert set(comments) == {b": keep-alive"}
        assert b'"code":"upstream_error"' in error
        assert rest == b""
        await nothing_stays(house, engine, Outcome.FAILED)


@pytest.mark.parametrize(
    ("defect", "code", "failed"),
    [(ValueError("x"), "upstream_error", 1), (RuntimeError("x"), "internal_error", 0)],
)
async def test_a_defect_while_bytes_pass_without_a_task(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch, defect: Exception, code: str, failed: int
) -> None:
    take = CompletionStream.take

    def take_or_break(self: CompletionStream, data: bytes) -> list[bytes]:
        if b"break" in data:
            raise defect
        return take(self, data)

    monkeypatch.setattr(CompletionStream, "take", take_or_break)
    async with EngineDouble(streams(chunk("A"), chunk("B"), chunk("break", finish="x"), then=Wire.stall)) as engine:
        house = await open_door(engine.port)
        client = await send(house, json.dumps(chat(stream=True)).encode())
        async with asyncio.timeout(5):
            seen = await client.reader.readuntil(b'"B"')
            assert b'"A"' in seen
            await until(lambda: len(house.settlements) == 1)
        await nothing_stays(house, engine, Outcome.TRUNCATED)
        assert house.settlements[0].error_code == code
        assert len(house.pipeline.picker.failed) == failed


# Defects of ours


async def test_a_defect_while_it_is_decided_about(open_door: OpenDoor) -> None:
    async with engine_of() as engine:
        house = await warm(open_door, engine, quick=True)

        def broken(_request: SlimRequest) -> None:
            raise RuntimeError

        house.pipeline.prepare_now = broken  # type: ignore[assignment,method-assign]
        client = await house.connect()
        client.writer.write(request(chat()) * 2)
        for _ in range(2):
            assert (await client.answer()).status == 200  # `prepare` is well
        await nothing_stays(house, engine, *[Outcome.SUCCESS] * 2)


async def test_a_defect_while_an_answer_is_read(open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any, **_named: Any) -> None:
        raise RuntimeError

    async with engine_of() as engine:
        house = await warm(open_door, engine, quick=True)
        monkeypatch.setattr(attempt_module, "read_whole", broken)
        told = await house.ask(chat())
        assert (told.status, told.error["code"]) == (500, "internal_error")
        await nothing_stays(house, engine, Outcome.FAILED)


# What clients are left with


@both
@pytest.mark.parametrize("quick_reader", [False, True])
async def test_a_client_that_does_not_take_its_whole_answer(
    open_door: OpenDoor, quick: bool, quick_reader: bool
) -> None:
    """The request is over, but its bytes are held; a client that takes some from time to time may."""
    async with engine_of(answers(completion("x" * 20_000_000))) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        await until(lambda: len(house.settlements) == 1)
        (protocol,) = [one for one in guarded(house) if one.flow.write_paused]
        now = protocol.loop.time()
        for turn in range(4):
            protocol.check(now + 50.0 * turn)
            if quick_reader:
                before = protocol.transport.get_write_buffer_size()
                await client.reader.readexactly(4_000_000)
                await until(lambda held=before: protocol.transport.get_write_buffer_size() < held - 1_000_000)  # type: ignore[misc]
        assert protocol.transport.is_closing()  # with nothing to do for so long: but not at once
        if quick_reader:
            assert (await client.reader.read()).endswith(b"}")
        else:
            await until(lambda: protocol not in house.server.server_state.connections)
        await nothing_stays(house, engine, Outcome.SUCCESS)


@both
async def test_the_end_of_the_process_waits_for_clients_to_take_their_answers(
    open_door: OpenDoor, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LINGER_SECONDS", 0.0)
    async with engine_of(answers(completion("x" * 20_000_000))) as engine:
        house = await warm(open_door, engine, quick)
        client = await send(house)
        await until(lambda: len(house.settlements) == 1)
        house.signal()
        assert house.task is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(house.task), 0.3)
        assert len((await client.answer()).json["choices"][0]["message"]["content"]) == 20_000_000
        await asyncio.wait_for(house.task, 2)
