"""Engines that say nothing for a long time, and heartbeats that keep nobody waiting for ever (G20, G21).

So are here tests of what else happens meanwhile: of clients that leave (G6, G8), of other engines (G12, G13).
"""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import pytest

from bench.rows import Key
from tenants.actor import SYSTEM
from tenants.services import create_api_key
from tests.doubles.engine import Received, Script, Wire, chat_stream, chunk, stall, streams
from tests.gateway.cases.desk import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    SERVED,
    TALKATIVE,
    Case,
    Served,
    keeping,
)
from tests.gateway.cases.test_leaving import asked, connect, left, read_until
from tests.gateway.cases.test_limits_of_amounts import FAR, limited, wait_used
from tests.gateway.cases.test_retries import is_cut, is_made_good

Then = Callable[[Wire], Awaitable[None]]
COMMENT: Final = b": keep-alive\n\n"
PREFILL_SECONDS: Final = TALKATIVE.keep_alive_seconds * 2.5
MOVED_SECONDS: Final = 25.0
"""A deadline that is not met by then has been moved."""

TOKENS: Final = replace(TALKATIVE, first_token_seconds=4.0, inter_token_seconds=2.0, total_seconds=40.0)
TOTAL: Final = replace(TALKATIVE, total_seconds=4.0)
_HEAD: Final = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))


class Prefill:
    """A script: not a byte, or a head alone, until it is told to go on; then a stream."""

    def __init__(self, *, head: bool = False) -> None:
        self._head = head
        self.go_on = threading.Event()

    async def __call__(self, request: Received, wire: Wire) -> None:
        if self._head:
            await wire.head(200, *_HEAD)
        await asyncio.to_thread(self.go_on.wait, MOVED_SECONDS)
        if not self._head:
            await streams(*chat_stream("A", model=SERVED))(request, wire)
            return
        await wire.chunk(*chat_stream("A", model=SERVED))
        await wire.end_chunks()


async def long_prefill(_request: Received, wire: Wire) -> None:
    """Not a byte, then a stream."""
    await asyncio.sleep(PREFILL_SECONDS)
    await streams(*chat_stream("A", model=SERVED))(_request, wire)


@pytest.mark.shows("G20")
@keeping(TALKATIVE)
@pytest.mark.parametrize(
    ("path", "comment", "head"),
    [
        (CHAT, COMMENT, False),
        (CHAT, COMMENT, True),
        (COMPLETIONS, COMMENT, False),
        (RESPONSES, COMMENT, False),
        (MESSAGES, b"event: ping\n", False),
    ],
    ids=["chat, no head", "chat, a head", "completions", "responses", "messages"],
)
def test_g20_a_client_is_told_that_we_live(streamed: Case, path: str, comment: bytes, head: bool) -> None:
    prefill = Prefill(head=head)
    served = streamed.serve(prefill)
    body = streamed.body(served.name, path)
    with streamed.client.stream("POST", path, json=body, headers=streamed.headers()) as response:
        assert response.status_code == 200  # it did not wait for the engine
        pieces, early = response.iter_raw(), b""
        while early.count(comment) < 2:
            piece = next(pieces, b"")
            assert piece, early
            early += piece
        assert b'"A"' not in early
        prefill.go_on.set()
        assert b'"A"' in b"".join(pieces)


@pytest.mark.shows("G20")
@keeping(TALKATIVE)
def test_g20_a_key_can_be_spared_the_comments(streamed: Case) -> None:
    made = create_api_key(streamed.house.tenant, name="no comments", keep_alive=False, actor=SYSTEM)
    served = streamed.serve(long_prefill)
    headers, begun = streamed.headers(Key(made.key.pk, made.secret)), time.monotonic()
    with streamed.client.stream("POST", CHAT, json=streamed.body(served.name), headers=headers) as response:
        assert time.monotonic() - begun >= PREFILL_SECONDS * 0.9  # the status was not promised before it was known
        assert response.status_code == 200
        assert COMMENT not in b"".join(response.iter_raw())


