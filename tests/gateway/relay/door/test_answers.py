"""Non-streamed answers and errors through the door."""

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from core.errors import RateLimited
from core.telemetry.seldom import Seldom
from gateway.relay import attempt_log
from gateway.relay.deadlines import Deadlines
from gateway.relay.plan import Outcome, UsageSource
from tests.doubles.engine import EngineDouble, Received, Wire, answers, completion, die, stall, streams
from tests.gateway.relay.door.house import DoorHouse, chat, free_port

OpenDoor = Callable[..., Awaitable[DoorHouse]]


async def test_an_answer_passes_byte_for_byte_but_for_the_name(open_door: OpenDoor) -> None:
    body = b'{ "model" : "served",\n "choices":[{"message":{"content":"\\u00fc \\"model\\": 1"}}], "x":1e400}'
    async with EngineDouble(answers(body)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat())
        assert answer.body == body.replace(b'"served"', b'"alias"')
        assert answer.header("content-type") == "application/json"
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.status) == (Outcome.SUCCESS, 200)
        assert settlement.usage.source is UsageSource.ESTIMATED
        assert house.pipeline.picker.in_flight == 0


@pytest.mark.shows("G8", "G24")
async def test_name_is_echoed_and_usage_read(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion("Hi", usage=(11, 0)))) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(model="alias"))
        assert answer.json == completion("Hi", usage=(11, 0), model="alias")
        assert engine.received[0].json["model"] == "served"
        settlement = (await house.settled())[0]
        assert (settlement.usage.input_tokens, settlement.usage.output_tokens) == (11, 0)
        assert settlement.usage.source is UsageSource.ENGINE
        assert settlement.engine_request_id == "chatcmpl-engine"


async def test_completions_take_the_same_way(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        answer = await house.ask({"model": "alias", "prompt": "Hi"}, path="/v1/completions")
        assert answer.status == 200
        assert engine.received[0].path == "/v1/completions"


@pytest.mark.shows("G15")
@pytest.mark.parametrize("identity", [{}, {"id": ""}, {"id": None}, {"id": 7}, {"id": "same"}])
async def test_whatever_the_engine_calls_it_the_key_is_ours(open_door: OpenDoor, identity: dict[str, Any]) -> None:
    body = {**{key: value for key, value in completion().items() if key != "id"}, **identity}
    async with EngineDouble(answers(body)) as engine:
        house = await open_door(engine.port)
        ids = {(await house.ask(chat())).header("x-request-id") for _ in range(2)}
        assert len(ids) == 2
        assert None not in ids
        told = {s.engine_request_id for s in await house.settled(2)}
        assert told == {identity["id"] if isinstance(identity.get("id"), str) else None}


@pytest.mark.shows("G26")
async def test_only_allowed_headers_go_to_the_engine(open_door: OpenDoor) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port, authorization="Bearer engine-key")
        answer = await house.ask(
            chat(),
            headers=[
                ("Authorization", "Bearer client-key"),
                ("Cookie", "a=client-cookie"),
                ("X-Forwarded-For", "10.0.0.1"),
                ("X-Tenant", "other"),
                ("Connection", "keep-alive, X-Hop"),
                ("X-Hop", "1"),
                ("TE", "trailers"),
                ("traceparent", trace),
                ("tracestate", "a=1"),
            ],
        )
        request = engine.received[0]
        assert {name for name, _ in request.headers} == {
            *(
                "host",
                "user-agent",
                "accept",
                "accept-encoding",
                "content-type",
                "content-length",
                "x-request-deadline-ms",
            ),
            *("x-request-id", "authorization", "traceparent", "tracestate"),
        }
        assert request.header("authorization") == "Bearer engine-key"
        assert request.header("traceparent") == trace
        assert request.header("x-request-id") == answer.header("x-request-id")
        assert "client-" not in repr(request.headers)


async def test_only_allowed_headers_come_back(open_door: OpenDoor) -> None:
    secret = [("Set-Cookie", "a=b"), ("Server", "engine/1"), ("X-Internal", "10.1.2.3"), ("Keep-Alive", "timeout=5")]
    async with EngineDouble(answers(completion(), headers=secret)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat())
        assert {name for name, _ in answer.headers} == {"date", "content-type", "content-length", "x-request-id"}


@pytest.mark.shows("G18")
async def test_gzip_that_nobody_asked_for_is_undone(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion("世界"), gzipped=True)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat(), headers=[("Accept-Encoding", "gzip")])
        assert engine.received[0].header("accept-encoding") == "identity"
        assert answer.header("content-encoding") is None
        assert answer.json == completion("世界", model="alias")


