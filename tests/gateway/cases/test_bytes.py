"""Bytes that an engine cuts anywhere, comments, errors in the middle, compression (G9, G10, G11, G18)."""

import asyncio
import gzip
import json
from typing import Any, Final

import pytest

from bench.house import wait_until
from tenants.models import UsageRecord
from tests.doubles.engine import DONE, Received, Wire, answers, chat_stream, chunk, completion, event, head, streams
from tests.gateway.cases.desk import CHAT, SERVED, Answer, Case

TEXT: Final = "ü世🙂"
USAGE: Final = {"prompt_tokens": 7, "completion_tokens": 3}
_STREAM_HEAD: Final = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
_BETWEEN_SECONDS: Final = 0.001  # or two pieces are one by the time that another process reads them


def a_body(streamed: bool) -> bytes:
    """As little as has all that can be cut: characters of 2, 3 and 4 bytes, CRLF, data of several lines, usage."""
    if not streamed:
        message = {"message": {"role": "assistant", "content": TEXT}}
        return json.dumps({"choices": [message], "usage": USAGE}, ensure_ascii=False).encode()
    said = f'data: {{"choices":[{{"delta":\r\ndata: {{"content":"{TEXT}"}}}}]}}\r\n\r\n'
    counted = 'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\r\n\r\n'
    return f"{said}{counted}data: [DONE]\r\n\r\n".encode()


class CutAnywhere:
    """An engine that cuts each answer one byte later than the last."""

    def __init__(self, body: bytes, *, streamed: bool) -> None:
        self._body = body
        self._streamed = streamed
        self._at = 0

    async def __call__(self, _request: Received, wire: Wire) -> None:
        self._at += 1
        pieces = (self._body[: self._at], self._body[self._at :])
        if self._streamed:
            await wire.head(200, *_STREAM_HEAD)
        else:
            await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(self._body))))
        for piece in pieces:
            await (wire.chunk(piece) if self._streamed else wire.send(piece))
            await asyncio.sleep(_BETWEEN_SECONDS)
        if self._streamed:
            await wire.end_chunks()


def rows_of(model: str, count: int) -> list[UsageRecord]:
    rows = UsageRecord.objects.filter(model=model)
    wait_until(lambda: rows.count() == count, f"{count} rows")
    return list(rows)


@pytest.mark.shows("G9", "G10")
def test_g09_g10_cut_at_any_byte_nothing_is_corrupted_and_usage_is_seen(case: Case) -> None:
    body = a_body(case.streamed)
    served = case.serve(CutAnywhere(body, streamed=case.streamed))
    sent = {**case.body(served.name), **({"stream_options": {"include_usage": True}} if case.streamed else {})}
    for _ in range(1, len(body)):
        response = case.client.post(CHAT, json=sent, headers=case.headers())
        assert (response.status_code, response.content) == (200, body)
    rows = rows_of(served.name, len(body) - 1)
    assert {(row.usage_source, row.input_tokens, row.output_tokens) for row in rows} == {("engine", 7, 3)}
    assert {(row.outcome, row.attempts) for row in rows} == {("success", 1)}


@pytest.mark.shows("G9")
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_g09_cut_at_every_byte_at_once(streamed: Case, line_end: bytes) -> None:
    async def drip(_request: Received, wire: Wire) -> None:
        await wire.head(200, *_STREAM_HEAD)
        for number in range(len(whole)):
            await wire.chunk(whole[number : number + 1])
            await asyncio.sleep(0)
        await wire.end_chunks()

    said: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": TEXT}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": USAGE},
    ]  # few bytes: each costs a turn of three processes, and none may take them longer than an engine may be silent
    events = [event(json.dumps({"model": SERVED, **one}, ensure_ascii=False).encode()) for one in said]
    whole = b"".join(piece.replace(b"\n", line_end) for piece in (*events, DONE))
    served = streamed.serve(drip)
    answer = streamed.ask(served.name, stream_options={"include_usage": True})
    assert answer.body == whole.replace(SERVED.encode(), served.name.encode())
    assert "\ufffd" not in answer.body.decode()
    assert answer.text == TEXT
    assert streamed.row(answer).output_tokens == 3


@pytest.mark.shows("G11")
def test_g11_comments_pass_before_between_and_after_content(streamed: Case) -> None:
    ping = b": ping\n\n"
    first, *rest, done = chat_stream("A", "B", model=SERVED)
    served = streamed.serve(streams(ping, first, ping, *rest, ping, done))
    answer = streamed.ask(served.name)
    assert answer.body.startswith(ping)
    assert answer.body.count(ping) == 3
    assert answer.text == "AB"
    assert streamed.row(answer).outcome == "success"