@pytest.mark.shows("G6")
@keeping(TALKATIVE)
@pytest.mark.parametrize("head", [False, True], ids=["no head", "a head"])
def test_g06_a_client_that_leaves_while_the_engine_prefills(streamed: Case, head: bool) -> None:
    def told_that_we_live(client: socket.socket, _served: Served) -> None:
        assert read_until(client, COMMENT).startswith(b"HTTP/1.1 200 ")

    left(streamed, streams(chunk(role=True), then=Wire.stall) if head else stall, told_that_we_live)


@pytest.mark.shows("G8")
@keeping(TALKATIVE)
def test_g08_leaving_before_the_first_word_is_not_free(streamed: Case, whole: Case) -> None:
    for case in (streamed, whole):
        key, limit = limited(case, FAR)
        served = case.serve(stall)
        with connect(case, served, key) as client:
            asked(client, served)
            if case.streamed:
                read_until(client, COMMENT)
        row = case.row_of(served.name)
        assert (row.outcome, row.usage_source, row.output_tokens) == ("cancelled", "estimated", None)
        assert row.input_tokens
        unseen = row.reserved_output or 0
        assert 0 < unseen <= 4096
        wait_used(case, limit, row.input_tokens + unseen)


async def beat(wire: Wire) -> None:
    """What is no content, again and again."""
    while True:
        await wire.chunk(b": ping\n\n", chunk(role=True))
        await asyncio.sleep(0.05)


def _ends_by_deadline(case: Case, script: Script, seconds: float, outcome: str) -> None:
    served = case.serve(script)
    begun = time.monotonic()
    answer = case.ask(served.name)
    took = time.monotonic() - begun
    assert seconds * 0.95 <= took < MOVED_SECONDS
    assert answer.error["code"] == "upstream_timeout"
    assert b"[DONE]" not in answer.body
    row = case.row(answer)
    assert (row.outcome, row.error_code, row.attempts) == (outcome, "upstream_timeout", 1)


@pytest.mark.shows("G21")
@keeping(TOKENS)
def test_g21_our_comments_do_not_stretch_the_wait_for_the_first_token(streamed: Case) -> None:
    _ends_by_deadline(streamed, stall, TOKENS.first_token_seconds, "failed")


@pytest.mark.shows("G21")
@keeping(TOKENS)
def test_g21_the_engines_heartbeats_do_not_stretch_the_wait_for_the_first_token(streamed: Case) -> None:
    _ends_by_deadline(streamed, streams(b": begun\n\n", then=beat), TOKENS.first_token_seconds, "failed")


@pytest.mark.shows("G13")
@keeping(TOKENS)
def test_g13_an_engine_that_says_nothing_is_made_good(streamed: Case) -> None:
    is_made_good(streamed, stall)


@pytest.mark.shows("G21")
@keeping(TOKENS)
@pytest.mark.parametrize("then", [Wire.stall, beat], ids=["our comments", "the engine's heartbeats"])
def test_g21_nor_the_wait_between_two_tokens(streamed: Case, then: Then) -> None:
    _ends_by_deadline(streamed, streams(chunk("A"), then=then), TOKENS.inter_token_seconds, "truncated")


@pytest.mark.shows("G12")
@keeping(TOKENS)
def test_g12_an_engine_that_falls_silent_has_cut_its_stream(streamed: Case) -> None:
    is_cut(streamed, Wire.stall, "upstream_timeout")


@pytest.mark.shows("G21")
@keeping(TOTAL)
def test_g21_nor_the_whole_request(streamed: Case) -> None:
    async def a_token_now_and_then(wire: Wire) -> None:
        while True:
            await asyncio.sleep(0.5)
            await wire.chunk(chunk("B"))

    _ends_by_deadline(streamed, streams(chunk("A"), then=a_token_now_and_then), TOTAL.total_seconds, "truncated")


@pytest.mark.shows("G21")
@keeping(TOTAL)
def test_g21_a_whole_answer_has_the_deadline_of_the_request(whole: Case) -> None:
    _ends_by_deadline(whole, stall, TOTAL.total_seconds, "failed")