@pytest.mark.shows("G18")
async def test_gzip_on_an_error_is_undone(open_door: OpenDoor) -> None:
    async with EngineDouble(answers({"error": {"message": "no"}}, status=422, gzipped=True)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat())
        assert (answer.status, answer.error["message"]) == (422, "no")


@pytest.mark.shows("G18")
async def test_an_answer_that_blows_up_is_refused(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(b"[" + b" " * 5_000_000, gzipped=True)) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(answer_bytes=1_000_000))
        answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")


@pytest.mark.shows("G23")
@pytest.mark.parametrize(
    ("body", "message", "kind", "code"),
    [
        (
            {"error": {"message": "served is too small", "type": "BadRequestError", "param": "n", "code": "x"}},
            *("alias is too small", "BadRequestError", "x"),
        ),
        ({"error": {"message": "m", "type": "t", "code": 400}}, "m", "t", "engine_error"),
        ({"object": "error", "message": "m", "type": "t", "code": 400}, "m", "t", "engine_error"),
        ({"error": "m", "error_type": "validation"}, "m", "validation", "engine_error"),
        ({"detail": "m"}, "m", "invalid_request_error", "engine_error"),
        ({"detail": [{"loc": ["body"]}]}, "The engine refused the request.", "invalid_request_error", "engine_error"),
        (b"<html>", "The engine refused the request.", "invalid_request_error", "engine_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engines_errors_keep_their_status_in_one_envelope(
    open_door: OpenDoor, body: Any, message: str, kind: str, code: str, stream: bool
) -> None:
    async with EngineDouble(answers(body, status=400)) as engine, EngineDouble(answers(completion())) as other:
        house = await open_door(engine.port, other.port)
        answer = await house.ask(chat(stream=stream))
        assert answer.status == 400
        error = answer.error
        assert (error["message"], error["type"], error["code"]) == (message, kind, code)
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.status, settlement.error_code) == (Outcome.FAILED, 400, code)
        assert settlement.usage.source is UsageSource.NONE
        assert other.received == []  # a client's mistake is the same everywhere
        assert house.pipeline.picker.failed == []


@pytest.mark.shows("G23")
async def test_an_engines_own_failure_keeps_its_status_when_it_is_told_in_shape(open_door: OpenDoor) -> None:
    async with EngineDouble(answers({"error": {"message": "cuda", "type": "e"}}, status=500)) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat())
        assert (answer.status, answer.error["message"]) == (500, "cuda")


@pytest.mark.parametrize(("status", "body"), [(500, b"Traceback: /srv/secret"), (302, b""), (401, b'{"error": "key"}')])
async def test_other_failures_are_ours(open_door: OpenDoor, status: int, body: bytes) -> None:
    async with EngineDouble(answers(body, status=status, content_type="text/plain")) as engine:
        house = await open_door(engine.port)
        answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert b"secret" not in answer.body


@pytest.mark.shows("G22")
@pytest.mark.parametrize(("status", "code"), [(429, "engine_rate_limited"), (503, "engine_unavailable")])
async def test_back_pressure_of_all_engines_passes_with_retry_after(
    open_door: OpenDoor, status: int, code: str
) -> None:
    busy = answers({"error": {"message": "busy"}}, status=status, headers=[("Retry-After", "7")])
    async with EngineDouble(busy) as one, EngineDouble(busy) as two:
        house = await open_door(one.port, two.port)
        answer = await house.ask(chat())
        assert (answer.status, answer.header("retry-after")) == (status, "7")
        assert answer.error["code"] == code != RateLimited.code
        assert (await house.settled())[0].attempts == 2
        assert house.pipeline.picker.failed == []  # busy is not broken


async def half_an_answer(_request: Received, wire: Wire) -> None:
    await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", "1000"))
    await wire.send(b'{"model": "served", ')
    wire.close()


