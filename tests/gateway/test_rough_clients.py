"""Clients that mean ill, at both doors: smuggled requests, heads and bodies that drip, more connections than is right.

Raw bytes over sockets, against real processes. A request is either refused, once, or understood in one way; after
a refusal nothing else that was sent is taken for a request.
"""

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest

from bench.house import wait_until
from tests.house import TestHouse

HEAD_SECONDS: Final = 4.0
BODY_SECONDS: Final = 5.0
"""Both longer than a busy machine stalls, who would let go meanwhile whom it meant to hear."""

PATIENCE_SECONDS: Final = 30.0
CLIENT_CAP: Final = 40
MEMORY_BYTES: Final = 1 << 20
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_DOORS: Final = ("relay", "web")
_BODY: Final = json.dumps({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}).encode()
_POST: Final = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
_HIDDEN: Final = b"GET /v1/models/hidden-in-the-body HTTP/1.1\r\nHost: localhost\r\n\r\n"
_CHUNKED: Final = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {
        "GATEHOUSE_HEAD_DEADLINE_SECONDS": str(HEAD_SECONDS),
        "GATEHOUSE_BODY_DEADLINE_SECONDS": str(BODY_SECONDS),
        "GATEHOUSE_CLIENT_CONNECTION_CAP": str(CLIENT_CAP),
        "GATEHOUSE_RELAY_MEMORY_BYTES": str(MEMORY_BYTES),
        "GATEHOUSE_TRUSTED_PROXIES": "127.0.0.2, 10.0.0.0/8",
    }


@pytest.fixture(scope="module")
def rough(house: TestHouse) -> TestHouse:
    house.start("web")
    return house


