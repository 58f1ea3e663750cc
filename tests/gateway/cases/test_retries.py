"""Engines that fail before, at and after the first content (G12, G13)."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from tests.doubles.engine import DONE, Received, Script, Wire, answers, chunk, completion, die, streams
from tests.gateway.cases.desk import SERVED, Case

WHOLE: Final = json.dumps(completion("lost", model=SERVED)).encode()


async def reset(wire: Wire) -> None:
    wire.die()


async def end_early(wire: Wire) -> None:
    await wire.end_chunks()


async def close_in_order(wire: Wire) -> None:
    wire.close()


async def garble(wire: Wire) -> None:
    await wire.send(b"this is no chunk size\r\n")


async def half_an_answer(_request: Received, wire: Wire) -> None:
    await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", str(len(WHOLE))))
    await wire.send(WHOLE[:-20])
    wire.die()


async def not_http(_request: Received, wire: Wire) -> None:
    await wire.send(b"SSH-2.0-OpenSSH\r\n\r\n")


ENDINGS: Final[dict[str, Callable[[Wire], Awaitable[None]]]] = {
    "resets": reset,
    "ends too early": end_early,
    "closes": close_in_order,
    "talks nonsense": garble,
}


def is_cut(streamed: Case, ending: Callable[[Wire], Awaitable[None]], code: str) -> None:
    """The stream ends with that error, and nothing is made up."""
    cut = streams(chunk(role=True), chunk("A"), chunk("B"), b'data: {"id', then=ending)
    served = streamed.serve(cut, endpoints=2)
    answer = streamed.ask(served.name)
    assert answer.status == 200
    *events, last = answer.events
    assert "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"]) == "AB"
    assert {choice["finish_reason"] for event in events for choice in event["choices"]} == {None}
    assert last == {"error": answer.error}
    assert answer.error["code"] == code
    assert b"[DONE]" not in answer.body
    assert len(served.received) == 1
    row = streamed.row(answer)
    assert (row.outcome, row.status, row.error_code) == ("truncated", 200, answer.error["code"])
    assert (row.usage_source, row.output_tokens, row.attempts) == ("estimated", 2, 1)


@pytest.mark.shows("G12")
@pytest.mark.parametrize("ending", ENDINGS)
def test_g12_a_stream_that_is_cut_ends_with_an_error_and_nothing_made_up(streamed: Case, ending: str) -> None:
    is_cut(streamed, ENDINGS[ending], "upstream_error")


@pytest.mark.shows("G12")
def test_g12_a_whole_answer_that_is_cut_is_an_error(whole: Case) -> None:
    served = whole.serve(half_an_answer)
    answer = whole.ask(served.name)
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert b"lost" not in answer.body
    row = whole.row(answer)
    assert (row.outcome, row.usage_source, row.output_tokens) == ("failed", "none", None)


BEFORE: Final[dict[str, Script]] = {
    "dies": die,
    "fails": answers(b"<html>", status=500, content_type="text/html"),
    "is busy": answers({"error": {"message": "loading"}}, status=503),
    "is no engine": not_http,
}
STREAM_BEFORE: Final[dict[str, Script]] = {
    "dies after its head": streams(then=reset),
    "dies after a role": streams(b": ping\n\n", chunk(role=True), then=reset),
    "dies in its first content": streams(chunk(role=True), chunk("lost")[:-1], then=reset),
    "says an error first": streams(chunk(role=True), b'data: {"error": {"message": "x", "code": 500}}\n\n'),
}
WHOLE_BEFORE: Final[dict[str, Script]] = {
    "dies in its answer": half_an_answer,
    "answers with an error": answers({"error": {"message": "under a good status", "code": 500}}),
    "answers with what is no JSON": answers(b"lost"),
}


def is_made_good(case: Case, first: Script) -> None:
    served = case.serve(first, case.says("A", "B"), endpoints=2)
    answer = case.ask(served.name)
    assert (answer.status, answer.text) == (200, "AB")
    if case.streamed:
        assert answer.body.count(b'"role"') == 1
        assert answer.body.endswith(DONE)
    assert [len(double.received) for double in served.doubles] == [1, 1]
    row = case.row(answer)
    assert (row.outcome, row.attempts, row.usage_source, row.output_tokens) == ("success", 2, "engine", 3)


@pytest.mark.shows("G13")
@pytest.mark.parametrize("failure", BEFORE)
def test_g13_before_the_first_content_another_engine_answers(case: Case, failure: str) -> None:
    is_made_good(case, BEFORE[failure])


@pytest.mark.shows("G13")
@pytest.mark.parametrize("failure", STREAM_BEFORE)
def test_g13_a_stream_without_content_is_begun_anew(streamed: Case, failure: str) -> None:
    is_made_good(streamed, STREAM_BEFORE[failure])


@pytest.mark.shows("G13")
@pytest.mark.parametrize("failure", WHOLE_BEFORE)
def test_g13_a_whole_answer_is_told_whole_or_asked_for_again(whole: Case, failure: str) -> None:
    is_made_good(whole, WHOLE_BEFORE[failure])


@pytest.mark.shows("G13")
def test_g13_after_the_first_content_no_other_engine_is_asked(streamed: Case) -> None:
    served = streamed.serve(streams(chunk(role=True), chunk("A"), then=reset), streamed.says("B"), endpoints=2)
    answer = streamed.ask(served.name)
    assert b'"A"' in answer.body
    assert b'"B"' not in answer.body
    assert answer.error["code"] == "upstream_error"
    assert len(served.received) == 1
    assert streamed.row(answer).attempts == 1