async def too_long_an_answer(_request: Received, wire: Wire) -> None:
    """More bytes than were announced: the answer is what was announced, the connection is not used again."""
    body = json.dumps(completion("whole")).encode()
    await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    await wire.send(body + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


async def not_http(_request: Received, wire: Wire) -> None:
    await wire.send(b"SSH-2.0-OpenSSH\r\n\r\n")


async def endless_head(_request: Received, wire: Wire) -> None:
    await wire.send(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000)
    await wire.stall()


@pytest.mark.shows("G13")
@pytest.mark.parametrize(
    "first",
    [
        die,
        half_an_answer,
        not_http,
        endless_head,
        answers(b"no json"),
        answers(b"[1]"),
        answers({"error": {"message": "under a good status", "code": 500}}),
        streams(b"data: {}\n\n"),
        answers(b"x", headers=[("Content-Encoding", "br")]),
        answers(b"x", headers=[("Content-Encoding", "gzip")]),
    ],
)
async def test_a_broken_answer_is_made_good_by_another_engine(open_door: OpenDoor, first: Any) -> None:
    async with EngineDouble(first) as broken, EngineDouble(answers(completion())) as sound:
        house = await open_door(broken.port, sound.port)
        answer = await house.ask(chat())
        assert answer.json == completion(model="alias")
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.attempts) == (Outcome.SUCCESS, 2)
        assert house.pipeline.picker.in_flight == 0


async def test_more_bytes_than_announced_spoil_nothing(open_door: OpenDoor) -> None:
    async with EngineDouble(too_long_an_answer, answers(completion("next"))) as engine:
        house = await open_door(engine.port)
        assert (await house.ask(chat())).json == completion("whole", model="alias")
        assert (await house.ask(chat())).json == completion("next", model="alias")
        assert engine.accepted == 2


async def test_refused_connections_are_retried_elsewhere(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as sound:
        house = await open_door(free_port(), free_port(), sound.port)
        answer = await house.ask(chat())
        assert answer.status == 200
        assert len(house.pipeline.picker.failed) == 2


@pytest.mark.shows("G7")
async def test_attempts_are_bounded(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as sound:
        house = await open_door(free_port(), free_port(), free_port(), sound.port)
        answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.attempts, settlement.status) == (Outcome.FAILED, 3, 502)
        assert sound.received == []


async def test_without_an_endpoint_503_with_retry_after(open_door: OpenDoor) -> None:
    house = await open_door()
    answer = await house.ask(chat())
    assert (answer.status, answer.error["code"]) == (503, "no_ready_instance")
    assert answer.header("retry-after") == "1"
    assert await house.outcome() is Outcome.FAILED


async def test_many_requests_without_an_endpoint_make_one_line_of_the_log(
    open_door: OpenDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_log, "_unroutable", Seldom(3600.0))
    house = await open_door()
    with capture_logs() as lines:
        for _ in range(5):
            assert (await house.ask(chat())).status == 503
    assert [line["held_back"] for line in lines if line["event"] == "no_endpoint_routable"] == [0]


async def test_a_silent_engine_meets_the_total_deadline(open_door: OpenDoor) -> None:
    async with EngineDouble(stall) as engine:
        house = await open_door(engine.port, deadlines=Deadlines(total_seconds=0.3))
        answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (504, "upstream_timeout")
        assert (await house.settled())[0].error_code == "upstream_timeout"


async def test_a_connection_that_went_stale_is_replaced(open_door: OpenDoor) -> None:
    """The engine closed it while it was idle, and the close had not been seen when the request was sent."""

    async def answer_and_close_unseen(request: Received, wire: Wire) -> None:
        if engine.accepted == 1 and len(engine.received) == 2:
            wire.die()
        else:
            await answers(completion())(request, wire)

    async with EngineDouble(answer_and_close_unseen) as engine:
        house = await open_door(engine.port)
        assert (await house.ask(chat())).status == 200
        assert (await house.ask(chat())).status == 200
        assert engine.accepted == 2
        assert house.upstream.counters.stale == 1
        assert [s.attempts for s in await house.settled(2)] == [1, 1]


async def test_connections_are_used_again(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        for _ in range(5):
            assert (await house.ask(chat())).status == 200
        assert engine.accepted == 1


async def test_gzipped_requests_are_undone(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port)
        body = gzip.compress(json.dumps(chat()).encode())
        assert (await house.ask(body, headers=[("Content-Encoding", "gzip")])).status == 200
        assert engine.received[0].json == {**chat(), "model": "served"}
        answer = await house.ask(b"{}", headers=[("Content-Encoding", "br")])
        assert (answer.status, answer.error["code"]) == (415, "unsupported_content_encoding")


async def test_a_defect_of_ours_on_the_way_is_no_cancellation(open_door: OpenDoor) -> None:
    async with EngineDouble(answers(completion())) as engine:
        house = await open_door(engine.port, authorization="cannot be\r\nwritten")
        answer = await house.ask(chat())
        assert (answer.status, answer.error["code"]) == (500, "internal_error")
        settlement = (await house.settled())[0]
        assert (settlement.outcome, settlement.status) == (Outcome.FAILED, 500)
        assert house.pipeline.picker.in_flight == 0
        assert engine.received == []
