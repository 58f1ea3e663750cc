"""Engines that say nothing for a long time, and heartbeats that keep nobody waiting for ever (G20, G21)."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from bench.rows import Key
from tenants.actor import SYSTEM
from tenants.services import create_api_key
from tests.doubles.engine import Received, Script, Wire, chat_stream, chunk, stall, streams
from tests.gateway.cases.desk import (
    CHAT,
    COMPLETIONS,
    FIRST_TOKEN_SECONDS,
    INTER_TOKEN_SECONDS,
    KEEP_ALIVE_SECONDS,
    MESSAGES,
    RESPONSES,
    SERVED,
    TOTAL_SECONDS,
    Case,
)

Then = Callable[[Wire], Awaitable[None]]
COMMENT: Final = b": keep-alive\n\n"
PREFILL_SECONDS: Final = KEEP_ALIVE_SECONDS * 2.5
_HEAD: Final = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))


class Prefill:
    """A script: not a byte, or a head alone, until it is told to go on; then a stream."""

    def __init__(self, *, head: bool = False) -> None:
        self._head = head
        self.go_on = threading.Event()

    async def __call__(self, request: Received, wire: Wire) -> None:
        if self._head:
            await wire.head(200, *_HEAD)
        await asyncio.to_thread(self.go_on.wait, TOTAL_SECONDS)
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
def test_g20_a_key_can_be_spared_the_comments(streamed: Case) -> None:
    made = create_api_key(streamed.house.tenant, name="no comments", keep_alive=False, actor=SYSTEM)
    served = streamed.serve(long_prefill)
    headers, asked = streamed.headers(Key(made.key.pk, made.secret)), time.monotonic()
    with streamed.client.stream("POST", CHAT, json=streamed.body(served.name), headers=headers) as response:
        assert time.monotonic() - asked >= PREFILL_SECONDS * 0.9  # the status was not promised before it was known
        assert response.status_code == 200
        assert COMMENT not in b"".join(response.iter_raw())


async def beat(wire: Wire) -> None:
    """What is no content, again and again."""
    while True:
        await wire.chunk(b": ping\n\n", chunk(role=True))
        await asyncio.sleep(0.05)


def _ends_by_deadline(case: Case, script: Script, seconds: float, outcome: str) -> None:
    served = case.serve(script)
    asked = time.monotonic()
    answer = case.ask(served.name)
    took = time.monotonic() - asked
    # Had its own deadline been moved, the whole request's would have ended it.
    assert seconds * 0.95 <= took < (TOTAL_SECONDS if seconds < TOTAL_SECONDS else seconds + 4.0)
    assert answer.error["code"] == "upstream_timeout"
    assert b"[DONE]" not in answer.body
    row = case.row(answer)
    assert (row.outcome, row.error_code) == (outcome, "upstream_timeout")


@pytest.mark.shows("G21")
def test_g21_our_comments_do_not_stretch_the_wait_for_the_first_token(streamed: Case) -> None:
    _ends_by_deadline(streamed, stall, FIRST_TOKEN_SECONDS, "failed")


@pytest.mark.shows("G21")
def test_g21_the_engines_heartbeats_do_not_stretch_the_wait_for_the_first_token(streamed: Case) -> None:
    _ends_by_deadline(streamed, streams(b": begun\n\n", then=beat), FIRST_TOKEN_SECONDS, "failed")


@pytest.mark.shows("G21")
@pytest.mark.parametrize("then", [Wire.stall, beat], ids=["our comments", "the engine's heartbeats"])
def test_g21_nor_the_wait_between_two_tokens(streamed: Case, then: Then) -> None:
    _ends_by_deadline(streamed, streams(chunk("A"), then=then), INTER_TOKEN_SECONDS, "truncated")


@pytest.mark.shows("G21")
def test_g21_nor_the_whole_request(streamed: Case) -> None:
    async def a_token_now_and_then(wire: Wire) -> None:
        while True:
            await asyncio.sleep(INTER_TOKEN_SECONDS / 2)
            await wire.chunk(chunk("B"))

    _ends_by_deadline(streamed, streams(chunk("A"), then=a_token_now_and_then), TOTAL_SECONDS, "truncated")


@pytest.mark.shows("G21")
def test_g21_a_whole_answer_has_the_deadline_of_the_request(whole: Case) -> None:
    _ends_by_deadline(whole, stall, TOTAL_SECONDS, "failed")
