"""A client that leaves ends everything that was done for it, at once and in every phase (G6, G7)."""

import json
import socket
import time
from typing import Final

import pytest

from bench.house import wait_until
from tests.doubles.engine import Wire, answers, chunk, stall, streams
from tests.gateway.cases.desk import CHAT, Case, Served

SECONDS: Final = 1.0
_FAILURE: Final = answers({"error": {"message": "broken"}}, status=500)


def connect(case: Case, served: Served) -> socket.socket:
    """A client that has sent its request and reads nothing yet."""
    port = case.house.web_port if case.door == "drf" else case.house.relay_port
    body = json.dumps(case.body(served.name)).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {case.house.key.secret}\r\n"
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


def leave(client: socket.socket, case: Case, served: Served) -> None:
    """Close, and see that the engine is left in time."""
    client.close()
    left = time.monotonic()
    wait_until(lambda: served.open == 0, "the engine's connection is closed", seconds=SECONDS)
    assert time.monotonic() - left < SECONDS
    assert case.row_of(served.name).outcome == "cancelled"


@pytest.mark.shows("G6")
def test_g06_before_any_byte_was_told(case: Case) -> None:
    served = case.serve(stall)
    client = connect(case, served)
    wait_until(lambda: len(served.received) == 1, "the engine was asked")
    leave(client, case, served)
    row = case.row_of(served.name)
    assert (row.usage_source, row.output_tokens, row.attempts) == ("estimated", None, 1)


@pytest.mark.shows("G6")
def test_g06_its_place_is_free_again(case: Case) -> None:
    served = case.serve(stall)
    client = connect(case, served)
    wait_until(lambda: case.active(served) == 1, "it counts as in flight")
    leave(client, case, served)
    wait_until(lambda: case.active(served) == 0, "it does no longer")


@pytest.mark.shows("G6")
@pytest.mark.parametrize("head", [False, True], ids=["no head", "a head"])
def test_g06_while_the_engine_prefills(streamed: Case, head: bool) -> None:
    served = streamed.serve(streams(chunk(role=True), then=Wire.stall) if head else stall)
    client = connect(streamed, served)
    assert read_until(client, b": keep-alive\n\n").startswith(b"HTTP/1.1 200 ")
    leave(client, streamed, served)


@pytest.mark.shows("G6")
def test_g06_in_mid_stream(streamed: Case) -> None:
    served = streamed.serve(streams(chunk(role=True), chunk("A"), then=Wire.stall))
    client = connect(streamed, served)
    read_until(client, b'"content": "A"')
    leave(client, streamed, served)
    row = streamed.row_of(served.name)
    assert (row.status, row.usage_source, row.output_tokens) == (200, "estimated", 1)


@pytest.mark.shows("G6")
def test_g06_in_the_middle_of_a_whole_answer(whole: Case) -> None:
    async def half(_request: object, wire: Wire) -> None:
        await wire.head(200, ("Content-Type", "application/json"), ("Content-Length", "100"))
        await wire.send(b'{"choices":')
        await wire.stall()

    served = whole.serve(half)
    client = connect(whole, served)
    wait_until(lambda: len(served.received) == 1, "the engine was asked")
    leave(client, whole, served)


@pytest.mark.shows("G7")
def test_g07_leaving_in_a_retry_ends_it(case: Case) -> None:
    served = case.serve(_FAILURE, stall, endpoints=3)
    client = connect(case, served)
    wait_until(lambda: len(served.received) == 2, "the second engine was asked")
    client.close()
    wait_until(lambda: sum(double.open for double in served.doubles) <= 1, "the engine is left", seconds=SECONDS)
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
