"""What a caller sends in confidence stays nowhere, whatever goes wrong with it (G25).

The canary goes in everywhere and through both doors, to engines that repeat it, refuse it, and die of it; then all
that is told and kept is searched: answers, logs, metrics, tables (audit among them), spools, both Valkeys.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.clients.test_canary import stored_texts
from tests.doubles.engine import Received, Script, Wire, answers, chunk, die, streams
from tests.gateway.cases.desk import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Answer, Case

CANARY: Final = "canary91c5e07ab"
TALK: Final = [{"role": "system", "content": CANARY}, {"role": "user", "content": f"Say {CANARY}, and {CANARY}!"}]
HEADERS: Final = {
    "cookie": f"session={CANARY}",
    "x-forwarded-for": CANARY,
    "user-agent": CANARY,
    "traceparent": CANARY,
    "tracestate": f"a={CANARY}",
    "x-request-id": CANARY,
    "x-gatehouse-class": CANARY,
    "content-language": CANARY,
}
NAMED_PATHS: Final = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)


async def repeat_as_nonsense(request: Received, wire: Wire) -> None:
    """Not HTTP, but the prompt."""
    await wire.send(request.body + b"\r\n\r\n")


async def repeat_as_no_json(request: Received, wire: Wire) -> None:
    await answers(b"<html>" + request.body)(request, wire)


async def repeat_in_a_head(request: Received, wire: Wire) -> None:
    await answers(b"{}", status=500, headers=[("X-Prompt", CANARY)], content_type=CANARY)(request, wire)


async def repeat_in_a_traceback(request: Received, wire: Wire) -> None:
    await answers(b"Traceback: " + request.body, status=500, content_type="text/plain")(request, wire)


async def repeat_as_a_broken_stream(request: Received, wire: Wire) -> None:
    await streams(chunk("A"), b"data: " + request.body[:-9] + b"\n\n", then=_die)(request, wire)


async def _die(wire: Wire) -> None:
    wire.die()


ENGINES: Final[tuple[Script, ...]] = (
    die,
    repeat_as_nonsense,
    repeat_as_no_json,
    repeat_in_a_head,
    repeat_in_a_traceback,
    answers({"error": {"message": "no", "code": "c"}}, status=429),
)


def bodies(case: Case, model: str, path: str) -> Iterator[dict[str, Any]]:
    """The canary wherever a request has room for it, in order and not."""
    name = {RESPONSES: "input", COMPLETIONS: "prompt"}.get(path, "messages")
    talk = CANARY if path == COMPLETIONS else TALK
    whole = {**case.body(model, path), name: talk}
    if path != RESPONSES:  # it answers with what it was asked
        whole |= {"user": CANARY, "metadata": {"a": CANARY}}
    yield whole
    yield {**whole, "model": CANARY}
    yield {**whole, "model": "hidden"}
    yield {**whole, name: {CANARY: CANARY}}
    yield {**whole, "max_tokens": CANARY, "max_output_tokens": CANARY}
    yield {**whole, "stream": CANARY}
    yield {**whole, "tools": CANARY, CANARY: CANARY}


def asked_with_it(case: Case) -> Iterator[Answer]:
    sound = case.serve(case.says("A"))
    for path in NAMED_PATHS:
        for body in bodies(case, sound.name, path):
            yield case.ask("", path, content=json.dumps(body).encode(), headers=HEADERS)
        yield case.ask("", path, content=f'{{"model": "{CANARY}", {CANARY}'.encode(), headers=HEADERS)
        yield case.ask("", path, content=CANARY.encode(), headers={**HEADERS, "content-encoding": "gzip"})
        yield case.ask("", path, content=CANARY.encode(), headers={**HEADERS, "content-encoding": CANARY})
        yield case.ask("", path, content=b"{}", headers={**HEADERS, "x-gatehouse-timeout-ms": CANARY})
        yield case.ask("", path, content=b"{}", headers={**HEADERS, "x-api-key": CANARY})
        for secret in (f"sk-gh-{CANARY}", f"sk-gh-{CANARY} {CANARY}", CANARY * 200):
            strange = {**HEADERS, "authorization": f"Bearer {secret}"}
            yield case.ask("", path, content=json.dumps(body).encode(), headers=strange)
    for script in ENGINES:
        broken = case.serve(script)
        for path in NAMED_PATHS:
            yield case.ask(
                "", path, content=json.dumps(next(bodies(case, broken.name, path))).encode(), headers=HEADERS
            )
    for path in (f"/v1/{CANARY}", f"/v1/models/{CANARY}", f"{CHAT}/{CANARY}"):
        yield case.ask("", path, content=b"{}", headers=HEADERS)
        response = case.client.get(path, headers={**case.headers(), **HEADERS}, params={"key": CANARY})
        yield Answer(response.status_code, response.headers, response.content)


def is_kept_nowhere(case: Case) -> None:
    for process in ("relay", "web"):
        assert CANARY not in case.house.clients[process].get("/metrics").text
    for where, text in stored_texts(case.house):
        assert CANARY.encode() not in text, where
        assert case.house.key.secret.encode() not in text, where


@pytest.mark.shows("G25")
def test_g25_no_secret_of_a_caller_is_told_or_kept(case: Case) -> None:
    told = list(asked_with_it(case))
    assert {answer.status for answer in told} >= {200, 400, 401, 404, 415, 429, 502}
    for answer in told:
        assert CANARY not in answer.body.decode() + repr(answer.headers), answer
    case.row(told[0])
    is_kept_nowhere(case)


@pytest.mark.shows("G25")
def test_g25_nor_of_a_stream_that_breaks_on_it(streamed: Case) -> None:
    """What an engine says in its stream is the client's, who has said it; but it is kept nowhere."""
    served = streamed.serve(repeat_as_a_broken_stream)
    body = {**streamed.body(served.name), "messages": TALK}
    answer = streamed.ask("", content=json.dumps(body).encode(), headers=HEADERS)
    last = answer.body.strip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "upstream_error"
    assert CANARY.encode() not in last
    assert streamed.row(answer).outcome == "truncated"
    is_kept_nowhere(streamed)


@pytest.mark.shows("G25")
def test_g25_nor_of_a_client_that_leaves(streamed: Case) -> None:
    served = streamed.serve(streams(chunk("A"), then=Wire.stall))
    body = {**streamed.body(served.name), "messages": TALK}
    headers = {**streamed.headers(), **HEADERS}
    with streamed.client.stream("POST", CHAT, json=body, headers=headers) as response:
        assert next(response.iter_raw())
    assert streamed.row_of(served.name).outcome == "cancelled"
    is_kept_nowhere(streamed)
