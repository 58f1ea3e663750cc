"""The load generator must notice what goes wrong, or its numbers mean nothing."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.chats import chat
from bench.tools import Upstream, build, missing_parts, send_load
from tests.ports import free_port

if reason := missing_parts():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    build()
    with Upstream() as running:
        yield running
    assert running.counts["requests"] > 0


def test_answers_are_counted_and_timed(upstream: Upstream) -> None:
    result = send_load(upstream.port, chat(), requests=200, concurrency=8)
    assert result.complaint is None
    assert result.statuses == {"200": 200}
    assert result.connections_opened == 8
    assert result.latency_ms is not None
    assert result.latency_ms.count == 200


def test_events_are_counted_to_the_last(upstream: Upstream) -> None:
    result = send_load(upstream.port, chat(events=20, pace_us=500), requests=10, concurrency=5, events=20)
    assert result.complaint is None
    assert result.events == 200
    assert result.ttft_ms is not None


def test_events_of_a_burst_come_in_one_write(upstream: Upstream) -> None:
    body = chat(events=100, pace_us=500, burst=25)
    result = send_load(upstream.port, body, requests=10, concurrency=1, events=100)
    assert result.complaint is None
    assert result.reads < 10 * 10  # four bursts, a head and an end, where each alone would be a hundred


def test_events_alone_are_read_alone(upstream: Upstream) -> None:
    body = chat(events=20, pace_us=10_000)
    reads = max(send_load(upstream.port, body, requests=1, concurrency=1, events=20).reads for _ in range(8))
    assert reads >= 10  # a busy machine reads some together; a burst would be one read


def test_a_missing_event_is_a_failure(upstream: Upstream) -> None:
    result = send_load(upstream.port, chat(events=20), requests=10, concurrency=5, events=21)
    assert (result.failed, result.failures["events"]) == (10, 10)


def test_an_answer_that_is_no_stream_lacks_done(upstream: Upstream) -> None:
    result = send_load(upstream.port, chat(), requests=4, concurrency=2, events=5)
    assert (result.failed, result.failures["done"]) == (4, 4)


def test_a_steady_rate_is_kept(upstream: Upstream) -> None:
    seconds = [send_load(upstream.port, chat(), requests=50, concurrency=8, rate=200.0).seconds for _ in range(4)]
    assert 0.24 <= min(seconds) < 2.0  # the quickest of four: a busy machine stalls


def test_a_shut_door_is_a_failure_of_every_request() -> None:
    result = send_load(free_port(), chat(), requests=5, concurrency=2)
    assert (result.failed, result.failures["transport"]) == (5, 5)


_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
_EVENT = b'data: {"choices":[]}\n\n'


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}", "status"),
        (_HEAD + b"transfer-encoding: chunked\r\n\r\n" + _chunk(_EVENT), "cut_short"),
        (_HEAD + b"transfer-encoding: chunked\r\n\r\n" + _chunk(_EVENT) + b"0\r\n\r\n", "done"),
        (_HEAD + b"connection: close\r\n\r\n" + _EVENT + _EVENT + b"data: [DONE]\n\n", "events"),
        (_HEAD + b'connection: close\r\n\r\ndata: {"error":{}}\n\ndata: [DONE]\n\n', "events"),
        (_HEAD + b"connection: close\r\n\r\ndata: [DONE]\n\n" + _EVENT, "events"),
        (b"nonsense that is long enough to be read\r\n\r\n", "transport"),
        (_HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "transport"),
    ],
)
def test_a_bad_answer_is_told_by_its_kind(answer: bytes, kind: str, serve: Callable[[bytes], int]) -> None:
    result = send_load(serve(answer), chat(events=1), requests=1, concurrency=1, events=1, limit_seconds=10)
    assert result.failed == 1
    assert result.failures[kind] == 1


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], int]]:
    """Starts a server that answers one connection with the given bytes and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        def run() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    listener.close()
    for thread in threads:
        thread.join(5)