@dataclass
class Rough:
    """One connection to a door; what came back and whether the door closed it."""

    socket: socket.socket
    said: bytes = b""

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the door may have closed it
            self.socket.sendall(data)

    def listen(self, seconds: float) -> bool:
        """Read until the door closes; False when it has not after `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self.said += data
        return False

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in _STATUS.findall(self.said)]


@contextlib.contextmanager
def connect(house: TestHouse, door: str, *, source: str = "127.0.0.1") -> Iterator[Rough]:
    port = {"relay": house.relay_port, "web": house.web_port}[door]
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS, (source, 0)) as made:
        yield Rough(made)


def _post(*lines: bytes, body: bytes = b"") -> bytes:
    return _POST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


REFUSED: Final = {
    "a length and chunks": _post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN),
    "chunks and a length": _post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + _HIDDEN),
    "two lengths": _post(b"Content-Length: 4", b"Content-Length: 60", body=b"{}  " + _HIDDEN),
    "a list of lengths": _post(b"Content-Length: 4, 4", body=b"{}  " + _HIDDEN),
    "a signed length": _post(b"Content-Length: +4", body=b"{}  " + _HIDDEN),
    "a negative length": _post(b"Content-Length: -1", body=_HIDDEN),
    "a length beyond every number": _post(b"Content-Length: 99999999999999999999999", body=_HIDDEN),
    "identity after chunked": _post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + _HIDDEN),
    "an unknown coding": _post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + _HIDDEN),
    "a coding with a tab in it": _post(b"Transfer-Encoding: chun\x0bked", body=b"0\r\n\r\n" + _HIDDEN),
    "two codings": _post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=b"0\r\n\r\n" + _HIDDEN),
    "a space before the colon": _post(b"Content-Length : 4", body=b"{}  " + _HIDDEN),
    "a folded header": _post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n" + _HIDDEN),
    "a folded value": _post(b"X: a", b" Content-Length: 4", body=b"{}  " + _HIDDEN),
    "a lone line feed": b"POST /v1/chat/completions HTTP/1.1\nHost: a\nContent-Length: 4\n\n{}  " + _HIDDEN,
    "a lone line feed in a value": _post(b"X: a\nTransfer-Encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN),
    "a lone carriage return in a value": _post(b"X: a\rTransfer-Encoding: chunked", body=b"0\r\n\r\n" + _HIDDEN),
    "a NUL in a value": _post(b"X: a\0b", body=_HIDDEN),
    "a NUL in a name": _post(b"X\0: a", body=_HIDDEN),
    "a chunk of negative size": _post(b"Transfer-Encoding: chunked", body=b"-5\r\nhello\r\n0\r\n\r\n" + _HIDDEN),
    "a chunk of a size beyond every number": _post(
        b"Transfer-Encoding: chunked", body=b"fffffffffffffffff1\r\nhello\r\n0\r\n\r\n" + _HIDDEN
    ),
    "a chunk size as in a program": _post(b"Transfer-Encoding: chunked", body=b"0x5\r\nhello\r\n0\r\n\r\n" + _HIDDEN),
    "a chunk longer than it said": _post(b"Transfer-Encoding: chunked", body=b"2\r\nhello\r\n0\r\n\r\n" + _HIDDEN),
    "a tunnel": b"CONNECT engine:8080 HTTP/1.1\r\nHost: engine:8080\r\n\r\n" + _HIDDEN,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /v1/models\r\n\r\n" + _HIDDEN,
}


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_once(rough: TestHouse, name: str, door: str) -> None:
    with connect(rough, door) as client:
        client.send(REFUSED[name])
        closed = client.listen(PATIENCE_SECONDS)
    assert (client.statuses, closed) == ([400], True), client.said
    assert b"hidden-in-the-body" not in client.said


UNDERSTOOD: Final = {
    "a target with a host": (
        b"GET http://engine.internal/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        [401],
    ),
    "chunks with extensions": (
        _post(b"Transfer-Encoding: chunked", b"Connection: close", body=_CHUNKED.replace(b"\r\n", b";a=b\r\n", 1)),
        [401],
    ),
    "trailers that claim to be headers": (
        _post(
            b"Transfer-Encoding: chunked",
            b"Connection: close",
            body=_CHUNKED.removesuffix(b"\r\n") + b"Authorization: Bearer sk-gh-x\r\n\r\n",
        ),
        [401],
    ),
    "a request in a body": (_post(b"Content-Length: %d" % len(_HIDDEN), b"Connection: close", body=_HIDDEN), [401]),
    "a request behind the last": (
        _post(b"Content-Length: %d" % len(_BODY), b"Connection: close", body=_BODY + _HIDDEN),
        [401],
    ),
    "two requests in a row": (
        _post(b"Content-Length: %d" % len(_BODY), body=_BODY)
        + b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        [401, 401],
    ),
    "a body that is shorter than what follows": (
        _post(b"Content-Length: 2", body=b"{}GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
        [401, 401],
    ),
}


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize("name", UNDERSTOOD)
def test_the_rest_is_understood_in_one_way(rough: TestHouse, name: str, door: str) -> None:
    sent, statuses = UNDERSTOOD[name]
    with connect(rough, door) as client:
        client.send(sent)
        assert client.listen(PATIENCE_SECONDS), client.said
    assert client.statuses == statuses, client.said


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize(
    "sent",
    [
        b"GET /v1/models HTTP/1.1\r\n" + b"X: %b\r\n" % (b"x" * 100_000),
        b"GET /v1/models HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"GET /" + b"x" * 100_000,
    ],
    ids=["a long header", "many headers", "a long target"],
)
def test_heads_are_bounded(rough: TestHouse, door: str, sent: bytes) -> None:
    with connect(rough, door) as client:
        client.send(sent)
        assert client.listen(PATIENCE_SECONDS)
    assert client.statuses == [431], client.said


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize(
    "flood", [b"1;" + b"x" * 4000 + b"\r\n{\r\n", b"0\r\n" + b"x: y\r\n" * 1000], ids=["extensions", "trailers"]
)
def test_framing_without_end_is_not_listened_to(rough: TestHouse, door: str, flood: bytes) -> None:
    with connect(rough, door) as client:
        client.send(_post(b"Transfer-Encoding: chunked"))
        started = time.monotonic()
        for _ in range(100):
            client.send(flood)
            if flood.startswith(b"0"):
                flood = flood.removeprefix(b"0\r\n")
        assert client.listen(BODY_SECONDS * 0.8)
        assert time.monotonic() - started < BODY_SECONDS
    assert client.statuses in ([], [400])


def _drip(client: Rough, data: bytes, *, seconds: float) -> bool:
    """Send byte by byte until the door closes; False when it has not after `seconds`."""
    deadline = time.monotonic() + seconds
    for position in range(len(data)):
        client.send(data[position : position + 1])
        if client.listen(0.05):
            return True
        if time.monotonic() > deadline:
            break
    return False


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize(
    ("sent", "statuses"),
    [(b"", []), (b"GET /v1/models HTTP/1.1\r\nX: ", [408]), (b"\r\n" * 2, [408])],
    ids=["silence", "half a head", "blank lines"],
)
def test_who_does_not_ask_in_time_is_let_go(rough: TestHouse, door: str, sent: bytes, statuses: list[int]) -> None:
    with connect(rough, door) as client:
        client.send(sent)
        assert client.listen(HEAD_SECONDS + 5.0)  # less than the default of ten
    assert client.statuses == statuses


@pytest.mark.parametrize("door", _DOORS)
def test_a_head_that_drips_is_told_408(rough: TestHouse, door: str) -> None:
    seconds = HEAD_SECONDS + 5.0  # less than the default of ten
    with connect(rough, door) as client:
        assert _drip(client, b"GET /v1/models HTTP/1.1\r\nX: " + b"x" * 500, seconds=seconds)
    assert client.statuses == [408]


@pytest.mark.parametrize("door", _DOORS)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/messages"])
def test_a_body_that_drips_is_told_408_in_the_words_of_its_api(rough: TestHouse, door: str, path: bytes) -> None:
    with connect(rough, door) as client:
        client.send(b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n")
        assert _drip(client, b" " * 499, seconds=BODY_SECONDS + 10.0)
    assert client.statuses == [408]
    body = json.loads(client.said.partition(b"\r\n\r\n")[2])
    assert (body.get("type") == "error") == (path == b"/v1/messages")
    assert body["error"]["message"] == "The request body did not arrive in time."


def _crowd(stack: contextlib.ExitStack, house: TestHouse, door: str, source: str, first: bytes) -> list[Rough]:
    """As many connections as one client may have; each says `first` at once: the door lets silent ones go."""
    crowd = []
    for _ in range(CLIENT_CAP):
        crowd.append(stack.enter_context(connect(house, door, source=source)))
        crowd[-1].send(first)
    return crowd


def _hears(client: Rough) -> bool:
    return client.listen(0.005) or client.statuses != []


_ALIVE: Final = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.shows("R125")
@pytest.mark.parametrize("door", _DOORS)
def test_one_client_may_not_have_all_connections(rough: TestHouse, door: str) -> None:
    with contextlib.ExitStack() as stack:
        crowd = _crowd(stack, rough, door, "127.0.0.3", _ALIVE + b"\r\n")
        for one in crowd:  # who has asked once may stay
            wait_until(partial(_hears, one), "an answer")
            assert one.statuses == [401]
        wait_until(lambda: _asks_once(rough, door, "127.0.0.3", b"") == 429, "a full house")
        with connect(rough, door, source="127.0.0.3") as client:
            client.send(_ALIVE + b"\r\n")
            wait_until(partial(_hears, client), "an answer")
            assert client.listen(HEAD_SECONDS)  # closed with its answer, not by a deadline
        assert client.statuses == [429]
        assert b"retry-after: 1\r\n" in client.said
        assert b'"code":"too_many_connections"' in client.said
        assert _asks_once(rough, door, "127.0.0.4", b"") == 401  # another client has its own
        for one in crowd:
            one.socket.close()
    wait_until(lambda: _asks_once(rough, door, "127.0.0.3", b"") == 401, "room again")


def _asks_once(house: TestHouse, door: str, source: str, lines: bytes) -> int | None:
    with connect(house, door, source=source) as client:
        client.send(_ALIVE + lines + b"Connection: close\r\n\r\n")
        client.listen(PATIENCE_SECONDS)
    return client.statuses[0] if client.statuses else None


@pytest.mark.shows("R125")
@pytest.mark.parametrize("door", _DOORS)
def test_behind_a_trusted_proxy_the_requests_of_its_clients_count(rough: TestHouse, door: str) -> None:
    waiting = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with contextlib.ExitStack() as stack:
        forwarded_for = b"X-Forwarded-For: 198.51.100.66, 203.0.113.5, 10.1.2.3\r\n\r\n{"
        _crowd(stack, rough, door, "127.0.0.2", waiting + forwarded_for)

        def ask(forwarded: bytes) -> int | None:
            return _asks_once(rough, door, "127.0.0.2", b"X-Forwarded-For: " + forwarded + b"\r\n")

        wait_until(lambda: ask(b"203.0.113.5") == 429, "a full house", seconds=BODY_SECONDS)
        assert ask(b"203.0.113.6") == 401
        assert ask(b"203.0.113.5, 203.0.113.6") == 401  # what it says of itself does not count
        assert ask(b"198.51.100.66") == 401
        assert ask(b"garbage") == 401
    wait_until(lambda: _asks_once(rough, door, "127.0.0.2", b"X-Forwarded-For: 203.0.113.5\r\n") == 401, "room again")


def _memory_misses(house: TestHouse, door: str) -> float:
    label = {"relay": "relay", "web": "drf"}[door]
    with house.client("", door=door) as client:
        text = client.get("/metrics").text
    sample = f'gatehouse_relay_memory_misses_total{{door="{label}"}}'
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(sample)), 0.0)


@pytest.mark.shows("R87")
@pytest.mark.parametrize("door", _DOORS)
def test_a_body_that_finds_no_room_is_told_503_and_counted(rough: TestHouse, door: str) -> None:
    before = _memory_misses(rough, door)
    with rough.client(door=door) as client:
        refused = client.post("/v1/chat/completions", content=_BODY + b" " * MEMORY_BYTES)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "relay_memory_exhausted"
        assert client.post("/v1/chat/completions", content=_BODY + b" " * (MEMORY_BYTES // 2)).status_code == 200
    wait_until(lambda: _memory_misses(rough, door) == before + 1, "a miss in the metrics")


@pytest.mark.shows("R87")
def test_bodies_under_way_count_together(rough: TestHouse) -> None:
    half = b" " * (MEMORY_BYTES * 6 // 10)
    with connect(rough, "relay") as one, rough.client() as client:
        one.send(_post(b"Content-Length: %d" % (2 * len(half)), body=half))
        wait_until(
            lambda: client.post("/v1/chat/completions", content=_BODY + half).status_code == 503,
            "no room for another",
            seconds=BODY_SECONDS,
        )
    with rough.client() as client:
        wait_until(lambda: client.post("/v1/chat/completions", content=_BODY + half).status_code == 200, "room again")
