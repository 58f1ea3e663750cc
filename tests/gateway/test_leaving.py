"""A client that leaves closes the engine's connection within a second, at both doors and in every phase."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import pytest

from bench.house import wait_until
from bench.rows import attach
from tenants.actor import SYSTEM
from tenants.models import UsageRecord
from tenants.services import grant_model
from tests.house import TestHouse

CHAT: Final = "/v1/chat/completions"
STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FAILURE: Final = b"HTTP/1.1 500 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
EVENT: Final = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


class SilentEngine:
    """Takes requests, answers with `told` and then says nothing; knows when the other side closed."""

    def __init__(self) -> None:
        self.told = b""
        self.requests = 0
        self.closed = 0
        self.failures: list[bytes] = []
        """Answers to give first, before it says nothing; may be shared with another engine."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            if not connection.recv(1 << 16):
                return
            self.requests += 1
            try:
                if self.failures:
                    connection.sendall(self.failures.pop())
                    return
                connection.sendall(self.told)
                while connection.recv(1 << 16):
                    pass
            except OSError:
                pass
            self.closed += 1


@pytest.fixture(scope="module")
def house_more() -> dict[str, str]:
    return {"GATEHOUSE_SEND_DEADLINE_SECONDS": "1", "GATEHOUSE_SSE_KEEP_ALIVE_SECONDS": "1"}


@pytest.fixture(scope="module")
def engine(house: TestHouse) -> Iterator[SilentEngine]:
    engine = SilentEngine()
    attach("silent", engine.port)
    grant_model(house.tenant, model_pattern="silent", actor=SYSTEM)
    house.start("web")
    for door in ("relay", "web"):
        with house.client(door=door) as client:
            wait_until(lambda at=client: "silent" in at.get("/v1/models").text, "the door knows it")  # type: ignore[misc]  # mypy infers no type of a lambda's defaults
    yield engine
    engine.stop()


def asks(house: TestHouse, door: str, body: dict[str, Any]) -> socket.socket:
    """A client that has sent its request and waits for nothing."""
    sent = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {house.key.secret}\r\n"
    client = socket.create_connection(("127.0.0.1", {"relay": house.relay_port, "web": house.web_port}[door]), 30.0)
    client.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    return client


@pytest.mark.shows("G6")
@pytest.mark.parametrize("door", ["relay", "web"])
@pytest.mark.parametrize("phase", ["not streamed", "before the head", "in mid-stream"])
@pytest.mark.parametrize("seconds", [pytest.param(1.0, marks=pytest.mark.drill), 30.0])
def test_the_engine_is_left_within_a_second(
    house: TestHouse, engine: SilentEngine, door: str, phase: str, seconds: float
) -> None:
    """A machine on which all other tests run too keeps no second: it is the drill's to measure."""
    streamed = phase != "not streamed"
    engine.told = b"" if phase != "in mid-stream" else STREAM_HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
    body: dict[str, Any] = {"model": "silent", "messages": [{"role": "user", "content": "x"}], "stream": streamed}
    taken, closed = engine.requests, engine.closed
    rows = UsageRecord.objects.filter(model="silent", outcome="cancelled").count()
    with asks(house, door, body) as client:
        wait_until(lambda: engine.requests > taken, "the engine is asked")
        if phase == "in mid-stream":
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    left = time.monotonic()
    assert engine.requests == taken + 1
    wait_until(lambda: engine.closed == closed + 1, "the engine's connection is closed", seconds=seconds)
    assert time.monotonic() - left < seconds
    wait_until(
        lambda: UsageRecord.objects.filter(model="silent", outcome="cancelled").count() == rows + 1,
        "it is in the ledger as cancelled",
    )


@pytest.mark.shows("G6", "G7")
@pytest.mark.parametrize("door", ["relay", "web"])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("seconds", [pytest.param(1.0, marks=pytest.mark.drill), 30.0])
def test_a_client_that_leaves_in_a_retry_ends_it(
    house: TestHouse, engine: SilentEngine, door: str, streamed: bool, seconds: float
) -> None:
    model = f"retried-{door}-{streamed}-{seconds:.0f}".lower()
    engines = [SilentEngine(), SilentEngine(), SilentEngine()]
    failures = [FAILURE]
    for other in engines:
        other.failures = failures
        attach(model, other.port)
    grant_model(house.tenant, model_pattern=model, actor=SYSTEM)
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": streamed}
    with house.client(door=door) as client:
        wait_until(lambda: model in client.get("/v1/models").text, "the door knows it")
    with asks(house, door, body):
        wait_until(lambda: sum(other.requests for other in engines) == 2, "the second engine is asked")
    left = time.monotonic()
    wait_until(lambda: sum(other.closed for other in engines) == 1, "the second engine is left", seconds=seconds)
    assert time.monotonic() - left < seconds
    wait_until(
        lambda: UsageRecord.objects.filter(model=model, outcome="cancelled", attempts=2).count() == 1,
        "it is in the ledger as cancelled",
    )
    assert sum(other.requests for other in engines) == 2
    for other in engines:
        other.stop()


@pytest.mark.shows("G6")
@pytest.mark.parametrize("door", ["relay", "web"])
def test_a_client_that_leaves_while_it_is_told_that_we_live(house: TestHouse, engine: SilentEngine, door: str) -> None:
    engine.told = b""
    closed = engine.closed
    body: dict[str, Any] = {"model": "silent", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with house.client(door=door) as client, client.stream("POST", CHAT, json=body) as response:
        assert next(response.iter_raw()) == b": keep-alive\n\n"
    wait_until(lambda: engine.closed == closed + 1, "the engine's connection is closed")


@pytest.mark.parametrize("door", ["relay", "web"])
def test_a_client_that_does_not_read_holds_no_engine(house: TestHouse, engine: SilentEngine, door: str) -> None:
    many = EVENT * (32 * 1024 * 1024 // len(EVENT))  # more than sockets and processes between take in
    engine.told = STREAM_HEAD + b"%x\r\n%b\r\n" % (len(many), many)
    closed = engine.closed
    rows = UsageRecord.objects.filter(model="silent", outcome="cancelled").count()
    body: dict[str, Any] = {"model": "silent", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with house.client(door=door) as client, client.stream("POST", CHAT, json=body) as response:
        pieces = response.iter_raw()  # held: the client closes when this goes
        next(pieces)
        wait_until(lambda: engine.closed == closed + 1, "the engine is left", seconds=20.0)  # the kernel does at 30
    wait_until(
        lambda: UsageRecord.objects.filter(model="silent", outcome="cancelled").count() == rows + 1,
        "it is in the ledger as cancelled",
    )
