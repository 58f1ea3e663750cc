"""The web process's server: websockets beside the guards that it shares with the relay."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from config.environment import environment
from config.web_server import WebServer, build_server
from core.env import SettingsError
from tests.gateway.relay.door.house import until
from tests.ports import free_port


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    elif scope["type"] == "http":
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})
    elif scope["path"] == "/closed":
        await receive()
        await send({"type": "websocket.close"})
    else:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})


@pytest.fixture
async def served() -> AsyncIterator[tuple[WebServer, str]]:
    port = free_port()
    settings = dataclasses.replace(environment(), web_port=port, client_connection_cap=2)
    server = build_server(settings, "tests.config.test_web_server:_echo")
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(server, "capture_signals", contextlib.nullcontext)
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        yield server, f"ws://127.0.0.1:{port}"
        server.should_exit = True
        await asyncio.wait_for(task, 60)


async def test_websockets_open_at_every_address_and_tell_what_they_are_told(served: tuple[WebServer, str]) -> None:
    _, url = served
    async with (
        connect(f"{url}/agent/stream") as one,
        connect(f"{url}/ws/live", additional_headers={"X": "y"}) as two,
    ):
        for text, socket in (("a", one), ("b" * 100_000, two)):
            await socket.send(text)
            assert await socket.recv() == text


async def test_one_that_is_refused_is_told_so(served: tuple[WebServer, str]) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        await connect(f"{served[1]}/closed")


async def test_websockets_count_for_their_client_until_they_end(served: tuple[WebServer, str]) -> None:
    server, url = served
    async with connect(f"{url}/a"), connect(f"{url}/b"):
        with pytest.raises(InvalidStatus, match="429"):
            await connect(f"{url}/c")
    await until(lambda: not server.server_state.connections)
    async with connect(f"{url}/c") as again:
        await again.send("x")
        assert await again.recv() == "x"


async def test_a_server_that_stops_tells_its_websockets_to_come_back(served: tuple[WebServer, str]) -> None:
    server, url = served
    async with connect(f"{url}/a") as socket:
        server.should_exit = True
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 60)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


def test_proxies_that_are_no_networks_stop_the_start_with_a_sentence() -> None:
    settings = dataclasses.replace(environment(), trusted_proxies=("10.0.0.0/8", "proxy.example"))
    with pytest.raises(SettingsError, match=r"GATEHOUSE_TRUSTED_PROXIES.*proxy\.example"):
        build_server(settings, "tests.config.test_web_server:_echo")


@pytest.mark.shows("R125")
@pytest.mark.parametrize(("cores", "cap", "connections"), [(2, None, 4096), (64, None, 16_384), (64, 10, 10)])
def test_how_many_connections_there_may_be_follows_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, cap: int | None, connections: int
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert dataclasses.replace(environment(), connection_cap=cap).connections == connections
