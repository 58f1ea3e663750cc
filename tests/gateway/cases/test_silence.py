"""Engines that say nothing for a long time, and heartbeats that keep nobody waiting for ever (G20, G21)."""

import asyncio
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
PREFILL_SECONDS: Final = KEEP_ALIVE_SECONDS * 3.5
_HEAD: Final = (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))


async def long_prefill(_request: Received, wire: Wire) -> None:
    """Not a byte, then a stream."""
    await asyncio.sleep(PREFILL_SECONDS)
    await streams(*chat_stream("A", model=SERVED))(_request, wire)


async def head_and_long_prefill(_request: Received, wire: Wire) -> None:
    """A head, then not a byte, then a stream."""
    await wire.head(200, *_HEAD)
    await asyncio.sleep(PREFILL_SECONDS)
    await wire.chunk(*chat_stream("A", model=SERVED))
    await wire.end_chunks()


def arrivals(case: Case, model: str, path: str = CHAT, key: Key | None = None) -> list[tuple[float, bytes]]:
    """What a client reads, and how many seconds after it asked; the first is the head."""
    asked = time.monotonic()
    body = case.body(model, path)
    with case.client.stream("POST", path, json=body, headers=case.headers(key)) as response:
        assert response.status_code == 200
        came = [(time.monotonic() - asked, b"")]
        came += [(time.monotonic() - asked, piece) for piece in response.iter_raw()]
    return came


@pytest.mark.shows("G20")
@pytest.mark.parametrize(
    ("path", "comment", "prefill"),
    [
        (CHAT, COMMENT, long_prefill),
        (CHAT, COMMENT, head_and_long_prefill),
        (COMPLETIONS, COMMENT, long_prefill),
        (RESPONSES, COMMENT, long_prefill),
        (MESSAGES, b"event: ping\n", long_prefill),
    ],
    ids=["chat, no head", "chat, a head", "completions", "responses", "messages"],
)
def test_g20_a_client_is_told_that_we_live(streamed: Case, path: str, comment: bytes, prefill: Script) -> None:
    served = streamed.serve(prefill)
    came = arrivals(streamed, served.name, path)
    assert came[0][0] < PREFILL_SECONDS  # the head did not wait for the engine
    early = b"".join(piece for at, piece in came if at < PREFILL_SECONDS)
    assert early.count(comment) >= 2, came
    assert b'"A"' not in early
    assert b'"A"' in b"".join(piece for _, piece in came)


@pytest.mark.shows("G20")
def test_g20_a_key_can_be_spared_the_comments(streamed: Case) -> None:
    made = create_api_key(streamed.house.tenant, name="no comments", keep_alive=False, actor=SYSTEM)
    served = streamed.serve(long_prefill)
    came = arrivals(streamed, served.name, key=Key(made.key.pk, made.secret))
    assert COMMENT not in b"".join(piece for _, piece in came)
    assert came[0][0] >= PREFILL_SECONDS * 0.9  # the status was not promised before it was known


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
