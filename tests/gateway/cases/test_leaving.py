"""A client that leaves ends everything that was done for it, at once and in every phase (G6, G7).

While it is told that we live: see test_silence.
"""

import json
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from bench.house import wait_until
from bench.rows import Key
from tests.doubles.engine import Script, Wire, answers, chunk, stall, streams
from tests.gateway.cases.desk import CHAT, Case, Served

SECONDS: Final = 1.0
TRIES: Final = 5
_FAILURE: Final = answers({"error": {"message": "broken"}}, status=500)


def connect(case: Case, served: Served, key: Key | None = None) -> socket.socket:
    """A client that has sent its request and reads nothing yet."""
    port = case.house.web_port if case.door == "drf" else case.house.relay_port
    body = json.dumps(case.body(served.name)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {(key or case.house.key).secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", port), 10.0)
    client.sendall(head.encode() + body)
    return client


def read_until(client: socket.socket, what: bytes) -> bytes:
    said = b""
    while what not in said:
        data = client.recv(1 << 16)
        assert data, said
        said += data
    return said


def asked(client: socket.socket, served: Served) -> None:
    wait_until(lambda: len(served.received) == 1, "the engine was asked")


def left(
    case: Case,
    script: Script,
    told: Callable[[socket.socket, Served], object],
    *,
    before: Sequence[Script] = (),
    endpoints: int = 1,
    open_after: int = 0,
) -> Served:
    """A model whose client has left when it was `told` so much: its engine was left within a second.

    `before` are other engines' scripts, which go first; `open_after`: how many connections may stay open then.
    At the best of some tries: a machine on which all other tests run too may be busy with them for as long.
    """
    took: list[float] = []
    while len(took) < TRIES:
        served = case.serve(*before, script, endpoints=endpoints)
        with connect(case, served) as client:
            told(client, served)
        closed = time.monotonic()
        wait_until(lambda served=served: served.open <= open_after, "the engine's connection is closed")  # type: ignore[misc]  # mypy infers no type of a lambda's defaults
        took.append(time.monotonic() - closed)
        assert case.row_of(served.name).outcome == "cancelled"
        if took[-1] < SECONDS:
            return served
    raise AssertionError(took)


@pytest.mark.shows("G6")
def test_g06_before_any_byte_was_told(case: Case) -> None:
    row = case.row_of(left(case, stall, asked).name)
    assert (row.usage_source, row.output_tokens, row.attempts) == ("estimated", None, 1)


@pytest.mark.shows("G6")
def test_g06_its_place_is_free_again(case: Case) -> None:
    def counted(_client: socket.socket, served: Served) -> None:
        wait_until(lambda: case.active(served) == 1, "it counts as in flight")

    served = left(case, stall, counted)
    wait_until(lambda: case.active(served) == 0, "it does no longer")


@pytest.mark.shows("G6")
def test_g06_in_mid_stream(streamed: Case) -> None:
    def told_a(client: socket.socket, _served: Served) -> None:
        read_until(client, b'"content": "A"')

    served = left(streamed, streams(chunk(role=True), chunk("A"), then=Wire.stall), told_a)
    row = streamed.row_of(served.name)
    assert (row.status, row.usage_source, row.output_tokens) == (200, "estimated", 1)


@pytest.mark.shows("G6")
def test_g06_in_the_middle_of_a_whole_answer(whole: Case) -> None:
    async def half(_request: object, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", "100"))
        await wire.send(b'{"choices":')
        await wire.stall()

    left(whole, half, asked)


@pytest.mark.shows("G7")
def test_g07_leaving_in_a_retry_ends_it(case: Case) -> None:
    def second_asked(_client: socket.socket, served: Served) -> None:
        wait_until(lambda: len(served.received) == 2, "the second engine was asked")

    served = left(case, stall, second_asked, before=[_FAILURE], endpoints=3, open_after=1)
    row = case.row_of(served.name)
    assert (row.outcome, row.attempts) == ("cancelled", 2)
    assert len(served.received) == 2


@pytest.mark.shows("G7")
def test_g07_attempts_are_counted_by_request(case: Case) -> None:
    served = case.serve(_FAILURE, endpoints=5)
    for asked in (1, 2):
        answer = case.ask(served.name)
        assert (answer.status, answer.error["message"]) == (500, "broken")
        assert len(served.received) == 3 * asked
        row = case.row(answer)
        assert (row.outcome, row.attempts, row.usage_source) == ("failed", 3, "none")