@pytest.mark.shows("G11")
@pytest.mark.parametrize(
    "failure",
    [
        f'event: error\ndata: {{"message": "out of memory on {SERVED}"}}\n\n'.encode(),
        event(json.dumps({"error": {"message": f"out of memory on {SERVED}", "type": "e", "code": 500}}).encode()),
    ],
    ids=["named event", "error member"],
)
def test_g11_an_error_event_reaches_the_client_and_is_a_failure(streamed: Case, failure: bytes) -> None:
    served = streamed.serve(streams(chunk(role=True), chunk("A"), failure, chunk("B"), DONE))
    answer = streamed.ask(served.name)
    assert answer.error["message"] == f"out of memory on {served.name}"
    assert b'"B"' not in answer.body
    assert b"[DONE]" not in answer.body
    row = streamed.row(answer)
    assert (row.outcome, row.usage_source, row.output_tokens) == ("truncated", "estimated", 1)


@pytest.mark.shows("G11")
def test_g11_error_events_open_the_breaker(streamed: Case) -> None:
    failure = event(b'{"error": {"message": "broken", "code": 500}}')
    served = streamed.serve(streams(chunk("A"), failure))
    answers_told: list[Answer] = [streamed.ask(served.name) for _ in range(11)]
    assert {answer.status for answer in answers_told[:10]} == {200}
    assert (answers_told[10].status, answers_told[10].error["code"]) == (503, "no_ready_instance")
    assert len(served.received) == 10


@pytest.mark.shows("G18")
def test_g18_gzip_that_nobody_asked_for_is_undone(case: Case) -> None:
    if case.streamed:
        script = streams(*chat_stream(*TEXT, model=SERVED), gzipped=True)
    else:
        script = answers(completion(TEXT, model=SERVED), gzipped=True)
    served = case.serve(script)
    answer = case.ask(served.name, headers={"accept-encoding": "gzip"})
    assert served.received[0].header("accept-encoding") == "identity"
    assert "content-encoding" not in answer.headers
    assert answer.text == TEXT
    if not case.streamed:
        assert int(answer.headers["content-length"]) == len(answer.body)
    row = case.row(answer)
    assert (row.outcome, row.usage_source, row.output_tokens) == ("success", "engine", 3)


@pytest.mark.shows("G18")
@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_g18_gzip_on_an_error_is_undone(case: Case, status: int) -> None:
    served = case.serve(answers({"error": {"message": TEXT, "type": "e"}}, status=status, gzipped=True))
    answer = case.ask(served.name)
    assert (answer.status, answer.error["message"]) == (status, TEXT)
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.body)


def _gzip_lies(kind: str) -> bytes:
    packed = gzip.compress(json.dumps(completion("lost", model=SERVED)).encode())
    return {"cut": packed[:-12], "plain": b'{"choices": []}', "spoiled": packed[:20] + b"\0\xff" * 20}[kind]


@pytest.mark.shows("G18")
@pytest.mark.parametrize("kind", ["cut", "plain", "spoiled"])
def test_g18_what_is_no_gzip_is_made_good_elsewhere(case: Case, kind: str) -> None:
    broken = answers(
        _gzip_lies(kind),
        headers=[("Content-Encoding", "gzip")],
        content_type="text/event-stream" if case.streamed else "application/json",
    )
    served = case.serve(broken, case.says("A"), endpoints=2)
    answer = case.ask(served.name)
    assert (answer.status, answer.text) == (200, "A")
    assert case.row(answer).attempts == 2


@pytest.mark.shows("G18")
def test_g18_gzip_that_is_cut_in_mid_stream_is_a_stream_that_is_cut(streamed: Case) -> None:
    packer = gzip.compress(chunk("A") + b"".join(chunk(str(number)) for number in range(2000)))

    async def cut(_request: Received, wire: Wire) -> None:
        await wire.send(head(200, *_STREAM_HEAD, ("Content-Encoding", "gzip")))
        await wire.chunk(packer[: len(packer) // 2])
        await wire.end_chunks()

    served = streamed.serve(cut)
    answer = streamed.ask(served.name)
    told: list[Any] = answer.events
    assert told[0]["choices"][0]["delta"]["content"] == "A"
    assert answer.error["code"] == "upstream_error"
    assert b"[DONE]" not in answer.body
    assert streamed.row(answer).outcome == "truncated"
